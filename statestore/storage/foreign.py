"""Files that others write, in remote storage: looked at once, then read by ranges, and only as they were looked at.

They may be overwritten or deleted at any time, unlike objects of a root. So each request names the version that was
seen, and storage refuses where that is no longer there. Nothing is copied to this host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.storage.dialects.dialect import SeenFile, Versions
from tidestate.statestore.storage.dialects.table import dialect_of
from tidestate.statestore.storage.remote import RemoteStorage
from tidestate.statestore.storage.seekable import SeekableFile

REQUEST_BYTES = 8 << 20
"""The most that one request asks for, where several are made at once."""
REQUESTS = 8
"""The most requests of a process at a time, for one reader."""


class ForeignFiles:
    """Files below ``root``, which carries its options if it has some."""

    def __init__(self, root: str, versions: Versions) -> None:
        self._storage, self._versions = RemoteStorage(root), versions

    def look(self, path: str) -> SeenFile:
        """What a file is now. Raises `NotFoundError` and `UnavailableError`."""
        storage = self._storage
        return storage.ask(path, lambda fs: self._versions.look(fs, storage.full(path)))

    def read(self, path: str, start: int, end: int, version: str) -> bytes:
        """The bytes ``[start, end)`` of a version, whole, by one request. Raises `NotFoundError`, and
        `UnavailableError` where it is another version now too, or the reply was cut.
        """
        storage, read = self._storage, self._versions.read
        data = storage.ask(path, lambda fs: read(fs, storage.full(path), start, end, version))
        if len(data) != end - start:
            raise UnavailableError(
                "storage has sent fewer bytes than it was asked for: try again",
                code="storage",
                path=path,
                expected=end - start,
                found=len(data),
            )
        return data


def foreign_files(root: str) -> ForeignFiles | None:
    """The files below a root; None where its storage cannot be asked for the version of a file that was seen. Raises
    `UsageError` for a scheme whose package is not installed.
    """
    versions = dialect_of(root).versions
    return None if versions is None else ForeignFiles(root, versions)


def bucket_and_key(url: str) -> tuple[str, str] | None:
    """The root of a bucket, in our spelling, and the path below it, of a URL in which a path is escaped as by Java;
    None for a URL of another form.
    """
    scheme, found, rest = url.partition("://")
    bucket, slash, key = rest.partition("/")
    if not (found and bucket and slash and key) or "@" in bucket:
        return None
    return f"{dialect_of(url).scheme or scheme}://{bucket}", unquote(key)


class HeldRanges(SeekableFile):
    """A file of which some ranges are in memory; what lies outside of them is asked for when it is read."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        super().__init__(size)
        self._read = read
        self._held: list[tuple[int, bytes]] = []

    def hold(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ask for these ranges, in place of those that are held: large ones in parts, some at once."""
        self._held = []
        parts = [
            (first, min(first + REQUEST_BYTES, end))
            for start, end in ranges
            for first in range(start, end, REQUEST_BYTES)
        ]
        if len(parts) < 2:
            self._held = [(start, self._read(start, end)) for start, end in parts]
            return
        with ThreadPoolExecutor(min(len(parts), REQUESTS)) as pool:
            found = pool.map(lambda part: self._read(*part), parts)
            self._held = [(start, data) for (start, _), data in zip(parts, found, strict=True)]

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the file goes. Raises as the function that reads."""
        view = memoryview(buffer).cast("B")
        begin, end = self._at, max(self._at, min(self._at + len(view), self._size))
        while self._at < end:
            part = self._held_from(self._at, end)
            view[self._at - begin : self._at - begin + len(part)] = part
            self._at += len(part)
        return end - begin

    def _held_from(self, start: int, end: int) -> memoryview:
        """What is held from ``start`` on, up to ``end``; else that range, asked for."""
        for first, data in self._held:
            if first <= start < first + len(data):
                return memoryview(data)[start - first : end - first]
        return memoryview(self._read(start, end))
