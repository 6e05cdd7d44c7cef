"""HDFS, by hdfs-native, which needs no Java: ``hdfs://HOST:PORT/path`` or ``hdfs://NAMESERVICE/path``.

A create writes a file beside the name and renames it, which the name node refuses where the name is taken: the
protocol of local files with another verb. To create a file under its own name would leave an empty one when its
writer dies. The library is of Rust: what the name node refuses is a ``RuntimeError`` with the name of a Java class, a
broken connection an ``OSError`` without a number, whether the request was carried out or not.

It has no time limits of its own, so each call is made in a thread that is given up after some seconds. A request that
was given up may still be carried out; what is there then decides, as after any other reply that was lost.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.dialects.dialect import (
    SILENCE_SECONDS,
    Dialect,
    Reply,
    below_in_folders,
    bounded_upload,
)

_T = TypeVar("_T")

_SETTINGS = {"dfs.client.failover.max.attempts": "3"}
"""Of hdfs-native, which would ask a name node that is not there fifteen times. Those of ``HADOOP_CONF_DIR`` count
too, and the ones of a connection's options before all.
"""
_REFUSAL = re.compile(r'RPCError\("(?:[\w$]+\.)*([\w$]+)", "(.*)', re.DOTALL)
_STATUSES = {
    "AccessControlException": 403,
    "IOException": 503,
    "InvalidToken": 401,
    "RetriableException": 503,
    "SafeModeException": 503,
    "StandbyException": 503,
    "NSQuotaExceededException": 403,
    "DSQuotaExceededException": 403,
}
"""Of exceptions of the name node; any other is 400: it was not carried out, and will not be. A bare ``IOException``
says anything, such as that all data nodes are busy.
"""
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")
_CHUNK_BYTES = 4 << 20
_CLEANING_SECONDS = 1
"""How long to wait for a removal where a call has had no answer already."""


class HdfsReplyError(OSError):
    """A refusal of the name node, by the name of its exception."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.status = code, _STATUSES.get(code, 400)


class HdfsFiles:
    """The part of a file system of fsspec that `RemoteStorage` asks for. Names are full paths without the server."""

    def __init__(self, server: str, settings: Mapping[str, Any]) -> None:
        from hdfs_native import Client

        merged = {**_SETTINGS, **{name: str(value) for name, value in settings.items()}}
        self.client = _bounded(lambda: Client(f"hdfs://{server}", merged))

    @staticmethod
    def _strip_protocol(url: str) -> str:
        return "/" + url.partition("://")[2].partition("/")[2].strip("/")

    @staticmethod
    def _parent(path: str) -> str:
        return str(PurePosixPath(path).parent)

    def invalidate_cache(self) -> None:
        """Do nothing: no list is kept."""

    def pipe_file(self, path: str, value: bytes, timeout: float = SILENCE_SECONDS) -> None:
        """Write a file, durably; a torn one may remain."""
        _bounded(lambda: self._write(path, [value]), timeout)

    def create_file(self, path: str, value: bytes, timeout: float) -> None:
        """Write a file beside the name and rename it. Raises `FileExistsError`; then nothing has changed."""
        self._renamed(path, [value], timeout, overwrite=False)

    def put_file(self, local: str, path: str, timeout: float) -> None:
        """Send a local file under a name of its own, which has all of it or is not there."""
        self._renamed(path, _chunks(local), timeout, overwrite=True)

    def _renamed(self, path: str, parts: Any, timeout: float, *, overwrite: bool) -> None:
        folder, _, name = path.rpartition("/")
        beside = f"{folder}/.{name}.{uuid.uuid4().hex}"
        try:
            _bounded(lambda: self._write(beside, parts), timeout)
            _bounded(lambda: self.client.rename(beside, path, overwrite))
        except BaseException as error:
            seconds = _CLEANING_SECONDS if isinstance(error, TimeoutError) else SILENCE_SECONDS
            with suppress(Exception):  # what stays is collected later
                _bounded(lambda: self.client.delete(beside, False), seconds)
            raise

    def _write(self, path: str, parts: Any) -> None:
        from hdfs_native import WriteOptions

        with self.client.create(path, WriteOptions(overwrite=True, create_parent=True)) as file:
            for part in parts:
                if part:
                    file.write(part)
            file.hsync()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file, or of a part of it as far as it goes."""

        file = _bounded(lambda: self.client.read(path))
        size = file.size
        first, last = min(start or 0, size), size if end is None else min(end, size)
        if last <= first:  # the library panics beyond the end
            return b""
        seconds = bounded_upload(last - first)["timeout"]
        return bytes(_bounded(lambda: file.read_range(first, last - first), seconds))

    def get_file(self, path: str, local: str) -> None:
        """Fetch a file into a new local one."""

        def fetch() -> None:
            reader = self.client.read(path)
            size = reader.size
            with open(local, "wb") as file:
                for start in range(0, size, _CHUNK_BYTES):
                    file.write(reader.read_range(start, min(_CHUNK_BYTES, size - start)))

        _bounded(fetch, bounded_upload(self.info(path)["size"])["timeout"])

    def rm_file(self, path: str) -> None:
        """Remove a file, or a folder whose name ends with a slash, if it is empty."""
        _bounded(lambda: self.client.delete(path.rstrip("/"), False))

    def rmdir(self, path: str) -> None:
        """Remove a folder that has to be empty."""
        _bounded(lambda: self.client.delete(path, False))

    def makedirs(self, path: str, exist_ok: bool = True) -> None:
        """Make a folder and those above it."""
        _bounded(lambda: self.client.mkdirs(path, 0o755, True))

    def info(self, path: str) -> dict[str, Any]:
        """Type, size and time of a file or folder. Raises `FileNotFoundError`."""
        status = _bounded(lambda: self.client.get_file_info(path))
        kind = "directory" if status.isdir else "file"
        return {"name": path, "type": kind, "size": status.length, "modified_ms": status.modification_time}

    def modified(self, path: str) -> datetime:
        """When a file was written, by the name node's clock, in milliseconds."""
        return datetime.fromtimestamp(self.info(path)["modified_ms"] / 1000, UTC)

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """The full names directly in a folder, and whether each is a folder. Raises `FileNotFoundError`."""
        listed = _bounded(lambda: list(self.client.list_status(path, False)), SILENCE_SECONDS * 2)
        return [(str(status.path), bool(status.isdir)) for status in listed]

    def ls(self, path: str, detail: bool = False) -> list[str]:
        """The full names directly in a folder."""
        return [name for name, _ in self.entries(path)]


def _chunks(local: str) -> Iterator[bytes]:
    with open(local, "rb") as file:
        while part := file.read(_CHUNK_BYTES):
            yield part


def _bounded(act: Callable[[], _T], seconds: float = SILENCE_SECONDS) -> _T:
    """What a call returns, or raises in words of HTTP. Raises `TimeoutError` after so many seconds: the thread of the
    call is left alone, and does not keep the process alive.
    """
    outcomes: list[Callable[[], _T]] = []

    def run() -> None:
        try:
            result = act()
        except BaseException as error:  # Rust's panics are no `Exception`
            failure = error

            def fail() -> _T:
                raise failure

            outcomes.append(fail)
        else:
            outcomes.append(lambda: result)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcomes:
        raise TimeoutError(f"hdfs did not answer in {seconds:.0f} s")
    with _translated():
        return outcomes[0]()


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the library without the stack of the name node, which they carry as text."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, TimeoutError) as error:
        raise type(error)(_first_line(error)) from None
    except RuntimeError as error:
        refusal = _REFUSAL.search(str(error))
        if refusal is None:
            raise OSError(_first_line(error)) from None
        raise HdfsReplyError(refusal[1], refusal[2].partition("\\n")[0].rstrip('")')) from None
    except (KeyboardInterrupt, SystemExit, Exception):
        raise
    except BaseException as error:  # a panic
        raise OSError(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _check(url: str) -> None:
    rest = url.partition("://")[2]
    if not rest.partition("/")[0] or not rest.partition("/")[2]:
        raise UsageError(
            "the root names no name node or no folder: write hdfs://NAMESERVICE/path or hdfs://HOST:PORT/path",
            code="root-url",
            root=url,
        )


def _server(root: str) -> str:
    return root.partition("://")[2].partition("/")[0]


def _connect(root: str, options: Mapping[str, Any]) -> HdfsFiles:
    return HdfsFiles(_server(root), options)


def _create(fs: HdfsFiles, full: str, data: bytes, limits: Mapping[str, Any]) -> None:
    fs.create_file(full, data, limits["timeout"])


def _put_file(fs: HdfsFiles, local: str, full: str, limits: Mapping[str, Any]) -> None:
    fs.put_file(local, full, limits["timeout"])


def _copy(fs: HdfsFiles, old: str, new: str) -> None:
    """By way of this process: HDFS has no copy."""
    data = fs.cat_file(old)
    fs.pipe_file(new, data, bounded_upload(len(data))["timeout"])


def _reply(error: BaseException) -> Reply | None:
    return Reply(error.code, error.status) if isinstance(error, HdfsReplyError) else None


def _age_us(fs: HdfsFiles, full: str) -> int | None:
    """By the clock of the name node, which an empty file tells that is removed again."""
    changed_ms = int(fs.info(full)["modified_ms"])
    folder, _, name = full.rpartition("/")
    beside = f"{folder}/.{name}.{uuid.uuid4().hex}"
    try:
        fs.pipe_file(beside, b"")
        now_ms = int(fs.info(beside)["modified_ms"])
    except HdfsReplyError:  # who may not write has no clock
        return None
    finally:
        with suppress(OSError):
            fs.rm_file(beside)
    return max(0, now_ms - changed_ms) * 1000


def _unfinished(fs: HdfsFiles, full: str) -> list[str]:
    return [name for name in below_in_folders(fs, full).objects if _UNFINISHED.fullmatch(PurePosixPath(name).name)]


HDFS = Dialect(
    scheme="hdfs",
    package="hdfs_native",
    extra="hdfs",
    connector="the address of the name node, or HADOOP_CONF_DIR with it",
    environment=("HADOOP_", "KRB5"),
    # A marker could lead to any server, which would get the name, or the ticket, of who opens the root.
    lends=False,
    has_folders=True,
    atomic_create="rename",
    races=True,
    create=_create,
    upload_limits=bounded_upload,
    put_file=_put_file,
    copy=_copy,
    listed=HdfsFiles.ls,
    below=below_in_folders,
    reply=_reply,
    unfinished=_unfinished,
    age_us=_age_us,
    check=_check,
    connect=_connect,
    account=_server,
)
