"""A disk that forgets at a power cut what was not synced: names in folders as well as bytes in files.

It watches `os.fsync`. What a synced file held and what a synced folder listed at that moment is what is left. A
folder whose name was never synced in the one above is gone with all that lies in it, however durable that is.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
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
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(handle) as entries:
                self._folders[found.st_ino] = {
                    one.name: (one.inode(), one.is_dir(follow_symlinks=False)) for one in entries
                }
        else:
            self._files[found.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

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

    def cut(self, into: Path) -> Path:
        """What is left after a power cut, as a new folder ``into``."""
        into.mkdir()
        self._restore(self._top.stat().st_ino, into)
        return into

    def _restore(self, folder: int, into: Path) -> None:
        for name, (inode, is_folder) in self._folders.get(folder, {}).items():
            if is_folder:
                (into / name).mkdir()
                self._restore(inode, into / name)
            else:
                (into / name).write_bytes(self._files.get(inode, b""))
