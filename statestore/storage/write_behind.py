"""Small objects written several at a time: each waits for the disk, or for an answer, and these waits overlap."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from tidestate.statestore.errors import TidestateError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.sink import ObjectSink

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

WRITES_AT_ONCE = 32
"""Threads of a process that write, for all blocks together."""
SPOOLED_BYTES = 1 << 20
"""What a `writer` is given may wait in memory up to this, to be written behind."""
BEHIND_BYTES = 32 << 20
"""What may be waiting to be written; a larger object is written at once."""


class _Spool(io.RawIOBase):
    """Bytes in memory while they are few, else where ``begin`` says."""

    def __init__(self, begin: Callable[[], ObjectSink]) -> None:
        super().__init__()
        self._begin, self.small = begin, io.BytesIO()
        self.large: ObjectSink | None = None

    def write(self, data: Any) -> int:
        """Take all of ``data``. Raises what the writer of a large object raises."""
        view = memoryview(data)
        if self.large is None and self.small.tell() + view.nbytes > SPOOLED_BYTES:
            self.large = self._begin()
            self.large.write(self.small.getbuffer())
        (self.small if self.large is None else self.large).write(view)
        return view.nbytes

    def flush(self) -> None:
        """Hand on what a large object has buffered."""
        if self.large is not None:
            self.large.flush()


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

    @contextmanager
    def writer(self, path: str) -> Iterator[ObjectSink]:
        """As `Objects.writer`; what stays small is `put` at the end."""
        with ExitStack() as large:
            spool = _Spool(lambda: large.enter_context(super(WriteBehind, self).writer(path)))
            sink = ObjectSink(cast(IO[bytes], spool), path)
            yield sink
            if spool.large is None:
                self.put(path, spool.small.getvalue())

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
