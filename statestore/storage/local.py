"""Objects as local files. fsspec's create is exists-then-write and never calls fsync, so this goes to the system."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import pyarrow as pa

from tidestate.statestore.errors import CommitUnknownError, ConflictError, CorruptionError, UsageError
from tidestate.statestore.storage.faults import storage_errors
from tidestate.statestore.storage.local_probe import check_folder, refuses_links, unfit
from tidestate.statestore.storage.sink import ObjectSink, sink_into

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")
_KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


class LocalStorage:
    """A folder. A name is published by a hard link, which fails when the name is taken."""

    atomic_create = "link"
    tells_age = True

    def __init__(self, url: str) -> None:
        self.root = local_path(url)
        self._root = Path(self.root)

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a new file; a torn one may remain."""
        target = self._root / path
        with storage_errors(path, writing=True):
            _make_folder(target.parent)
            _write_through(target, data)
            _sync_folder(target.parent)

    def note(self, path: str, data: bytes) -> None:
        """Write a temporary file, move it into place, wait for nothing."""
        target = self._root / path
        with storage_errors(path, writing=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = _temporary(target)
            try:
                temporary.write_bytes(data)
                temporary.rename(target)
            except BaseException:
                remove_unfinished(temporary)
                raise

    def create(self, path: str, data: bytes) -> None:
        """Write a temporary file, link it into place."""
        target = self._root / path
        with storage_errors(path, writing=True):
            _make_folder(target.parent)
            check_folder(self._root)
            temporary = _temporary(target)
            try:
                _write_through(temporary, data)
                _link(temporary, target, path)
            finally:
                remove_unfinished(temporary)
        try:
            _sync_folder(target.parent)
        except OSError as error:
            raise _unknown(path, error) from error

    @contextmanager
    def writer(self, path: str) -> Iterator[ObjectSink]:
        """Write a temporary file, link it into place at the end."""
        target = self._root / path
        with storage_errors(path, writing=True):
            _make_folder(target.parent)
        temporary = _temporary(target)
        with sink_into(temporary, path) as sink:
            yield sink
        with storage_errors(path, writing=True):
            _move_new(temporary, target)

    def read(self, path: str, limit: int | None = None) -> bytes:
        """All bytes; of a file with more than ``limit`` one more than that."""
        with storage_errors(path), self._file(path).open("rb") as file:
            endless = limit is not None and os.fstat(file.fileno()).st_size > limit
            return file.read(limit + 1) if endless and limit is not None else file.read()

    def map(self, path: str, size: int | None) -> pa.Buffer:
        """The bytes of a file, mapped into memory: read when they are used. ``size`` is not needed."""
        with storage_errors(path), pa.memory_map(str(self._file(path))) as source:
            return source.read_buffer()

    def forget(self, path: str) -> None:
        """Do nothing, as local files have no copy on this host."""

    def open_input(self, path: str, size: int | None) -> pa.NativeFile:
        """The file, mapped, for reading here and there."""
        with storage_errors(path):
            return pa.memory_map(str(self._file(path)))

    def local_version(self, path: str) -> tuple[int, ...] | None:
        """Size, times and number of a file, which differ once it is replaced; None where there is none."""
        with storage_errors(path):
            return file_version(f"{self._root}/{path}")  # asked of each file that a step opens: no `Path` is made

    def size(self, path: str) -> int:
        """The size of a file in bytes. Raises `NotFoundError`."""
        with storage_errors(path):
            return self._file(path).stat().st_size

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        with storage_errors(path):
            return (self._root / path).exists()

    def names(self, folder: str) -> list[str]:
        """The names of files and folders in ``folder``, sorted; none where there is no such folder."""
        with storage_errors(folder):
            try:
                return sorted(os.listdir(self._root / folder))
            except FileNotFoundError:
                return []

    def age_us(self, path: str) -> int | None:
        """By the clock of the file system."""
        with storage_errors(path):
            return (clock_ns(self._root) - self._file(path).stat().st_mtime_ns) // 1000

    def changed_us(self, path: str) -> int | None:
        """By the clock of the file system."""
        with storage_errors(path):
            return self._file(path).stat().st_mtime_ns // 1000

    def unfinished(self, folder: str) -> list[tuple[str, int]]:
        """Temporary files below ``folder`` that a kill may have left, and their age in microseconds."""
        found = []
        with storage_errors(folder):
            for place, _, names in os.walk(self._root / folder):
                for name in filter(_TEMPORARY.fullmatch, names):
                    path = Path(place, name)
                    with suppress(FileNotFoundError):  # it has its own name now
                        found.append((path.relative_to(self._root).as_posix(), path.stat().st_mtime_ns))
            now = clock_ns(self._root) if found else 0
        return sorted((path, (now - changed) // 1000) for path, changed in found)

    def settle(self, folder: str) -> None:
        """Sync the folder, and its name."""
        target = self._root / folder
        with storage_errors(folder, writing=True):
            if target.exists():
                _make_folder(target)
                _sync_folder(target)

    def linked(self, folder: str) -> bool:
        """Whether one of the folders on the way, from the root down, is a link."""
        with storage_errors(folder):
            way = (Path(folder), *Path(folder).parents)
            return any((self._root / step).is_symlink() for step in way if step.name)

    def delete(self, path: str) -> None:
        """Unlink a file. A folder in its place is not ours, and stays."""
        self._check_own(path)
        with storage_errors(path, writing=True), suppress(IsADirectoryError):
            (self._root / path).unlink(missing_ok=True)

    def clear(self, folder: str) -> None:
        """Remove a folder with what is in it."""
        self._check_own(f"{folder}/any")
        with storage_errors(folder, writing=True), suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)

    def move(self, folder: str, into: str) -> None:
        """Rename a folder durably; one that does not exist is left out."""
        self._check_own(folder)
        source, target = self._root / folder, self._root / into
        with storage_errors(folder, writing=True):
            _make_folder(target.parent)
            with suppress(FileNotFoundError):
                source.rename(target)
            _sync_folder(target.parent)
            _sync_folder(source.parent)

    def _check_own(self, path: str) -> None:
        """Raise `UsageError` for a name that may be a file of another root."""
        if self.linked(str(PurePosixPath(path).parent)):
            raise UsageError(
                "a folder on the path to this file is a link and may belong to another root, so nothing is "
                "removed there: replace the link with the folder itself, or link to the whole root",
                code="folder-linked",
                path=path,
            )

    def _file(self, path: str) -> Path:
        """The place of a file. Raises `CorruptionError` for a pipe, which would wait for a writer, a folder …"""
        place = self._root / path
        mode = place.stat().st_mode
        if not stat.S_ISREG(mode):
            raise CorruptionError(
                f"found a {_KINDS.get(stat.S_IFMT(mode), 'device')} where a file should be: restore a good copy",
                code="not-a-file",
                path=path,
            )
        return place

    def locate(self, path: str) -> str:
        """The full path of a file on this host."""
        return str(self._root / path)

    def url(self, path: str) -> str:
        """The full path of a file as a URL, ``file://…``."""
        return f"file://{self._root / path}"


def is_local(url: str) -> bool:
    """Whether a root is a folder of this host: a path, or a URL that says so."""
    scheme, separator, _ = url.partition("://")
    return not separator or scheme in ("file", "local")


def local_path(url: str) -> str:
    """The full path that a path or ``file:`` URL means."""
    path = url
    for scheme in ("file:", "local:"):
        path = path.removeprefix(f"{scheme}//").removeprefix(scheme)
    path = os.path.expanduser(path)
    return (path if os.path.isabs(path) else os.path.join(_working_folder(), path)).rstrip("/") or "/"


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the working folder has been removed: give a full path, or change to a folder that exists",
            code="folder-gone",
        ) from None


def file_version(file: str | Path) -> tuple[int, ...] | None:
    """What changes when a local file is replaced or written to; None where there is none."""
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def clock_ns(folder: Path) -> int:
    """The clock that stamps changes in ``folder``: that of a file server may be another than ours, so a file tells it
    that never has a name for long. This host's where none can be made.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return time.time_ns()


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}")


def remove_unfinished(file: Path) -> None:
    """Take away an unfinished file. One that stays is collected later, and hides nothing that went wrong before."""
    with suppress(OSError):
        file.unlink(missing_ok=True)


def _move_new(temporary: Path, target: Path) -> None:
    """Give a finished file its name, unless that is taken; on failure there is neither."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if not _is_same(temporary, target):
            raise _no_links(target, error) or error from None
    finally:
        remove_unfinished(temporary)
    try:
        _sync_folder(target.parent)
    except BaseException:
        remove_unfinished(target)
        raise


_settled: set[tuple[Path, int, int]] = set()
"""Folders, with device and inode, whose names this process knows to survive a power cut, up to the top."""


def _link(temporary: Path, target: Path, path: str) -> None:
    """Give a file its name, unless that is taken. After an error what is there decides: a network file system may
    repeat a request whose reply was lost, and find its own link.
    """
    try:
        os.link(temporary, target)
    except OSError as error:
        made = _is_same(temporary, target)
        if made is None:
            raise _unknown(path, error) from error
        if not made and isinstance(error, FileExistsError):
            _sync_folder(target.parent)  # who made it may have died before: it is taken for good
            raise ConflictError("another writer has created this name already", code="exists", path=path) from None
        if not made:
            raise _no_links(target, error) or error from None


def _no_links(target: Path, error: OSError) -> UsageError | None:
    """What to raise where a file system has no hard links; None if the error says anything else."""
    return unfit(str(target.parent), "refuses hard links") if refuses_links(error) else None


def _is_same(temporary: Path, target: Path) -> bool | None:
    """Whether two names are of one file; None where nobody says."""
    try:
        return temporary.samefile(target)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _unknown(path: str, error: OSError) -> CommitUnknownError:
    return CommitUnknownError(
        f"storage did not confirm that the file was created ({error.strerror}): start again, which finds out",
        code="commit-unknown",
        path=path,
    )


def _make_folder(folder: Path) -> None:
    """Make ``folder`` and make its name durable, level by level; also where it is there already: who made it may have
    died, or not have come so far. Once in a process, as far up as one file system goes.
    """
    there = _identity(folder)
    if there in _settled or folder == folder.parent:
        return
    _make_folder(folder.parent)
    if there is None:
        folder.mkdir(exist_ok=True)
    if there is None or there[1] == folder.parent.stat().st_dev:
        try:
            _sync_folder(folder.parent)
        except PermissionError:
            if there is None:
                raise  # else it is a folder above the root that is not ours
    made = _identity(folder)
    if made is not None:
        _settled.add(made)


def _identity(folder: Path) -> tuple[Path, int, int] | None:
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return folder, found.st_dev, found.st_ino


def settle_files(top: Path, files: Iterable[Path]) -> None:
    """Make files below ``top`` durable that another program has written, and the names of their folders. One that is
    gone is left out. Raises `OSError`.
    """
    folders = {top}
    for file in files:
        with suppress(FileNotFoundError):
            sync_path(file)
            folders |= {folder for folder in file.parents if folder.is_relative_to(top)}
    _make_folder(top)
    for folder in folders:
        with suppress(FileNotFoundError):
            sync_path(folder)


def _write_through(path: Path, data: bytes | pa.Buffer) -> None:
    with open(path, "xb") as file:
        file.write(memoryview(data))
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    sync_path(folder)


def sync_path(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power cut. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
