"""What files that are read here and there have in common."""

from __future__ import annotations

import io


class SeekableFile(io.RawIOBase):
    """A file of ``size`` bytes with a place at which the next read begins."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to ``offset`` from the start, here or the end (``whence``); returns the position, never below 0."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at
