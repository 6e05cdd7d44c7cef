"""A disk that forgets at a power cut what was not synced: names in folders as well as bytes in files.

It watches `os.fsync`. What a synced file held and what a synced folder listed at that moment is what is left. A
folder whose name was never synced in the one above is gone with all that lies in it, however durable that is.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tidestate.statestore.testing.faults import Crash


class Disk:
    """All below ``top``, which is there for certain. Give `fsync` in place of `os.fsync`.

    Call number ``at`` (from 1) ends the process instead: it raises `Crash`, and so do later ones, until `alive`.
    """

    def __init__(self, top: Path, at: int | None = None, real: Callable[[int], None] = os.fsync) -> None:
        self._top, self._at, self._real = top, at, real
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, tuple[int, bool]]] = {top.stat().st_ino: {}}
        self.calls = 0
        self.crashed = False
        self._lock = threading.Lock()  # an older list of a folder must not replace a newer one

    def fsync(self, handle: int) -> None:
        """What is synced now survives."""
        with self._lock:
            self.calls += 1
            if self.crashed or self.calls == self._at:
                self.crashed = True
                raise Crash(f"the process died at sync {self.calls}")
            self._real(handle)
            self._keep(handle)

    def _keep(self, handle: int) -> None:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(handle) as entries:
                self._folders[status.st_ino] = {
                    entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries
                }
        else:
            self._files[status.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def keep_all(self) -> None:
        """All that is there now survives: it is from before."""
        for folder, _, names in os.walk(self._top):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                handle = os.open(path, os.O_RDONLY)
                try:
                    self._keep(handle)
                finally:
                    os.close(handle)

    def alive(self) -> None:
        """Another process goes on: nothing ends it."""
        self._at, self.crashed = None, False

    def dies_next(self, after: int) -> None:
        """The process dies at that sync from now on."""
        self._at = self.calls + after

    def resume(self, left: Mapping[str, bytes | None], bytes_of: Mapping[str, bytes]) -> None:
        """What is below ``top`` now was made before. Of its names only those that `left` gave are durable, and the
        ``bytes_of`` these files, whether their names are or not.
        """
        inodes = {"": self._top.stat().st_ino}
        for number, (path, data) in enumerate(left.items(), 1):
            folder, _, name = path.rpartition("/")
            try:
                inodes[path] = (self._top / path).lstat().st_ino
            except FileNotFoundError:
                inodes[path] = -number  # deleted, and that is not durable
            self._folders[inodes[folder]][name] = inodes[path], data is None
            if data is None:
                self._folders[inodes[path]] = {}
            else:
                self._files[inodes[path]] = data
        for path, data in bytes_of.items():
            self._files[(self._top / path).lstat().st_ino] = data

    def synced(self, inode: int) -> bytes | None:
        """The bytes of a file when it was synced last; None if it never was."""
        return self._files.get(inode)

    def left(self) -> dict[str, bytes | None]:
        """What is left after a power cut, by path below ``top``; None for a folder. A folder comes before what lies
        in it.
        """
        with self._lock:
            return dict(self._left(self._top.stat().st_ino, ""))

    def _left(self, folder: int, before: str) -> Iterator[tuple[str, bytes | None]]:
        for name, (inode, is_folder) in self._folders.get(folder, {}).items():
            yield f"{before}{name}", None if is_folder else self._files.get(inode, b"")
            if is_folder:
                yield from self._left(inode, f"{before}{name}/")

    def cut(self, target: Path) -> Path:
        """The same as a new folder, ``target``, which is returned."""
        target.mkdir()
        for path, data in self.left().items():
            if data is None:
                (target / path).mkdir()
            else:
                (target / path).write_bytes(data)
        return target
