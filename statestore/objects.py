"""The one module that owns fsspec: durable objects under a root, with an atomic create of our own.

fsspec's ``mode="create"`` on local disk is exists-then-write, and it never calls fsync; both matter here, so
the local scheme writes through the operating system. Any other scheme is refused until it has an atomic create.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pyarrow as pa
from fsspec import available_protocols
from fsspec.core import split_protocol, url_to_fs

from statestore.errors import CommitUnknownError, ConflictError, NotFoundError, UnavailableError, UsageError


class Objects:
    """Objects below a root URL; paths are relative, with forward slashes.

    ``put`` and ``create`` return only when the bytes and the name would survive a power cut.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        url = os.fspath(root)
        protocol, _ = split_protocol(url)
        if protocol is not None and protocol not in available_protocols():
            raise UsageError("no storage has this scheme: give a local path", code="root-url", root=url)
        if protocol not in (None, "file", "local"):
            raise UsageError(
                "this storage has no atomic create here: use a local path for the checkpoint root",
                code="no-atomic-create",
                scheme=protocol,
            )
        self._fs, path = url_to_fs(url)
        self.root = path
        self._root = Path(path)

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a new object under a name nobody else uses. Raises `UnavailableError`; a torn file may remain."""
        target = self._locate(path)
        with _storage_errors(path):
            self._make_folder(target.parent)
            _write_through(target, data)
            _sync_folder(target.parent)

    def create(self, path: str, data: bytes) -> None:
        """Publish ``data`` under ``path`` unless the name is taken: exactly one of many racers wins.

        Raises `ConflictError` when the name exists, `UnavailableError` when storage refused: nothing happened.
        Raises `CommitUnknownError` when the name was made but may not survive a power cut.
        """
        target = self._locate(path)
        with _storage_errors(path):
            self._make_folder(target.parent)
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
            try:
                _write_through(temporary, data)
                os.link(temporary, target)
            except FileExistsError:
                raise ConflictError("the name is taken", code="exists", path=path) from None
            finally:
                temporary.unlink(missing_ok=True)
        try:
            _sync_folder(target.parent)
        except OSError as error:
            raise CommitUnknownError(
                f"made, but storage did not confirm it ({error.strerror}): start again, what is there counts",
                code="commit-unknown",
                path=path,
            ) from error

    def read(self, path: str) -> bytes:
        """All bytes of an object. Raises `NotFoundError` or `UnavailableError`."""
        with _storage_errors(path):
            data: bytes = self._fs.cat_file(str(self._locate(path)))
            return data

    def map(self, path: str) -> pa.Buffer:
        """The object's bytes, mapped where the storage allows it: pages are read when they are touched."""
        with _storage_errors(path), pa.memory_map(str(self._locate(path))) as source:
            return source.read_buffer()

    def exists(self, path: str) -> bool:
        """Whether an object or a folder of this name exists."""
        with _storage_errors(path):
            return bool(self._fs.exists(str(self._locate(path))))

    def names(self, folder: str) -> list[str]:
        """Names of the objects directly in ``folder``, sorted; empty when there is no such folder."""
        with _storage_errors(folder):
            try:
                found = self._fs.ls(str(self._locate(folder)), detail=False)
            except FileNotFoundError:
                return []
            return sorted(name for entry in found if not (name := PurePosixPath(entry).name).startswith("."))

    def locate(self, path: str) -> str:
        """The full path of an object, for readers outside this project."""
        return str(self._locate(path))

    def url(self, path: str) -> str:
        """The object as a URL that Spark reads alike whatever its default file system is."""
        return f"file://{self._locate(path)}"

    def _locate(self, path: str) -> Path:
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts:
            raise UsageError("a path must stay below the root", code="path-outside", path=path)
        return self._root / parts

    def _make_folder(self, folder: Path) -> None:
        """Make ``folder`` and make its name durable, level by level."""
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for child in reversed(missing):
            child.mkdir(exist_ok=True)
            _sync_folder(child.parent)


def _write_through(path: Path, data: bytes | pa.Buffer) -> None:
    with open(path, "xb") as file:
        file.write(memoryview(data))
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_MISSING = (FileNotFoundError,)


@contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    """Turn what the operating system says into this project's errors."""
    try:
        yield
    except _MISSING:
        raise NotFoundError("no such object", code="no-object", path=path) from None
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
        raise UnavailableError(
            f"storage refused ({(error.strerror or str(error)).lower()}): "
            "check that the folder exists, has room and may be written",
            code="storage",
            path=path,
            reason=reason,
        ) from error
