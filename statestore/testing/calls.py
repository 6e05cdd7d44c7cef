"""What this process asks of the operating system below a folder, call by call, with a hook around each.

    def hook(call: Call, when: When) -> None:
        if call.number == 7 and when == "before":
            raise OSError(errno.ENOSPC, "no space left on device")

    with Calls(folder, hook):
        job.run(batches)

Counted are opens for writing, writes, syncs of files and folders, links, renames, deletes, and folders made and
removed, by Python code: RocksDB and the JVM call past it. One call at a time: others wait while a hook runs.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from tidestate.statestore.testing.faults import When


class Call(NamedTuple):
    """One call. ``path`` is below the folder; of a link or a rename it is the new name."""

    number: int
    """From 1."""
    name: str
    """``open``, ``write``, ``fsync``, ``link``, ``rename``, ``unlink``, ``mkdir`` or ``rmdir``."""
    path: str


class Calls:
    """A context manager, one at a time in a process, for all of its threads.

    ``hook`` is called before and after the effect of each call; of a ``write`` also ``during`` it, when half of its
    bytes are in the file. What it raises the caller gets, as if from the system. Calls below the folders ``left_out``
    do not count, and have no hook.
    """

    def __init__(
        self, folder: str | os.PathLike[str], hook: Callable[[Call, When], None], left_out: Collection[str] = ()
    ) -> None:
        self._folder, self._left_out = os.path.realpath(folder), left_out
        self._hook = hook
        self._lock = threading.RLock()
        self._real: list[tuple[Any, str, Any]] = []
        self.count = 0

    def __enter__(self) -> Self:
        names = {"link": 1, "rename": 1, "replace": 1, "unlink": 0, "remove": 0, "mkdir": 0, "rmdir": 0}
        for name, index in names.items():
            self._patch(os, name, self._of_path({"replace": "rename", "remove": "unlink"}.get(name, name), index))
        self._patch(os, "fsync", self._fsync)
        open_counted = self._opened(io.open)
        for module in (builtins, io):
            self._patch(module, "open", lambda _real: open_counted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._real:
            module, name, real = self._real.pop()
            setattr(module, name, real)

    def _patch(self, module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        real = getattr(module, name)
        self._real.append((module, name, real))
        setattr(module, name, make(real))

    def _of_path(self, name: str, index: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A function whose argument number ``index`` is the name that changes."""
        handle = "dst_dir_fd" if index else "dir_fd"

        def made(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                below = self._below(arguments[index], options.get(handle))
                return (
                    real(*arguments, **options)
                    if below is None
                    else self._call(name, below, real, *arguments, **options)
                )

            return call

        return made

    def _fsync(self, real: Callable[[int], None]) -> Callable[[Any], None]:
        def fsync(file: Any) -> None:
            handle = file if isinstance(file, int) else file.fileno()
            below = self._below("", handle)
            if below is None:
                real(handle)
            else:
                self._call("fsync", below, real, handle)

        return fsync

    def _opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **options: Any) -> Any:
            below = None if isinstance(file, int) or not set("wxa+") & set(mode) else self._below(file, None)
            if below is None or "b" not in mode:
                return real(file, mode, buffering, *arguments, **options)
            raw = self._call("open", below, real, file, mode, 0, *arguments, **options)
            return _CountedFile(cast(io.FileIO, raw), self, below)

        return opened

    def _below(self, path: Any, handle: int | None) -> str | None:
        """The path below the folder, the folder itself as an empty one; None for one that lies elsewhere."""
        name = os.fsdecode(path)
        if handle is not None:
            folder = os.readlink(f"/proc/self/fd/{handle}")
            name = os.path.join(folder, name) if name else folder
        parent, last = os.path.split(os.path.abspath(name))
        full = os.path.join(os.path.realpath(parent), last)
        if full == self._folder:
            return ""
        below = full[len(self._folder) + 1 :] if full.startswith(f"{self._folder}{os.sep}") else None
        return None if below is not None and below.split(os.sep)[0] in self._left_out else below

    def _call(self, name: str, path: str, effect: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with self._lock:
            call = self._counted(name, path)
            self._hook(call, "before")
            result = effect(*arguments, **options)
            self._hook(call, "after")
            return result

    def _write(self, file: io.FileIO, path: str, data: Any) -> int:
        view = memoryview(data).cast("B")
        half = view.nbytes // 2
        with self._lock:
            call = self._counted("write", path)
            self._hook(call, "before")
            _write_all(file, view[:half])
            self._hook(call, "during")
            _write_all(file, view[half:])
            self._hook(call, "after")
        return view.nbytes

    def _counted(self, name: str, path: str) -> Call:
        self.count += 1
        return Call(self.count, name, path)


def _write_all(file: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) or 0 :]


class _CountedFile:
    """A file without a buffer whose writes count."""

    def __init__(self, file: io.FileIO, calls: Calls, path: str) -> None:
        self._file, self._calls, self._path = file, calls, path

    def write(self, data: Any) -> int:
        return self._calls._write(self._file, self._path, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
