"""HDFS: what its dialect makes of errors, and a real small cluster, on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.races import processes_race, threads_race
from tests.servers.hdfs import HdfsServer
from tests.servers.hdfs import hdfs_root as hdfs_root
from tests.servers.hdfs import hdfs_server as hdfs_server
from tidestate.recovery.inspect.root_trial import try_root
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage.dialects import hdfs
from tidestate.statestore.storage.dialects.hdfs import HDFS, HdfsFiles, HdfsReplyError, _bounded
from tidestate.statestore.storage.faults import changed_nothing, in_our_words, is_taken, may_pass
from tidestate.statestore.storage.objects import Objects

STACK = "\n\tat org.apache.hadoop.hdfs.server.namenode.FSNamesystem.delete(FSNamesystem.java:3388)\n"


def refusal(kind: str, message: str) -> RuntimeError:
    """An error as hdfs-native raises it."""
    text = message.replace("\n", "\\n").replace("\t", "\\t")
    return RuntimeError(f'RPCError("org.apache.hadoop.{kind}", "{text}")')


def raising(error: BaseException) -> Callable[[], Any]:
    def call() -> None:
        raise error

    return call


def translated(error: BaseException) -> Exception:
    with pytest.raises(Exception) as caught:
        _bounded(raising(error))
    return caught.value


def test_a_refusal_is_read_from_its_text() -> None:
    error = translated(refusal("security.AccessControlException", f'Permission denied: inode="/a"{STACK}'))
    assert isinstance(error, HdfsReplyError)
    assert (error.code, error.status) == ("AccessControlException", 403)
    assert "\n" not in str(error)
    assert "namenode" not in str(error)
    words = in_our_words(error, "m/1", writing=True, dialect=HDFS)
    assert words.message.startswith("storage refused access (accesscontrolexception: permission denied")
    assert (may_pass(error, HDFS), changed_nothing(error, HDFS)) == (False, True)


@pytest.mark.parametrize("kind", ["ipc.RetriableException", "hdfs.server.namenode.SafeModeException"])
def test_what_may_pass(kind: str) -> None:
    assert may_pass(translated(refusal(kind, f"later{STACK}")), HDFS)


def test_a_name_that_is_taken() -> None:
    error = translated(FileExistsError(f"rename destination /a already exists{STACK}"))
    assert is_taken(error, HDFS)
    assert str(error) == "rename destination /a already exists"


def test_a_broken_connection_says_nothing() -> None:
    error = translated(OSError("RPC listener disconnected"))
    assert (may_pass(error, HDFS), changed_nothing(error, HDFS), is_taken(error, HDFS)) == (True, False, False)
    assert isinstance(translated(RuntimeError("something else")), OSError)


class PanicError(BaseException):
    """An error as a panic of Rust is."""


def test_a_panic_and_a_call_without_an_end_are_errors() -> None:
    assert isinstance(translated(PanicError("cannot seek")), OSError)
    with pytest.raises(TimeoutError, match="did not answer"):
        _bounded(hdfs.threading.Event().wait, 0.01)


@pytest.mark.parametrize("root", ["hdfs:///data/x", "hdfs://server", "hdfs://server/"])
def test_a_root_without_a_server_or_folder_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="root-url"):
        Objects(root)


@pytest.mark.long
def test_all_of_it(hdfs_root: str) -> None:
    objects = Objects(hdfs_root)
    assert objects.atomic_create == "rename"
    objects.create("m/1", b"first")
    objects.put("m/sub/x", b"0123456789")
    with objects.writer("m/2") as sink:
        sink.write(b"streamed")
    assert (sink.bytes, sink.checksum) == (8, checksum(b"streamed"))
    assert Objects(hdfs_root).read("m/1") == b"first"
    assert objects.map("m/2").to_pybytes() == b"streamed"
    with objects.open_input("m/sub/x") as source:
        source.seek(7)
        assert source.read(10) == b"789"
    assert objects.names("m", hidden=True) == ["1", "2", "sub"]
    assert objects.names("nowhere") == []
    assert (objects.exists("m/1"), objects.exists("m"), objects.exists("m/9")) == (True, True, False)
    with pytest.raises(ConflictError, match=r"\[exists\]"):
        objects.create("m/1", b"second")
    for read in (objects.read, objects.map, objects.open_input, objects.size, objects.age_us):
        with pytest.raises(NotFoundError, match="no-object"):
            read("m/9")
    age_us = objects.age_us("m/1")
    assert age_us is not None
    assert 0 <= age_us < 60_000_000
    objects.move("m", "moved/m")
    assert objects.names("moved/m") == ["1", "2", "sub"]
    assert not objects.exists("m")
    objects.delete("moved/m/1")
    objects.delete("moved/m/1")
    objects.clear("moved")
    objects.clear("moved")
    assert objects.names("", hidden=True) in ([], ["probe"])
    assert objects.url("m/1") == f"{hdfs_root}/m/1"


@pytest.mark.long
def test_fifty_threads_race(hdfs_root: str) -> None:
    objects = Objects(hdfs_root)
    objects.create("probed", b"")  # else each of them tries the root first, with eight threads of its own
    assert len(threads_race(objects, 50, 3)) == 3


@pytest.mark.long
def test_processes_race(hdfs_root: str) -> None:
    assert len(processes_race(Objects(hdfs_root), 8, 20)) == 20


@pytest.mark.long
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_rename_whose_reply_is_lost(hdfs_root: str, monkeypatch: pytest.MonkeyPatch, carried_out: bool) -> None:
    objects = Objects(hdfs_root)
    objects.create("first", b"")
    renamed, lost = HdfsFiles._renamed, []

    class Cut:
        """A client whose connection breaks once, before or after the rename."""

        def __init__(self, client: Any) -> None:
            self._client = client

        def rename(self, *names: Any) -> None:
            if carried_out:
                self._client.rename(*names)
            raise OSError("RPC listener disconnected")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

    def cut(fs: HdfsFiles, *arguments: Any, **named: Any) -> None:
        if lost:
            return renamed(fs, *arguments, **named)
        lost.append(fs.client)
        fs.client = Cut(fs.client)
        try:
            return renamed(fs, *arguments, **named)
        finally:
            fs.client = lost[0]

    monkeypatch.setattr(HdfsFiles, "_renamed", cut)
    objects.create("m/1", b"write id of mine")
    assert objects.read("m/1") == b"write id of mine"
    assert objects.names("m", hidden=True) == ["1"]
    lost.clear()
    with pytest.raises(ConflictError):
        objects.create("m/1", b"write id of another")


@pytest.mark.long
def test_a_name_node_that_does_not_answer(
    hdfs_root: str, hdfs_server: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_faults, "PATIENCE", 0.1)
    objects = Objects(hdfs_root)
    objects.create("m/1", b"first")
    hdfs_server.suspend()
    try:
        with pytest.raises(CommitUnknownError, match="did not answer"):
            objects.create("m/2", b"second")
        with pytest.raises(UnavailableError, match="did not answer"):
            objects.read("m/1")
    finally:
        hdfs_server.resume()
    assert objects.read("m/1") == b"first"


@pytest.mark.long
def test_a_name_node_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_faults, "PATIENCE", 0.1)
    with pytest.raises(UnavailableError):
        Objects("hdfs://127.0.0.1:1/x").read("m/1")


@pytest.mark.long
def test_who_may_not_write(hdfs_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Objects(hdfs_root).create("m/1", b"first")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    stranger = Objects(hdfs_root)
    assert stranger.read("m/1") == b"first"
    assert stranger.age_us("m/1") is None
    with pytest.raises((UnavailableError, CommitUnknownError), match="storage refused access"):
        stranger.create("m/2", b"second")


@pytest.mark.long
def test_what_the_dead_have_left_is_listed(hdfs_root: str) -> None:
    objects = Objects(hdfs_root)
    left = f"m/.2.{'0' * 32}"
    objects.create("m/1", b"first")
    objects.put(left, b"half of")
    ((path, age_us),) = objects.unfinished("")
    assert (path, age_us >= 0) == (left, True)
    assert objects.unfinished("nothing") == []


@pytest.mark.long
def test_a_doctor_finds_it_fit(hdfs_root: str) -> None:
    trial = try_root(hdfs_root)
    assert trial.fit, [check for check in trial.checks if check.holds is False]
    assert Objects(hdfs_root).names("", hidden=True) == []


def test_its_file_system_is_told_by_the_marker(tmp_path: Path) -> None:
    assert Objects("hdfs://ns/flights", copies=str(tmp_path)).root == "hdfs://ns/flights"
    assert Objects("hdfs://ns/flights/").locate("m/1") == "hdfs://ns/flights/m/1"
