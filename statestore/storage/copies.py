"""Local copies of remote objects, shared by the processes of a host, and reading without a copy.

Objects never change under their name, so a copy is good as long as it is whole.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from fsspec.caching import ReadAheadCache

from statestore.storage.faults import storage_errors

READ_AHEAD = 256 * 1024
"""Bytes fetched beyond what was asked for: many small reads in a row are one request."""


class Copies:
    """A folder of copies; their names say which object of which place they are of."""

    def __init__(self, folder: Path, place: str) -> None:
        self._folder = folder
        self._place = place

    def find(self, path: str, size: int) -> Path | None:
        """The copy, if there is a whole one: a power cut may have left a shorter one."""
        copy = self._copy(path)
        try:
            return copy if copy.stat().st_size == size else None
        except OSError:
            return None

    def keep(self, path: str, fetch: Callable[[str], None]) -> Path:
        """Fetch into a file of its own, then give it its name: others see all of it or nothing."""
        temporary, copy = self.temporary(path), self._copy(path)
        try:
            fetch(str(temporary))
            with storage_errors(path, writing=True):
                _sync(temporary)
                os.replace(temporary, copy)
        finally:
            temporary.unlink(missing_ok=True)
        return copy

    def temporary(self, path: str) -> Path:
        """A fresh name in the folder, which is made where it is missing."""
        with storage_errors(path, writing=True):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder / f".{uuid.uuid4().hex}"

    def forget(self, path: str) -> None:
        """Drop the copy, if there is one. Whoever has it mapped keeps what they have."""
        with storage_errors(path, writing=True):
            self._copy(path).unlink(missing_ok=True)

    def _copy(self, path: str) -> Path:
        return self._folder / xxhash.xxh3_128_hexdigest(f"{self._place}\n{path}".encode())


class Ranges(io.RawIOBase):
    """An object read here and there, each range by a request of its own."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._cache = ReadAheadCache(READ_AHEAD, fetch, size)
        self._size = size
        self._at = 0

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
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the object goes. Raises `NotFoundError` or `UnavailableError`."""
        view = memoryview(buffer).cast("B")
        data = self._cache._fetch(self._at, min(self._at + len(view), self._size))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
