"""Durable objects under a root, with an atomic create: local files, S3, Google Cloud Storage, Azure, or what else of
fsspec passes a probe.

Only the modules of this folder know fsspec. Local files do not go through it for
writing; see `tidestate.statestore.storage.local`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tidestate.statestore.errors import CorruptionError, IncompatibleError, UsageError
from tidestate.statestore.roots import checked_root
from tidestate.statestore.storage.dialects.table import lending_schemes
from tidestate.statestore.storage.local import LocalStorage, is_local
from tidestate.statestore.storage.options import lent
from tidestate.statestore.storage.sink import ObjectSink

if TYPE_CHECKING:
    from tidestate.statestore.storage.remote import RemoteStorage


class FileWriter(Protocol):
    """Where new files go: to storage at once, or into something that is written as a whole."""

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a new file under a name nobody else uses."""


class Objects:
    """Objects below a root; paths are relative, with forward slashes. An object never changes under its name.

    ``root`` is a local path, ``s3://bucket/prefix``, ``gs://bucket/prefix``,
    ``abfs://container@account.dfs.core.windows.net/prefix``, ``hdfs://nameservice/folder``, ``/Volumes/…`` of
    Databricks, ``memory://name`` (for tests: gone with the process) or another fsspec URL. Endpoint and credentials
    come from the environment and fsspec's configuration. ``copies`` is the local folder for copies of remote objects,
    ``tidestate-copies-<uid>`` in the system's temporary folder by default; it is made for this user alone, and one
    that others may read or write is refused (`UsageError`). When it holds more than ``copies_bytes`` (10 GiB), the
    copies that were not used for the longest time are removed.

    ``bases`` are the roots of other checkpoints whose files this one reads too, see `at`; nothing is written there.

    ``put``, ``create`` and ``writer`` return only when the bytes and the name would survive a power cut. What may
    pass (a time limit, a broken connection, a busy service) is tried again for some seconds on remote storage.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        bases: Sequence[str] = (),
        copies: str = "",
        copies_bytes: int | None = None,
    ) -> None:
        """Touches no storage. Raises `UsageError` for a root that cannot be one, `IncompatibleError` for a base whose
        scheme is neither the root's own nor one of `lending_schemes`: a marker file must not choose what is opened.
        """
        url = checked_root(root)
        self._storage = LocalStorage(url) if is_local(url) else _remote(url, copies, copies_bytes)
        self.root = self._storage.root
        self.bases = tuple(bases)
        _check_bases(url, self.bases)
        self._copies = copies, copies_bytes

    def at(self, number: int) -> Objects:
        """Where a file lies whose manifest says ``root`` number: 0 here, k below the k-th of ``bases``.

        Raises `CorruptionError` for a number that is no root's.
        """
        if number == 0:
            return self
        if not 0 < number <= len(self.bases):
            raise CorruptionError(
                "the manifest names a file in a root that the marker file does not list: restore the matching "
                "copies of both",
                code="base-unknown",
                root=self.root,
                found=number,
                bases=len(self.bases),
            )
        copies, copies_bytes = self._copies
        return Objects(lent(self.bases[number - 1], self.root), copies=copies, copies_bytes=copies_bytes)

    @property
    def atomic_create(self) -> str:
        """How ``create`` is atomic here: ``link``, ``if-none-match``, ``if-generation-match``, ``rename``,
        ``overwrite-false``, ``lock`` (one process only) or ``probed``.
        """
        return self._storage.atomic_create

    @property
    def tells_age(self) -> bool:
        """Whether storage has a clock that it answers with, see `age_us`."""
        return self._storage.tells_age

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a new object under a name nobody else uses. Raises `UnavailableError`; a torn file may remain."""
        self._storage.put(_below(path), data)

    def note(self, path: str, data: bytes) -> None:
        """As ``put``, whole or not at all, but without waiting for the disk: what a power cut may take."""
        self._storage.note(_below(path), data)

    def create(self, path: str, data: bytes) -> None:
        """Publish ``data`` under ``path`` unless the name is taken: exactly one of many racers wins.

        On remote storage ``data`` must contain a write id that no other writer uses: when a reply is lost, the bytes
        that are there tell whose they are, and our own count as success.

        Raises `ConflictError` when the name exists, and will after a power cut too. Raises `UnavailableError` when
        storage refused: nothing happened. Raises `CommitUnknownError` when the name was made but may not survive a
        power cut, or when storage no longer says whether it was made. Raises `UsageError` when the storage turns out
        to have no atomic create.
        """
        self._storage.create(_below(path), data)

    def writer(self, path: str) -> AbstractContextManager[ObjectSink]:
        """A sink for an object too large for memory, under a name nobody else uses.

        After a clean exit the object is there; after an exception, ours or the caller's, nothing is under the name.
        The sink's ``bytes`` and ``checksum`` are then what was written. Raises `UnavailableError`.
        """
        return self._storage.writer(_below(path))

    def read(self, path: str, limit: int | None = None) -> bytes:
        """All bytes of an object. Raises `NotFoundError` or `UnavailableError`.

        Of a local file with more than ``limit`` bytes, one more than that: for who would not take it anyway.
        """
        return self._storage.read(_below(path), limit)

    def map(self, path: str, size: int | None = None) -> pa.Buffer:
        """The object's bytes, mapped: pages are read when they are touched.

        Remote objects are fetched once per host. A copy that has not ``size`` bytes is fetched again; without
        ``size`` storage is asked for it. Raises `NotFoundError` or `UnavailableError`.
        """
        return self._storage.map(_below(path), size)

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        """The object for reading here and there, never fetched whole: a local file or copy mapped, else by ranges.

        What is mapped is the page cache of the host, shared by its processes; pages that were touched count as this
        process' memory until the input is closed and what was read from it is gone. So close it soon. ``size``, where
        it is known, saves a request. Raises `NotFoundError` or `UnavailableError`, reading too.
        """
        return self._storage.open_input(_below(path), size)

    def local_version(self, path: str) -> tuple[int, ...] | None:
        """What tells the local file or copy from another one under its name; None where this host has none."""
        return self._storage.local_version(_below(path))

    def forget(self, path: str) -> None:
        """Drop this host's copy of a remote object, so that it is fetched again: for one that proved damaged."""
        self._storage.forget(_below(path))

    def size(self, path: str) -> int:
        """How many bytes an object has, as the storage says. Raises `NotFoundError` or `UnavailableError`."""
        return self._storage.size(_below(path))

    def exists(self, path: str) -> bool:
        """Whether an object or a folder of this name exists. Raises `UnavailableError`."""
        return self._storage.exists(_below(path))

    def names(self, folder: str, *, hidden: bool = False) -> list[str]:
        """Names of the objects and folders directly in ``folder``, sorted; empty when there is no such folder.

        Names that begin with a dot are unfinished and left out, unless ``hidden``. Raises `UnavailableError`.
        """
        return [name for name in self._storage.names(_below(folder)) if hidden or not name.startswith(".")]

    def age_us(self, path: str) -> int | None:
        """How long ago an object was changed, by the storage's own clock, whatever the hosts' are; None where storage
        does not tell. Raises `NotFoundError` or `UnavailableError`.
        """
        return self._storage.age_us(_below(path))

    def changed_us(self, path: str) -> int | None:
        """When an object was changed, in microseconds since 1970 by the storage's own clock, whose grain may be a
        second; None where storage does not tell. Raises as `age_us`.
        """
        return self._storage.changed_us(_below(path))

    def unfinished(self, folder: str) -> list[tuple[str, int]]:
        """What lies below ``folder`` under the names of writes that have not ended: paths, and how long ago they were
        changed, as `age_us`. A writer that died leaves them on local storage; others have none.
        """
        return self._storage.unfinished(_below(folder))

    def settle(self, folder: str) -> None:
        """Make sure that what lies directly in ``folder`` survives a power cut: its writer may have died before
        its sync. An empty or missing folder is fine. Raises `UnavailableError`.
        """
        self._storage.settle(_below(folder))

    def linked(self, folder: str) -> bool:
        """Whether the way from the root to a local ``folder`` goes through a link: its files may be another root's.
        The root itself may lie behind one. Raises `UnavailableError`.
        """
        return self._storage.linked(_below(folder))

    def delete(self, path: str) -> None:
        """Remove an object and this host's copy of it; one that is missing is fine. Raises `UnavailableError`, and
        `UsageError` (``folder-linked``) where its folder is `linked`.
        """
        self._storage.delete(_below(path))

    def clear(self, folder: str) -> None:
        """Remove a folder with all that lies in it, hidden files too, and this host's copies; one that is missing is
        fine. Who died on the way does it again. Raises as `delete`.
        """
        self._storage.clear(_below(folder))

    def move(self, folder: str, into: str) -> None:
        """All that lies in ``folder``, hidden files too, under a name nobody else uses; nothing there is fine.

        Local: at once. Remote: copied, then deleted; who died on the way does it again. Raises as `delete`.
        """
        self._storage.move(_below(folder), _below(into))

    def locate(self, path: str) -> str:
        """The full path of a local object, else its URL as Spark reads it: for S3 ``s3a://``, for Azure ``abfss://``."""
        return self._storage.locate(_below(path))

    def url(self, path: str) -> str:
        """The object as a URL that Spark reads whatever its default file system is: ``s3a://`` for S3."""
        return self._storage.url(_below(path))


def _remote(url: str, copies: str, copies_bytes: int | None) -> RemoteStorage:
    from tidestate.statestore.storage.remote import RemoteStorage  # fsspec takes a while to import

    return RemoteStorage(url, copies) if copies_bytes is None else RemoteStorage(url, copies, copies_bytes)


def _check_bases(root: str, bases: Sequence[str]) -> None:
    for base in bases:
        scheme = _scheme(base)
        chained = scheme != "file" and "::" in base.removeprefix(scheme)
        allowed = (*lending_schemes(), _scheme(root))
        if chained or scheme not in allowed:
            raise IncompatibleError(
                "the root was forked from one in storage of a kind that a fork may not name: the original must be "
                "in the same kind of storage as its fork, in a folder or in s3, gs or abfs",
                code="base-scheme",
                root=root[:200],
                found=scheme[:200],
                allowed=list(dict.fromkeys(allowed)),
            )


def _scheme(url: str) -> str:
    """All before the last ``://``, so ``a::b`` of a chain too."""
    return "file" if is_local(url) else url.rpartition("://")[0]


@lru_cache(maxsize=4096)
def _below(path: str) -> str:
    """``path`` without detours; the root itself is an empty one."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise UsageError("the path must stay inside the root", code="path-outside", path=path)
    return "/".join(parts.parts)


def put_all(objects: Objects, files: Mapping[str, bytes]) -> None:
    """`Objects.put` for each of ``files``, one after the other."""
    for path, data in files.items():
        objects.put(path, data)
