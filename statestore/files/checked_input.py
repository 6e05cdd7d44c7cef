"""A Parquet file that other readers open, checked against the manifest before they believe a byte of it.

Who looks only at the footer, to see whether the file has rows for a filter, reads only that. Who reads rows gets the
whole file first, mapped or as this host's copy: the manifest has one checksum of all of it.
"""

from __future__ import annotations

import atexit
import time
import weakref
from functools import partial
from typing import Any

import pyarrow as pa

from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.files.tails import read_ending
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.seekable import SeekableFile

LONGEST_WAIT_S = 0.5
_given: dict[int, weakref.ref[memoryview]] = {}
"""What readers have in hand. A view has no hash."""


def _forget(number: int, _gone: object) -> None:
    _given.pop(number, None)


def _await_readers() -> None:
    """Wait until readers have let go of what they were given, unless somebody keeps it.

    Threads of Arrow do that a moment after the rows are there, and need Python's lock for it: in a process that ends
    in that moment they would abort it.
    """
    until = time.monotonic() + LONGEST_WAIT_S
    while _given and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.001)


atexit.register(_await_readers)


class CheckedInput(SeekableFile):
    """The file that ``ref`` names. Reading raises `CorruptionError` unless it is what the manifest means."""

    def __init__(self, objects: Objects, ref: FileRef) -> None:
        super().__init__(ref.bytes)
        self._objects, self._ref = objects, ref
        self._whole: pa.Buffer | None = None

    def read(self, size: int = -1, /) -> Any:
        """The next bytes, as far as the file goes, in its own memory."""
        end = self._ref.bytes if size < 0 else min(self._at + size, self._ref.bytes)
        data = self._between(self._at, end)
        self._at += len(data)
        _given[id(data)] = weakref.ref(data, partial(_forget, id(data)))
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the file goes."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data.cast("B")
        return len(data)

    def _between(self, start: int, end: int) -> memoryview:
        # A read up to the end is how Parquet looks at a footer; no block of rows reaches that far.
        if self._whole is None and 0 < start < end == self._ref.bytes:
            return memoryview(read_ending(self._objects, self._ref, start))
        if self._whole is None:
            self._whole = read_verified(self._objects, self._ref)
        return memoryview(self._whole)[start:end]
