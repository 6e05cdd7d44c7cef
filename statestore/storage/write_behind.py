"""Small objects written several at a time: each waits for the disk, or for an answer, and these waits overlap."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tidestate.statestore.errors import TidestateError
from tidestate.statestore.storage.objects import Objects

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

WRITES_AT_ONCE = 32
"""Threads of a process that write, for all blocks together."""
BEHIND_BYTES = 32 << 20
"""What may be waiting to be written; a larger object is written at once."""


@cache
def _writers() -> ThreadPoolExecutor:
    """The threads that write. They stay: to start some anew takes a part of the time of a small checkpoint."""
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import

    return ThreadPoolExecutor(WRITES_AT_ONCE, "tidestate-writes")


# A process that was forked has none of the threads of its parent.
os.register_at_fork(after_in_child=_writers.cache_clear)


class WriteBehind(Objects):
    """Objects whose ``put`` returns before the object is durable; at the end of the ``with`` block all are.

    An error of a ``put`` is raised by a later one or at the end of the block, and nothing that was put may be named
    then. Nothing may be read back within the block. All other methods are as in `Objects`.
    """

    def __enter__(self) -> Self:
        self._begun: deque[tuple[int, Future[None]]] = deque()
        self._bytes = 0
        return self

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a new object under a name nobody else uses. Raises the error of an earlier call."""
        size = memoryview(data).nbytes
        while self._begun and self._bytes + size > BEHIND_BYTES:
            self._take()
        if size > BEHIND_BYTES:
            super().put(path, data)
            return
        self._begun.append((size, _writers().submit(super().put, path, data)))
        self._bytes += size

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        try:
            while self._begun:
                with suppress(*([TidestateError] if kind else [])):
                    self._take()
        finally:
            # After an error nothing may be written any more once the block has ended.
            for _, write in self._begun:
                write.exception()

    def _take(self) -> None:
        size, write = self._begun.popleft()
        self._bytes -= size
        write.result()
