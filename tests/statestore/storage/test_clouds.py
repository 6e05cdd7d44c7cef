"""What every remote store promises, tried on each that a server can stand for: create, read, list, delete, move."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from azure.storage.blob import BlobServiceClient

from tests.helpers.process import LONG
from tests.helpers.races import processes_race, threads_race
from tests.servers.azure import connection_string, signed_once
from tests.servers.clouds import Cloud
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import ConflictError, NotFoundError, TidestateError, UnavailableError, UsageError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.remote import RemoteStorage

MIB = 1 << 20


@pytest.fixture
def objects(cloud: Cloud, tmp_path: Path) -> Objects:
    return Objects(cloud.root, copies=str(tmp_path / "copies"))


def test_what_is_put_is_read(objects: Objects, cloud: Cloud) -> None:
    objects.put("a/b", b"bytes")
    objects.put("a/c", pa.py_buffer(b"buffer"))
    objects.put("a/d/e", b"")
    objects.put("a/.hidden", b"")
    objects.put("ab", b"a name that begins like a folder's")
    assert objects.read("a/b") == b"bytes"
    assert objects.map("a/c").to_pybytes() == b"buffer"
    assert (objects.read("a/d/e"), objects.map("a/d/e", 0).size, objects.size("a/d/e")) == (b"", 0, 0)
    assert objects.names("a") == ["b", "c", "d"]
    assert objects.names("a", hidden=True) == [".hidden", "b", "c", "d"]
    assert (objects.names(""), objects.names("nowhere")) == (["a", "ab"], [])
    assert [objects.exists(name) for name in ("a/b", "a", "a/d", "a/x")] == [True, True, True, False]
    with objects.open_input("a/b") as source:
        source.seek(3)
        assert (source.read(10), source.read(1)) == (b"es", b"")
    assert objects._storage._range("a/b", 100, 200) == b"", "it ends before"  # type: ignore[union-attr]


def test_spark_reads_it_by_hadoop_s_name(objects: Objects, cloud: Cloud) -> None:
    bucket = cloud.service.spark.format(cloud.bucket)
    assert objects.locate("a/b") == objects.url("a/b") == f"{bucket}/some/prefix/a/b"


def test_one_place_has_one_name(objects: Objects, cloud: Cloud) -> None:
    objects.put("a", b"data")
    for scheme in (cloud.service.scheme, *objects._storage.dialect.aliases):  # type: ignore[union-attr]
        same = Objects(f"{scheme}://{cloud.bucket}/some/prefix/")
        assert (same.root, same.read("a")) == (cloud.root, b"data")


def test_what_is_not_there(objects: Objects) -> None:
    objects.put("folder/x", b"")
    for path in ("a/b", "folder"):
        for read in (objects.read, objects.map, objects.open_input, objects.size):
            with pytest.raises(NotFoundError) as caught:
                read(path)
            assert (caught.value.code, caught.value.context) == ("no-object", {"path": path})
    with pytest.raises(NotFoundError):
        objects.age_us("a/b")
    objects.delete("a/b")


def test_a_bucket_that_is_not_there_is_not_an_empty_one(objects: Objects, cloud: Cloud, tmp_path: Path) -> None:
    gone = Objects(f"{cloud.service.scheme}://no-such-bucket/root", copies=str(tmp_path / "copies"))
    acts = [
        lambda: gone.read("a"),
        lambda: gone.map("a"),
        lambda: gone.names("a"),
        lambda: gone.put("a", b""),
        lambda: gone.create("a", b""),
    ]
    for act in acts:
        with pytest.raises(UnavailableError, match="no such bucket"):
            act()


def test_a_list_has_what_others_have_just_written(objects: Objects, cloud: Cloud) -> None:
    assert (objects.names("m"), objects.exists("m/1")) == ([], False)
    other = RemoteStorage(cloud.root)
    for number in range(1, 4):
        other.create(f"m/{number}", b"from elsewhere")
        assert (len(objects.names("m")), objects.exists(f"m/{number}")) == (number, True)
    other.delete("m/1")
    assert (objects.names("m"), objects.exists("m/1")) == (["2", "3"], False)


@pytest.mark.slow
def test_a_list_of_many_pages_is_whole(objects: Objects, cloud: Cloud) -> None:
    count = 1100 if LONG else 40
    for number in range(count):
        objects.put(f"m/{number:04d}", b"")
    assert objects.names("m") == [f"{number:04d}" for number in range(count)]
    assert objects.names("") == ["m"]


def test_the_age_is_by_the_service_s_clock(objects: Objects) -> None:
    objects.put("a", b"")
    age_us = objects.age_us("a")
    assert objects.tells_age
    assert age_us is not None
    assert -1_000_000 <= age_us < 60_000_000


@pytest.mark.parametrize("first", [b"first", b""])
def test_a_name_is_taken_once(objects: Objects, first: bytes) -> None:
    objects.create("m/1", first)
    with pytest.raises(ConflictError) as caught:
        objects.create("m/1", b"second")
    assert (caught.value.code, caught.value.context) == ("exists", {"path": "m/1"})
    assert objects.read("m/1") == first


@pytest.mark.slow
def test_fifty_race_and_one_wins(objects: Objects) -> None:
    racers, rounds = (50, 20) if LONG else (50, 1)
    assert sorted(threads_race(objects, racers, rounds)) == list(range(rounds))


@pytest.mark.long
@pytest.mark.slow
def test_processes_race_and_one_wins(objects: Objects) -> None:
    assert sorted(processes_race(objects, racers=4, rounds=50)) == list(range(50))


@pytest.mark.slow
def test_a_writer_streams_and_leaves_no_local_file(objects: Objects, tmp_path: Path) -> None:
    piece, count = os.urandom(MIB), 70 if LONG else 6
    with objects.writer("big") as sink:
        for _ in range(count):
            sink.write(piece)
        assert not objects.exists("big")
    assert (sink.bytes, sink.checksum) == (count * MIB, checksum(piece * count))
    assert objects.read("big") == piece * count
    assert objects.map("big").to_pybytes() == piece * count
    assert len(list((tmp_path / "copies").iterdir())) == 1


def test_bytes_that_end_an_upload_s_form_are_not_cut_in_silence(objects: Objects) -> None:
    """gcsfs puts the bytes between lines of a fixed text."""
    data = b"before\n--==0==--\nafter"
    try:
        objects.put("a", data)
    except TidestateError:
        return
    assert objects.read("a") == data


@pytest.mark.slow
def test_a_folder_moves_and_what_stands_for_folders_goes(objects: Objects, cloud: Cloud) -> None:
    for name in ("m/", "m/a/", "m/b/"):  # as Hadoop makes them in object stores
        cloud_folder(cloud, f"some/prefix/{name}")
    for name in ("m/1", "m/a/2", "m/a/.hidden", "other", "m1"):
        objects.put(name, name.encode())
    objects.move("m", "kept/7")
    assert (objects.names(""), objects.exists("m"), objects.names("m")) == (["kept", "m1", "other"], False, [])
    assert objects.names("kept/7", hidden=True) == ["1", "a"]
    assert objects.names("kept/7/a", hidden=True) == [".hidden", "2"]
    assert objects.read("kept/7/a/2") == b"m/a/2"
    objects.move("m", "kept/8")
    assert objects.names("kept") == ["7"]
    cloud_folder(cloud, "some/prefix/kept/")
    objects.clear("kept")
    assert (objects.names(""), objects.exists("kept")) == (["m1", "other"], False)
    objects.clear("kept")


def cloud_folder(cloud: Cloud, key: str) -> None:
    """An empty object that stands for a folder, in the way of the service."""
    if cloud.name == "azure":
        with BlobServiceClient.from_connection_string(connection_string(cloud.endpoint)) as client:
            blob = client.get_blob_client(cloud.bucket, key.rstrip("/"))
            blob.upload_blob(b"", metadata={"hdi_isfolder": "true"})
    else:
        storage = RemoteStorage(f"{cloud.service.scheme}://{cloud.bucket}")
        storage._fs().pipe_file(f"{cloud.bucket}/{key}", b"")


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


def test_a_server_that_does_not_know_the_condition_is_refused(
    cloud: Cloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if cloud.name == "azure":
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", signed_once(cloud.proxy.url))
    cloud.proxy.careless = True
    objects = Objects(f"{cloud.root}/careless")
    with pytest.raises(UsageError, match="no-atomic-create"):
        objects.create("m/1", b"first")
    assert objects.names("m") == []
