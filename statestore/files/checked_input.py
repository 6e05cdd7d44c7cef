"""A Parquet file that other readers open, checked against the manifest before they believe a byte of it.

Who looks only at the footer, to see whether the file has rows for a filter, reads only that. Who reads rows gets the
whole file first, mapped or as this host's copy: the manifest has one checksum of all of it.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.files.tails import read_ending
from tidestate.statestore.storage.objects import Objects


class CheckedInput(io.RawIOBase):
    """The file that ``ref`` names. Reading raises `CorruptionError` unless it is what the manifest means."""

    def __init__(self, objects: Objects, ref: FileRef) -> None:
        super().__init__()
        self._objects, self._ref = objects, ref
        self._at = 0
        self._whole: pa.Buffer | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Read on from there."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._ref.bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the file goes."""
        view = memoryview(buffer).cast("B")
        data = self._between(self._at, min(self._at + len(view), self._ref.bytes))
        view[: len(data)] = data.cast("B")
        self._at += len(data)
        return len(data)

    def _between(self, start: int, end: int) -> memoryview:
        # A read up to the end is how Parquet looks at a footer; no block of rows reaches that far.
        if self._whole is None and 0 < start < end == self._ref.bytes:
            return memoryview(read_ending(self._objects, self._ref, start))
        if self._whole is None:
            self._whole = read_verified(self._objects, self._ref)
        return memoryview(self._whole)[start:end]
