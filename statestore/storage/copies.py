"""Local copies of remote objects, shared by the processes of a host, and reading without a copy.

Objects never change under their name, so a copy is good as long as it is whole. The folder is bounded: what was used
least recently goes first. A process that has mapped a removed copy keeps its bytes; the next one fetches it again.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash
from fsspec.caching import ReadAheadCache

from tidestate.statestore.storage.faults import storage_errors
from tidestate.statestore.storage.local import clock_ns, file_version, remove_unfinished, sync_path
from tidestate.statestore.storage.private import check_private, make_private
from tidestate.statestore.storage.seekable import SeekableFile

READ_AHEAD = 256 * 1024
"""Bytes fetched beyond what was asked for: many small reads in a row are one request."""


COPIES_BYTES = 10 << 30
"""What the folder of copies may hold by default."""

PRUNED_SHARE = 0.8
"""Pruning goes down to this share of the limit, so that it is not due again at once."""

LOOKS = 20
"""The folder is looked through when this process has added a twentieth of its limit since it last did."""

ABANDONED_S = 3600
"""An unfinished file that nobody has written to for so long is a dead process'."""

_OURS = re.compile(r"\.?[0-9a-f]{32}")

_added: dict[tuple[Path, int], int] = {}
"""Bytes that this process has added to a folder since it looked it through; no entry before the first time."""


class Copies:
    """A folder of copies; their names say which object of which place they are of.

    Raises `UsageError` (``folder-shared``) for a folder that others may read or write.
    """

    def __init__(self, folder: Path, place: str, limit: int) -> None:
        check_private(folder)
        self._folder = folder
        self._place = place
        self._limit = limit

    def open(self, path: str, size: int) -> pa.NativeFile | None:
        """The copy, mapped, if there is a whole one: a power cut may have left a shorter one."""
        copy = self._copy(path)
        try:
            found = copy.stat()
            if found.st_size != size:
                return None
            with suppress(OSError):
                # Mounts do not keep the time of access well. That of change stays: `version` goes by it.
                os.utime(copy, ns=(time.time_ns(), found.st_mtime_ns))
            return pa.memory_map(str(copy))
        except OSError:  # or another process has just pruned it
            return None

    def keep(self, path: str, fetch: Callable[[str], None]) -> pa.NativeFile:
        """Fetch into a file of its own, then give it its name: others see all of it or nothing. Mapped."""
        temporary, copy = self.temporary(path), self._copy(path)
        try:
            fetch(str(temporary))
            with storage_errors(path, writing=True):
                sync_path(temporary)
                source = pa.memory_map(str(temporary))  # under its name another process may prune it at once
                os.replace(temporary, copy)
        finally:
            remove_unfinished(temporary)
        self._make_room(copy, source.size())
        return source

    def temporary(self, path: str) -> Path:
        """A fresh name in the folder, which is made where it is missing."""
        make_private(self._folder)
        return self._folder / f".{uuid.uuid4().hex}"

    def forget(self, path: str) -> None:
        """Drop the copy, if there is one. A process that has mapped it keeps its bytes."""
        with storage_errors(path, writing=True):
            self._copy(path).unlink(missing_ok=True)

    def version(self, path: str) -> tuple[int, ...] | None:
        """The version of the local copy; None if there is none."""
        with storage_errors(path):
            return file_version(self._copy(path))

    def _make_room(self, made: Path, size: int) -> None:
        """Look the folder through, at first and then each time this process has added a good part of its limit."""
        folder = (self._folder, self._limit)
        added = _added.get(folder, self._limit) + size
        if added * LOOKS >= self._limit:
            self._prune(made)
            added = 0
        _added[folder] = added

    def _prune(self, made: Path) -> None:
        """Remove the copies used longest ago while they are too many, and what dead processes left unfinished. Others
        may be faster, or the next one does it.
        """
        files = _listed(self._folder)
        now_s = clock_ns(self._folder) / 1e9
        for path, stat in files.items():
            if path.name.startswith(".") and now_s - stat.st_mtime > ABANDONED_S:
                remove_unfinished(path)
        total = sum(stat.st_size for stat in files.values())
        goal = PRUNED_SHARE * self._limit if total > self._limit else total
        for path, stat in sorted(files.items(), key=lambda file: file[1].st_atime_ns):
            if total > goal and path != made and not path.name.startswith("."):
                remove_unfinished(path)
                total -= stat.st_size

    def _copy(self, path: str) -> Path:
        return self._folder / xxhash.xxh3_128_hexdigest(f"{self._place}\n{path}".encode())


def _listed(folder: Path) -> dict[Path, os.stat_result]:
    """The files of ours in a folder that others change meanwhile."""
    files = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name):
                with suppress(OSError):
                    files[Path(entry.path)] = entry.stat(follow_symlinks=False)
    return files


class RangeReader(SeekableFile):
    """An object read here and there, each range by a request of its own."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__(size)
        self._cache = ReadAheadCache(READ_AHEAD, fetch, size)

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the object goes. Raises `NotFoundError` or `UnavailableError`."""
        view = memoryview(buffer).cast("B")
        data = self._cache._fetch(self._at, min(self._at + len(view), self._size))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
