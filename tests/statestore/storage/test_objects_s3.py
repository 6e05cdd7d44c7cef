"""A root in a bucket: one winner per name, no list is old, a writer leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers.process import LONG
from tests.helpers.races import processes_race, threads_race
from tests.servers.proxy import Proxy
from tests.servers.s3 import s3_endpoint, s3_front, s3_proxy, s3_root  # noqa: F401  (fixtures)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import ConflictError, NotFoundError, TidestateError, UnavailableError, UsageError
from tidestate.statestore.storage.connection import connection
from tidestate.statestore.storage.objects import Objects

MIB = 1 << 20


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    return tmp_path / "copies"


@pytest.fixture
def objects(s3_root: str, copies: Path) -> Objects:  # noqa: F811
    return Objects(s3_root, copies=str(copies))


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


def test_what_is_put_is_read(objects: Objects, s3_root: str) -> None:  # noqa: F811
    objects.put("a/b", b"bytes")
    objects.put("a/c", pa.py_buffer(b"buffer"))
    objects.put("a/d/e", b"")
    objects.put("a/.hidden", b"")
    assert objects.read("a/b") == b"bytes"
    assert objects.map("a/c").to_pybytes() == b"buffer"
    assert objects.read("a/d/e") == b""
    assert objects.map("a/d/e", 0).size == 0
    assert objects.names("a") == ["b", "c", "d"]
    assert objects.names("") == ["a"]
    assert objects.names("nowhere") == []
    assert [objects.exists(name) for name in ("a/b", "a", "a/d", "a/x")] == [True, True, True, False]
    assert objects.root == s3_root
    assert objects.locate("a/b") == objects.url("a/b") == f"s3a{s3_root.removeprefix('s3')}/a/b", "as Spark reads it"
    assert objects.atomic_create == "if-none-match"


@pytest.mark.parametrize("spelling", ["{}", "{}/", "s3a{}"])
def test_one_place_has_one_name(objects: Objects, s3_root: str, spelling: str) -> None:  # noqa: F811
    objects.put("a", b"data")
    url = s3_root.removeprefix("s3") if spelling.startswith("s3a") else s3_root
    same = Objects(spelling.format(url))
    assert same.root == s3_root
    assert Objects(same.root).read("a") == b"data"


def test_what_is_not_there(objects: Objects) -> None:
    objects.put("folder/x", b"")
    for path in ("a/b", "folder"):
        for read in (objects.read, objects.map, objects.open_input):
            with pytest.raises(NotFoundError) as caught:
                read(path)
            assert (caught.value.code, caught.value.context) == ("no-object", {"path": path})
    with pytest.raises(NotFoundError):
        objects.map("a/b", 10)
    with objects.open_input("a/b", 10) as source, pytest.raises(NotFoundError):
        source.read(1)


def test_lists_are_never_old(objects: Objects, s3_root: str) -> None:  # noqa: F811
    assert (objects.names("m"), objects.exists("m/1")) == ([], False)
    other = connection(s3_root).__class__(skip_instance_cache=True)
    other.pipe_file(f"{s3_root}/m/1", b"from elsewhere")
    assert (objects.names("m"), objects.exists("m/1")) == (["1"], True)
    other.rm_file(f"{s3_root}/m/1")
    assert (objects.names("m"), objects.exists("m/1")) == ([], False)


def test_an_empty_object_that_stands_for_a_folder_is_no_child(objects: Objects, s3_root: str) -> None:  # noqa: F811
    connection(s3_root).pipe_file(f"{s3_root}/m/", b"")
    objects.put("m/1", b"")
    assert objects.names("m") == ["1"]


def test_a_folder_moves_and_what_stands_for_folders_goes(objects: Objects, s3_root: str) -> None:  # noqa: F811
    fs = connection(s3_root)
    for name in ("m/", "m/a/", "m/b/"):  # as Hadoop's S3A makes them
        fs.pipe_file(f"{s3_root}/{name}", b"")
    for name in ("m/1", "m/a/2", "m/a/.hidden", "other"):
        objects.put(name, name.encode())
    objects.move("m", "kept/7")
    assert (objects.names(""), objects.exists("m"), objects.names("m")) == (["kept", "other"], False, [])
    assert fs.find(s3_root) == [
        *(f"{s3_root.removeprefix('s3://')}/kept/7/{name}" for name in ("1", "a/.hidden", "a/2")),
        f"{s3_root.removeprefix('s3://')}/other",
    ]
    assert objects.read("kept/7/a/2") == b"m/a/2"
    objects.move("m", "kept/8")
    assert objects.names("kept") == ["7"]


def test_a_folder_is_cleared_and_what_stands_for_folders_goes(objects: Objects, s3_root: str) -> None:  # noqa: F811
    connection(s3_root).pipe_file(f"{s3_root}/m/", b"")
    for name in ("m/1", "m/a/2", "m1"):
        objects.put(name, b"data")
    objects.clear("m")
    assert (objects.names(""), objects.names("m")) == (["m1"], [])
    objects.clear("m")


def test_what_is_deleted_is_gone_here_too(objects: Objects, copies: Path) -> None:
    objects.put("a", b"data")
    objects.map("a")
    assert len(files_in(copies)) == 1
    objects.delete("a")
    objects.delete("a")
    assert files_in(copies) == []
    with pytest.raises(NotFoundError):
        objects.map("a", 4)


@pytest.mark.parametrize("first", [b"first", b""])
def test_a_name_is_taken_once(objects: Objects, s3_proxy: Proxy, first: bytes) -> None:  # noqa: F811
    objects.create("m/1", first)
    with pytest.raises(ConflictError) as caught:
        objects.create("m/1", b"second")
    assert (caught.value.code, caught.value.context) == ("exists", {"path": "m/1"})
    assert objects.read("m/1") == first
    assert s3_proxy.conditions == ["*", "*"]


@pytest.mark.slow
def test_many_threads_race_and_one_wins(objects: Objects) -> None:
    racers, rounds = (6, 8) if LONG else (4, 4)
    assert sorted(threads_race(objects, racers, rounds)) == list(range(rounds))


# In every run threads race on S3, and processes on a disk.
@pytest.mark.long
@pytest.mark.slow
def test_many_processes_race_and_one_wins(objects: Objects) -> None:
    assert sorted(processes_race(objects, racers=3, rounds=8)) == list(range(8))


def test_a_writer_streams_and_leaves_no_local_file(objects: Objects, copies: Path) -> None:
    piece = os.urandom(MIB)
    with objects.writer("big") as sink:
        for _ in range(8):
            sink.write(piece)
        assert not objects.exists("big")
    assert (sink.bytes, sink.checksum) == (8 * MIB, checksum(piece * 8))
    assert objects.read("big") == piece * 8
    assert files_in(copies) == []


def test_a_writer_that_fails_leaves_nothing(objects: Objects, s3_proxy: Proxy, copies: Path) -> None:  # noqa: F811
    with pytest.raises(ZeroDivisionError), objects.writer("a") as sink:
        sink.write(b"half" * (1 // 0))
    assert s3_proxy.log == []
    s3_proxy.faults["PUT"] = [(403, "AccessDenied")]
    with pytest.raises(UnavailableError), objects.writer("a") as sink:
        sink.write(b"whole")
    assert files_in(copies) == []
    assert not objects.exists("a")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_has_a_connection_of_its_own(objects: Objects) -> None:
    objects.put("a", b"before")
    read, write = os.pipe()
    worker = os.fork()
    if worker == 0:
        try:
            objects.create("b", b"from the child")
            os.write(write, objects.read("a") + b" " + objects.read("b"))
        except TidestateError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"before from the child"
    os.waitpid(worker, 0)
    assert objects.read("b") == b"from the child"


def test_a_server_that_does_not_know_conditional_requests_is_refused(
    s3_root: str,  # noqa: F811
    s3_proxy: Proxy,  # noqa: F811
) -> None:
    s3_proxy.careless = True
    objects = Objects(f"{s3_root}/careless")
    with pytest.raises(UsageError, match="no-atomic-create") as caught:
        objects.create("m/1", b"first")
    assert caught.value.code == "no-atomic-create"
    assert objects.names("m") == []
