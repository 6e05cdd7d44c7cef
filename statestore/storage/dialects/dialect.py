"""The record that describes a kind of remote storage, and what holds where nothing is known of it.

What differs between services is here and in the modules beside this one, so that `RemoteStorage` asks the record and
never looks at a scheme. Its functions get the file system of fsspec that `Dialect.connect` has made, and raise what
that raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

CONNECT_SECONDS = 4
"""How long a connection may take."""
SILENCE_SECONDS = 8
"""How long a service may say nothing after a request."""
UPLOAD_SECONDS = 10.0
UPLOAD_SPEED = 1 << 20
"""Bytes a second below which an upload counts as stuck, after the first ten seconds."""

FRESH: Mapping[str, bool] = {"use_listings_cache": False, "skip_instance_cache": True}
"""For fsspec, which would hand out an instance made with yesterday's environment, and lists from before a write."""


class Below(NamedTuple):
    """What lies below a folder, by full names."""

    objects: list[str]
    folders: list[str]
    """Empty objects that stand for folders, in an order in which they can be removed when the others are gone."""

    @staticmethod
    def of(names: Iterable[str]) -> Below:
        """Where a name that ends with a slash stands for a folder."""
        listed = list(names)
        return Below(
            [name for name in listed if not name.endswith("/")], [name for name in listed if name.endswith("/")]
        )


class SeenFile(NamedTuple):
    """What storage says of a file that others may replace at any time."""

    size: int
    version: str
    """What tells its bytes from others under the name, such as an ETag."""
    changed_s: int
    """When it was written, in whole seconds since 1970: HTTP says no more."""


class Versions(NamedTuple):
    """How a file is read as it was when it was looked at, for services that can be asked for that."""

    look: Callable[[Any, str], SeenFile]
    """What a file is now: file system, full name."""
    read: Callable[[Any, str, int, int, str], bytes]
    """A range of a version: file system, full name, start, end, version. Raises where that is there no more."""


class Reply(NamedTuple):
    """What a service has answered, as far as an error tells. Statuses are those of HTTP, whatever it speaks."""

    code: str | None = None
    status: int | None = None


@dataclass(frozen=True)
class ErrorNames:
    """Classes of errors of a library, which is an extra and so not imported, by their names."""

    passing: frozenset[str] = frozenset(
        {"ClientConnectionError", "ClientPayloadError", "ConnectionError", "IncompleteRead", "TimeoutError"}
    )
    """The connection broke or nobody answered: the same request may succeed a moment later."""
    unsent: frozenset[str] = frozenset({"ClientConnectorError"})
    """No connection was made, so the request was not carried out."""
    credentials: frozenset[str] = frozenset()
    """There are no credentials, so nothing was sent."""


def _spelled(rest: str) -> str:
    return rest.rstrip("/")


def _connect(root: str, options: Mapping[str, Any]) -> Any:
    from fsspec.core import url_to_fs

    return url_to_fs(root, **{**options, **FRESH})[0]


def _create(fs: Any, full: str, data: bytes, limits: Mapping[str, Any]) -> None:
    fs.pipe_file(full, data, mode="create", **limits)


def _put_file(fs: Any, local: str, full: str, limits: Mapping[str, Any]) -> None:
    fs.put_file(local, full, **limits)


def _copy(fs: Any, old: str, new: str) -> None:
    fs.cp_file(old, new)


def _exists(fs: Any, full: str) -> bool:
    # Not by its `exists`, which may take any error for an answer.
    try:
        fs.info(full)
    except FileNotFoundError:
        return False
    return True


def _listed(fs: Any, full: str) -> list[str]:
    found: list[str] = fs.ls(full, detail=False)
    return found


def _below(fs: Any, full: str) -> Below:
    return Below.of(fs.find(full))


def below_in_folders(fs: Any, full: str) -> Below:
    """What lies below a folder of storage with real ones, whose ``entries`` say what is one."""
    objects, folders = [], [f"{full}/"]
    for name, is_folder in fs.entries(full):
        if is_folder:
            below = below_in_folders(fs, name)
            objects += below.objects
            folders += below.folders
        else:
            objects.append(name)
    # A folder can be removed when nothing is in it, so the deepest first.
    return Below(objects, sorted(folders, reverse=True))


def bounded_upload(size: int) -> Mapping[str, Any]:
    """The argument by which fsspec itself ends an upload that makes no progress."""
    return {"timeout": UPLOAD_SECONDS + size / UPLOAD_SPEED}


def _unlimited(size: int) -> Mapping[str, Any]:
    return {}


def reply_of_http(error: BaseException) -> Reply | None:
    """Of one error, not of its cause: what botocore or aiohttp notes of a reply; None where it notes none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return Reply(response.get("Error", {}).get("Code"), status)
    status = getattr(error, "status", None)
    return Reply(None, status) if isinstance(status, int) else None


def age_when_answered(date: str | None, changed: datetime) -> int | None:
    """How old an object was when the service answered, in microseconds: by the time that its reply names, in whole
    seconds; None where it names none.
    """
    return None if date is None else max(0, (parsedate_to_datetime(date) - changed) // timedelta(microseconds=1))


def _nowhere(root: str, options: Mapping[str, Any]) -> str:
    return ""


def _as_it_is(url: str, options: Mapping[str, Any]) -> str:
    return url


def _check(url: str) -> None:
    return None


def _itself(root: str) -> str:
    return root


@dataclass(frozen=True)
class Dialect:
    """A kind of storage. The defaults are what is assumed of a scheme that is in no table."""

    scheme: str = ""
    """The one spelling that roots are stored and compared with."""
    aliases: tuple[str, ...] = ()
    """Other schemes of the same places."""
    package: str = ""
    """The module that speaks it, which tasks import."""
    extra: str = ""
    """Of this distribution, with that module; none if it is fsspec's own, or is not known."""
    connector: str = "its connector for Hadoop"
    """What Spark needs for it, beside what PySpark brings."""
    spark_settings: tuple[str, ...] = ()
    """Settings of Spark for its own checkpoint there, ``NAME=VALUE`` each. ``{hadoop}`` is the version of Spark's
    Hadoop, ``{account}`` the host in ``abfss://container@host/…``; words in capitals are for the reader to fill in.
    """
    spark_server_settings: tuple[str, ...] = ()
    """Further ones where the service has an address of its own, which is ``{server}``."""
    environment: tuple[str, ...] = ()
    """How the names of variables begin that hold endpoint and credentials."""
    lends: bool = False
    """Whether the marker of a root in any storage may name one here as the original that it was forked from."""
    shared: bool = True
    """Whether other processes see the same objects. Where they do, a create may lose its reply, and copies pay."""
    has_folders: bool = True
    """Whether a folder must be made before an object in it can be."""

    atomic_create: str = "probed"
    """How names are created atomically, as the marker of a root notes it."""
    races: bool = True
    """Whether the probe of a new root lets creators race. A service that is known keeps its word about races, but a
    server that only speaks its protocol may not know the condition at all, so one is always probed in turn."""
    create: Callable[[Any, str, bytes, Mapping[str, Any]], None] = _create
    """Create an object unless its name is taken, by one request: file system, full name, bytes, limits."""
    upload_limits: Callable[[int], Mapping[str, Any]] = _unlimited
    """What bounds an upload of so many bytes, as arguments of the file system."""
    put_file: Callable[[Any, str, str, Mapping[str, Any]], None] = _put_file
    """Send a local file under a name nobody else uses: file system, local path, full name, limits."""
    copy: Callable[[Any, str, str], None] = _copy
    """Copy an object, whole when this returns."""
    exists: Callable[[Any, str], bool] = _exists
    """Whether an object or a folder is there."""
    listed: Callable[[Any, str], list[str]] = _listed
    """The full names directly in a folder; none, or `FileNotFoundError`, if it is not there."""
    below: Callable[[Any, str], Below] = _below
    """What lies below a folder at any depth; none, or `FileNotFoundError`, if it is not there."""

    reply: Callable[[BaseException], Reply | None] = reply_of_http
    """What the service has answered, of one error without its causes; None where that is no answer."""
    names: ErrorNames = field(default_factory=ErrorNames)
    throttled: frozenset[str] = frozenset()
    """Codes that mean: later. Nothing was carried out."""
    taken: frozenset[str] = frozenset()
    """Codes of a status 409 that mean: the name is taken. Any other 409 is: try again."""
    refused: frozenset[str] = frozenset()
    """Codes that mean: these credentials are none, whatever the status is."""
    no_container: frozenset[str] = frozenset()
    """Codes that mean: there is no such bucket, so what was asked for may not be missing but out of reach."""

    has_container: Callable[[Any, str], bool] | None = None
    """Whether the bucket of a name exists, for services whose errors do not tell it from a missing object."""

    unfinished: Callable[[Any, str], list[str]] | None = None
    """The full names of writes below a folder that have not ended, where a writer that dies leaves some."""
    age_us: Callable[[Any, str], int | None] | None = None
    """How old an object is by the service's own clock; none where it does not answer with its time."""
    versions: Versions | None = None
    """How files of others are read; none where a range of a version cannot be asked for."""

    check: Callable[[str], None] = _check
    """Raise `UsageError` for the URL of a root that this storage cannot have."""
    spelled: Callable[[str], str] = _spelled
    """What follows the ``://`` of a root in its one spelling."""
    hadoop: Callable[[str, Mapping[str, Any]], str] = _as_it_is
    """A URL in that spelling as Hadoop has it, whose file systems Spark's own checkpoint goes through."""
    connect: Callable[[str, Mapping[str, Any]], Any] = _connect
    """A file system of fsspec for a root, with these options and the credentials of this environment."""
    account: Callable[[str], str] = _itself
    """What of a root decides which connection it needs."""
    server: Callable[[str, Mapping[str, Any]], str] = _nowhere
    """The address of the service of a root, if the same name means another place at another one."""


UNTRIED = Dialect()
"""A scheme that nobody has tried here: its file system must show that it can create atomically."""
