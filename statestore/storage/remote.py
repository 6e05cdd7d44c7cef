"""Objects of remote storage through fsspec: bounded retries, lost replies resolved, local copies where they pay."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pyarrow as pa

from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    NotFoundError,
    TidestateError,
    UnavailableError,
    UsageError,
)
from tidestate.statestore.roots import check_public
from tidestate.statestore.secrets import Secrets
from tidestate.statestore.storage.connection import check_scheme, connection
from tidestate.statestore.storage.copies import COPIES_BYTES, Copies, RangeReader
from tidestate.statestore.storage.dialects.dialect import Below, Dialect
from tidestate.statestore.storage.dialects.table import canonical_url, dialect_of
from tidestate.statestore.storage.faults import (
    changed_nothing,
    in_our_words,
    is_taken,
    retrying,
    starts_past_the_end,
    storage_errors,
    was_not_sent,
)
from tidestate.statestore.storage.local import remove_unfinished
from tidestate.statestore.storage.options import CarriedRoot, given_options, secrets_of_storage
from tidestate.statestore.storage.private import of_this_user
from tidestate.statestore.storage.probe import probe
from tidestate.statestore.storage.sink import ObjectSink, sink_into

_T = TypeVar("_T")

_probed: set[tuple[int, str]] = set()
_with_container: set[tuple[int, str]] = set()


class RemoteStorage:
    """A prefix in a bucket, or what another fsspec scheme has of that kind."""

    def __init__(self, url: str, copies: str = "", copies_bytes: int = COPIES_BYTES) -> None:
        self._options = given_options(url)
        has_own = bool(self._options) or isinstance(url, CarriedRoot)
        self.root = CarriedRoot(_canonical(url), self._options) if has_own else _canonical(url)
        check_scheme(self.root)
        self.dialect = dialect_of(self.root)
        self.atomic_create = self.dialect.atomic_create
        self.tells_age = self.dialect.age_us is not None
        self._folder = Path(copies) if copies else of_this_user("tidestate-copies")
        self._copies_bytes = copies_bytes

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write the whole object in one call."""
        body = data.to_pybytes() if isinstance(data, pa.Buffer) else data
        self._send(path, lambda fs: fs.pipe_file(self.full(path), body, **self.dialect.upload_limits(len(body))))

    def note(self, path: str, data: bytes) -> None:
        """As any other: storage waits for its disks or not."""
        self.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        """Publish by the storage's own create, and find out what happened when no reply says so."""
        self._check_create()
        creation = _Creation(self, path, data)
        try:
            retrying(self.dialect)(creation.attempt)
        except TidestateError:
            raise
        except Exception as error:
            creation.conclude(error)

    def create_once(self, path: str, data: bytes) -> None:
        """One request to create. Raises whatever storage raises."""
        fs, limits = self._fs(), self.dialect.upload_limits(len(data))
        self._in_folder(fs, path, lambda: self.dialect.create(fs, self.full(path), data, limits))

    def find(self, path: str) -> bytes | None:
        """The bytes that are there now, if any, by one attempt. Raises whatever storage raises."""
        try:
            return bytes(self._fs().cat_file(self.full(path)))
        except FileNotFoundError:
            return None

    @contextmanager
    def writer(self, path: str) -> Iterator[ObjectSink]:
        """Write a local file, send it at the end."""
        temporary = self._copies.temporary(path)
        try:
            with sink_into(temporary, path) as sink:
                yield sink
            limits = self.dialect.upload_limits(sink.bytes)
            self._send(path, lambda fs: self.dialect.put_file(fs, str(temporary), self.full(path), limits))
        finally:
            remove_unfinished(temporary)

    def read(self, path: str, limit: int | None = None) -> bytes:
        """All bytes, however many: to ask how many there are would be one more request."""
        return bytes(self.ask(path, lambda fs: fs.cat_file(self.full(path))))

    def map(self, path: str, size: int | None) -> pa.Buffer:
        """The bytes of an object in memory, from the copy on this host, which is made if there is none."""
        if not self.dialect.shared:  # another process' memory of the same name holds other bytes
            return pa.py_buffer(self.read(path))
        copy = self._copies.open(path, self.size(path) if size is None else size)
        with copy or self._copies.keep(path, lambda to: self._fetch(path, to)) as source:
            return source.read_buffer()

    def forget(self, path: str) -> None:
        """Drop the copy that this host has; the object stays."""
        self._copies.forget(path)

    def open_input(self, path: str, size: int | None) -> pa.NativeFile:
        """The local copy, mapped, where there is one, else a reader that asks for ranges."""
        size = self.size(path) if size is None else size
        copy = self._copies.open(path, size)
        if copy is not None:
            return copy
        return pa.PythonFile(RangeReader(lambda start, end: self._range(path, start, end), size), mode="r")

    def local_version(self, path: str) -> tuple[int, ...] | None:
        """Of the local copy; the object itself is not asked for."""
        return self._copies.version(path)

    def exists(self, path: str) -> bool:
        """Whether an object or a prefix is there."""
        return bool(self.ask(path, lambda fs: self.dialect.exists(_fresh(fs), self.full(path))))

    def names(self, folder: str) -> list[str]:
        """The names of objects and prefixes in ``folder``, sorted; none where there are none."""
        full = self.full(folder)
        try:
            found = self.ask(folder, lambda fs: self.dialect.listed(_fresh(fs), full))
        except NotFoundError:
            return []
        own = full.rstrip("/")  # an empty object called "folder/" is how some tools make a folder
        return sorted({PurePosixPath(entry).name for entry in found if entry.rstrip("/") != own})

    def age_us(self, path: str) -> int | None:
        """By the service's own clock, where it answers with that."""
        age_us = self.dialect.age_us
        return None if age_us is None else self.ask(path, lambda fs: age_us(fs, self.full(path)))

    def unfinished(self, folder: str) -> list[tuple[str, int]]:
        """None where an object is there when it is whole; else what writers have beside the names."""
        unfinished, top = self.dialect.unfinished, len(self.full("")) + 1
        if unfinished is None:
            return []
        found: list[tuple[str, int]] = []
        with suppress(NotFoundError):
            for name in self.ask(folder, lambda fs: unfinished(fs, self.full(folder))):
                with suppress(NotFoundError):  # it has its own name now
                    found.append((name[top:], self.age_us(name[top:]) or 0))
        return sorted(found)

    def changed_us(self, path: str) -> int | None:
        """As the list of objects has it; None of a scheme without times."""
        try:
            changed: datetime = self.ask(path, lambda fs: _fresh(fs).modified(self.full(path)))
        except (NotImplementedError, KeyError, AttributeError):
            return None
        return round(changed.replace(tzinfo=changed.tzinfo or UTC).timestamp() * 1_000_000)

    def settle(self, folder: str) -> None:
        """An object that is there stays."""

    def linked(self, folder: str) -> bool:
        """False: a prefix of objects is no folder, and cannot be a link."""
        return False

    def delete(self, path: str) -> None:
        """Remove the object and this host's copy."""
        self._copies.forget(path)
        self._send(path, lambda fs: _delete(fs, key=self.full(path)))

    def clear(self, folder: str) -> None:
        """Remove what is below, with the empty objects that stand for folders."""
        self._remove(folder, self._below(folder))

    def move(self, folder: str, into: str) -> None:
        """Copy what is below, then delete it, with the empty objects that stand for folders: Hadoop leaves some."""
        below = self._below(folder)
        for name in below.objects:
            old, new = self.full(f"{folder}/{name}"), self.full(f"{into}/{name}")
            self._send(f"{into}/{name}", partial(_copy, self.dialect, old=old, new=new))
        self._remove(folder, below)

    def locate(self, path: str) -> str:
        """The object's URL for Hadoop, which has other names for some services."""
        return self.dialect.hadoop(self._named(path), self._options)

    def url(self, path: str) -> str:
        """The URL of an object, which is also its location."""
        return self.locate(path)

    def words(self, error: Exception, path: str) -> TidestateError:
        """The error of a request that writes, in this project's words."""
        return in_our_words(error, path, writing=True, dialect=self.dialect, secrets=self._secrets)

    def cause(self, error: Exception) -> BaseException | None:
        """The error of a request as the cause of ours; none where it quotes a secret."""
        return self._secrets.cause(error)

    @property
    def _secrets(self) -> Secrets:
        return secrets_of_storage(self._options)

    def _errors(self, path: str, *, writing: bool = False) -> AbstractContextManager[None]:
        return storage_errors(path, writing=writing, dialect=self.dialect, secrets=self._secrets)

    def _named(self, path: str) -> str:
        return f"{self.root}/{path}" if path else str(self.root)

    def _in_folder(self, fs: Any, path: str, write: Callable[[], Any]) -> None:
        """Write; where the storage has real folders, make the one that is missing. A bucket is never made."""
        try:
            write()
        except FileNotFoundError:
            if not self.dialect.has_folders:
                raise
            fs.makedirs(fs._parent(self.full(path)), exist_ok=True)
            write()

    @property
    def _copies(self) -> Copies:
        # Bytes of another server are others, whatever the name.
        return Copies(self._folder, f"{self._server()} {self.root}", self._copies_bytes)

    def _server(self) -> str:
        return self.dialect.server(self.root, self._options)

    @property
    def _asked(self) -> tuple[int, str]:
        """By what is remembered what a process knows of a root; of one with options, on their server."""
        return os.getpid(), f"{self._server()} {self.root}" if self._options else self.root

    def _below(self, folder: str) -> Below:
        """What lies below a folder, objects by their names there."""
        full = self.full(folder)
        try:
            below = self.ask(folder, lambda fs: self.dialect.below(_fresh(fs), full))
        except NotFoundError:
            return Below([], [])
        return Below([name[len(full) + 1 :] for name in below.objects], below.folders)

    def _remove(self, folder: str, below: Below) -> None:
        for name in below.objects:
            self.delete(f"{folder}/{name}")
        for name in below.folders:
            self._send(folder, partial(_delete, key=name))

    def _fetch(self, path: str, to: str) -> None:
        self.ask(path, lambda fs: fs.get_file(self.full(path), to))

    def _range(self, path: str, start: int, end: int) -> bytes:
        try:
            return bytes(self.ask(path, lambda fs: fs.cat_file(self.full(path), start=start, end=end)))
        except UnavailableError as error:
            if not starts_past_the_end(error, self.dialect):
                raise
            return b""  # the object ends before: what is missing is for the reader to notice

    def size(self, path: str) -> int:
        """The size of the object now."""
        info = self.ask(path, lambda fs: _fresh(fs).info(self.full(path)))
        if info["type"] != "file":
            with self._errors(path):
                raise FileNotFoundError(path)
        return int(info["size"])

    def ask(self, path: str, act: Callable[[Any], _T]) -> _T:
        """What ``act`` reads by the file system of this root, tried again as storage errors allow. Raises this
        project's errors.
        """
        with self._errors(path):
            try:
                return retrying(self.dialect)(lambda: act(self._fs()))
            except FileNotFoundError as error:
                self._check_container(path, error)
                raise

    def _send(self, path: str, act: Callable[[Any], None]) -> None:
        """Only for what may be carried out twice."""

        def attempt() -> None:
            fs = self._fs()
            self._in_folder(fs, path, lambda: act(fs))

        with self._errors(path, writing=True):
            retrying(self.dialect)(attempt)

    def _check_container(self, path: str, error: Exception) -> None:
        """Raise `UnavailableError` when not the object is missing but its bucket; asked until it was there once."""
        has_container, asked = self.dialect.has_container, self._asked
        if has_container is None or asked in _with_container:
            return
        try:
            is_there = retrying(self.dialect)(lambda: has_container(self._fs(), self.full("")))
        except Exception:  # who may not list has asked for an object all the same, and that is missing
            return
        if not is_there:
            raise self.words(error, path) from self.cause(error)
        _with_container.add(asked)

    def _check_create(self) -> None:
        asked = self._asked
        if self.dialect.shared and asked not in _probed:
            with self._errors("probe", writing=True):
                fs = self._fs()
                probe(fs, str(fs._strip_protocol(str(self.root))), self.root.partition("://")[0], self.dialect)
            _probed.add(asked)

    def _fs(self) -> Any:
        return connection(self.root, self._options)

    def full(self, path: str) -> str:
        """The name of an object as the file system of this root has it."""
        return str(self._fs()._strip_protocol(self._named(path)))


class _Creation:
    """The attempts to create one object, and what is known about them."""

    def __init__(self, storage: RemoteStorage, path: str, data: bytes) -> None:
        self._storage = storage
        self._path = path
        self._data = data
        self._unknown = False

    def attempt(self) -> None:
        try:
            self._storage.create_once(self._path, self._data)
        except Exception as error:
            taken = is_taken(error, self._storage.dialect)
            if taken and not self._storage.dialect.shared:  # within a process no reply is lost
                raise self._conflict() from None
            # Even a name that is taken may be our own: HTTP clients send a request again when a connection breaks.
            self._unknown = self._unknown or taken or not changed_nothing(error, self._storage.dialect)
            if not self._unknown:
                raise
            self._resolve(error, taken)

    def _resolve(self, error: Exception, taken: bool) -> None:
        """Find out whether an attempt that failed has created the object: if it is there, its content decides, else
        the error.
        """
        found = self._storage.find(self._path)
        if found == self._data:
            return
        if found is not None or taken:
            raise self._conflict() from None
        raise error

    def _conflict(self) -> ConflictError:
        return ConflictError("another writer has created this name already", code="exists", path=self._path)

    def conclude(self, error: Exception) -> None:
        """When no attempt has succeeded: raise what is known about it, unless the object turns out to be there."""
        if not self._unknown and not was_not_sent(error, self._storage.dialect):
            # Clients send a request again when a connection breaks: a refusal may be the answer to the second one,
            # and the first may have created the object.
            try:
                stored = self._storage.find(self._path)
            except Exception:
                self._unknown = True
            else:
                if stored == self._data:
                    return
                if stored is not None:
                    raise self._conflict() from None
        raise self._failure(error) from self._storage.cause(error)

    def _failure(self, error: Exception) -> TidestateError:
        words = self._storage.words(error, self._path)
        if not self._unknown:
            return words
        return CommitUnknownError(
            f"{words.message}; the object may have been created all the same: start again, which finds out",
            code="commit-unknown",
            path=self._path,
        )


def _canonical(url: str) -> str:
    """One spelling for one place."""
    check_public(url)
    dialect_of(url).check(url)
    canonical = canonical_url(url)
    if canonical.endswith("://"):
        raise UsageError("the root names no bucket or folder: add one", code="root-url", root=url)
    return canonical


def _copy(dialect: Dialect, fs: Any, *, old: str, new: str) -> None:
    dialect.copy(fs, old, new)


def _delete(fs: Any, *, key: str) -> None:
    with suppress(FileNotFoundError):
        fs.rm_file(key)


def _fresh(fs: Any) -> Any:
    """Without what it remembers of earlier lists: others write too."""
    fs.invalidate_cache()
    return fs
