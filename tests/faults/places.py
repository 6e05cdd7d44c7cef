"""Where the roots of a scenario lie, and what a death at one of its calls leaves there: on a disk, in a bucket."""

from __future__ import annotations

import os
import random
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tidestate.statestore.testing.calls import Call, Calls
from tidestate.statestore.testing.faults import When
from tidestate.statestore.testing.power import Disk

Image: TypeAlias = dict[str, bytes | None]
"""Files by path, with their bytes; folders are None, and come before what lies in them."""
Hook: TypeAlias = Callable[[Call, When], None]
IMAGES = ("died", "cut", "empty", "zeros", "mixed")
KEPT_OF_DAMAGED = 20


class Durable(NamedTuple):
    """What a power cut would leave, and the bytes that were synced of files whose names may not have been."""

    left: Image
    bytes_of: dict[str, bytes]


NOTHING = Durable({}, {})


class Place(ABC):
    """A folder or bucket. ``base`` has room for what lies outside of it, the caches of stores."""

    images: tuple[str, ...]
    """What may be left: ``died`` after the death of the process, others after a power cut."""
    top: str

    def __init__(self, base: Path) -> None:
        self.cache = base / "cache"

    def path(self, name: str) -> str:
        """The root of this name, in a folder that is not there in the beginning."""
        return f"{self.top}/jobs/{name}"

    @abstractmethod
    def watched(self, hook: Hook, durable: Durable = NOTHING) -> AbstractContextManager[None]:
        """Inside, ``hook`` is called at each call of storage. ``durable``: what of that which is there was synced."""

    def durable(self) -> Durable:
        """What was synced."""
        return NOTHING

    @abstractmethod
    def image(self, kind: str, chance: random.Random) -> Image:
        """What would be left now. Only inside of `watched`."""

    @abstractmethod
    def restore(self, image: Image) -> None:
        """This, and nothing else, is there."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Take a folder away, if there is one."""

    @abstractmethod
    def damage(self, path: str) -> None:
        """Cut a file."""

    def caches(self) -> Image:
        """What stores have in their caches."""
        found: Image = {}
        for folder, _, names in os.walk(self.cache):
            for name in sorted(names):
                try:
                    found[str(Path(folder, name).relative_to(self.cache))] = Path(folder, name).read_bytes()
                except FileNotFoundError:  # a database may tidy up while it is copied
                    continue
        return found

    def restore_caches(self, caches: Image) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)
        for path, data in caches.items():
            self.cache.mkdir(0o700, exist_ok=True)
            (self.cache / path).parent.mkdir(parents=True, exist_ok=True)
            (self.cache / path).write_bytes(data or b"")


class OnDisk(Place):
    """A folder.

    ``died``: all that was done is there. ``cut``: what was synced, bytes and names. ``empty`` and ``zeros``: names
    have reached the disk and bytes that were not synced have not. ``mixed``: any of what was not synced.
    """

    images = IMAGES

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self._top = base / "disk"
        self._top.mkdir()
        self.top = str(self._top)
        self._disk = Disk(self._top)
        self._known: dict[tuple[int, int, int], bytes] = {}

    @contextmanager
    def watched(self, hook: Hook, durable: Durable = NOTHING) -> Iterator[None]:
        self._disk = Disk(self._top, real=os.fsync)
        self._disk.resume(durable.left, durable.bytes_of)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._disk.fsync)
            with Calls(self._top, hook):
                yield

    def durable(self) -> Durable:
        synced = {
            path: self._disk.synced(inode) for path, inode, data in self._live(self.top, "") if data is not None
        }
        return Durable(self._disk.left(), {path: data for path, data in synced.items() if data is not None})

    def image(self, kind: str, chance: random.Random) -> Image:
        if kind == "cut":
            return self._disk.left()
        found: Image = {}
        lost = {"empty": lambda _data: b"", "zeros": lambda data: bytes(len(data))}
        for path, inode, data in self._live(self.top, ""):
            synced = self._disk.synced(inode)
            if data is None or kind == "died" or data == synced:
                found[path] = data
            elif kind == "mixed":
                found[path] = chance.choice([data, data[: len(data) // 2], bytes(len(data)), synced or b""])
            else:
                found[path] = synced if synced is not None else lost[kind](data)
        return self._mixed(found, chance) if kind == "mixed" else found

    def _mixed(self, live: Image, chance: random.Random) -> Image:
        """Each name that is not synced may be there or not, and each that is not synced away."""
        left, found = self._disk.left(), Image()
        for path in sorted(live.keys() | left.keys()):
            above = path.rpartition("/")[0]
            if above and found.get(above, b"") is not None:
                continue  # its folder is not there
            if (path in live and path in left) or chance.random() < 0.5:
                found[path] = live[path] if path in live else left[path]
        return found

    def _live(self, folder: str, before: str) -> Iterator[tuple[str, int, bytes | None]]:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                about = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    yield f"{before}{entry.name}", about.st_ino, None
                    yield from self._live(entry.path, f"{before}{entry.name}/")
                else:
                    key = about.st_ino, about.st_size, about.st_mtime_ns
                    if key not in self._known:
                        self._known[key] = Path(entry.path).read_bytes()
                    yield f"{before}{entry.name}", about.st_ino, self._known[key]

    def restore(self, image: Image) -> None:
        shutil.rmtree(self._top)
        self._top.mkdir()
        for path, data in image.items():
            if data is None:
                os.mkdir(f"{self.top}/{path}")
            else:
                Path(self.top, path).write_bytes(data)

    def remove(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def damage(self, path: str) -> None:
        with open(path, "r+b") as file:
            file.truncate(KEPT_OF_DAMAGED)
            os.fsync(file.fileno())


class InBucket(Place):
    """The objects of ``memory://``: a call has happened or not, and what has happened stays."""

    images = ("died",)
    top = "memory://crash"
    _calls = ("pipe_file", "put_file", "cp_file", "rm_file", "cat_file", "get_file", "ls", "info", "exists", "find")

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self._fs = MemoryFileSystem()
        self._lock, self._inside, self._count = threading.RLock(), threading.local(), 0
        self.restore({})

    @contextmanager
    def watched(self, hook: Hook, durable: Durable = NOTHING) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in self._calls:
                patch.setattr(MemoryFileSystem, name, self._counted(name, getattr(MemoryFileSystem, name), hook))
            yield

    def _counted(self, name: str, real: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
        def call(fs: MemoryFileSystem, path: Any, *given: Any, **options: Any) -> Any:
            if getattr(self._inside, "call", False):
                return real(fs, path, *given, **options)
            with self._lock:
                self._count += 1
                made = Call(self._count, name, str(path))
                self._inside.call = True
                try:
                    hook(made, "before")
                    found = real(fs, path, *given, **options)
                    hook(made, "after")
                    return found
                finally:
                    self._inside.call = False

        return call

    def image(self, kind: str, chance: random.Random) -> Image:
        return {path: file.getvalue() for path, file in MemoryFileSystem.store.items()}

    def restore(self, image: Image) -> None:
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
        for path, data in image.items():
            self._fs.pipe_file(path, data)

    def remove(self, path: str) -> None:
        below = f"{self._fs._strip_protocol(path)}/"
        for name in [name for name in MemoryFileSystem.store if name.startswith(below)]:
            self._fs.rm_file(name)

    def damage(self, path: str) -> None:
        self._fs.pipe_file(path, self._fs.cat_file(path)[:KEPT_OF_DAMAGED])


PLACES: dict[str, type[Place]] = {"disk": OnDisk, "bucket": InBucket}
