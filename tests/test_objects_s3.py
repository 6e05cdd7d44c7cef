"""A root in a bucket: one winner per name, lost replies found out, nothing read that was not asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore.changes import TableChanges
from statestore.checksums import checksum
from statestore.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    TidemarkError,
    UnavailableError,
    UsageError,
)
from statestore.files.segments import PartitionState
from statestore.objects import Objects
from statestore.parquet import ParquetStore
from statestore.storage import connection as storage_connection
from statestore.storage import faults as storage_faults
from statestore.storage import remote as storage_remote
from statestore.storage.connection import connection
from statestore.store import Parquet
from tests.lineage import advance
from tests.s3_server import Proxy, s3_endpoint, s3_front, s3_proxy, s3_root  # noqa: F401  (fixtures)
from tests.table_model import NAMED

ROOT = Path(__file__).parents[1]


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
    assert objects.locate("a/b") == f"{s3_root}/a/b"
    assert objects.url("a/b") == f"s3a{s3_root.removeprefix('s3')}/a/b"
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


def test_many_threads_race_and_one_wins(objects: Objects) -> None:
    racers, rounds = 6, 20
    barrier = threading.Barrier(racers)
    wins: list[tuple[int, int]] = []
    others: list[BaseException] = []

    def race(me: int) -> None:
        for number in range(rounds):
            barrier.wait()
            try:
                objects.create(f"m/{number}", content(me))
                wins.append((number, me))
            except ConflictError:
                pass
            except BaseException as error:
                others.append(error)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert others == []
    assert sorted(number for number, _ in wins) == list(range(rounds))
    assert all(objects.read(f"m/{number}") == content(me) for number, me in wins)


def content(me: int) -> bytes:
    return f"written by {me}\n".encode() * 1000


RACER = """
import sys
from statestore.errors import ConflictError
from statestore.objects import Objects
root, me, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
objects = Objects(root)
objects.exists("warm")
print("ready", flush=True)
sys.stdin.readline()
for number in range(rounds):
    try:
        objects.create(f"m/{number}", f"written by {me}\\n".encode() * 1000)
        print(number, flush=True)
    except ConflictError:
        pass
"""


def child(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_many_processes_race_and_one_wins(objects: Objects) -> None:
    racers, rounds = 3, 25
    children = [child(RACER, objects.root, str(me), str(rounds)) for me in range(racers)]
    for one in children:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in children:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    won: dict[int, int] = {}
    for me, one in enumerate(children):
        output, _ = one.communicate(timeout=60)
        assert one.returncode == 0
        for line in output.split():
            assert int(line) not in won
            won[int(line)] = me
    assert sorted(won) == list(range(rounds))
    assert all(objects.read(f"m/{number}") == content(me) for number, me in won.items())


@pytest.mark.parametrize(
    "faults",
    [
        ["after"],
        ["after", "after"],
        ["before", "before", "after", "after"],
        ["before"],
        ["before"] * 3,
        [(500, "InternalError")],
        [(503, "SlowDown")] * 3,
        [(409, "ConditionalRequestConflict")],
    ],
    ids=str,
)
def test_a_create_without_a_reply_is_found_out(
    objects: Objects,
    s3_proxy: Proxy,  # noqa: F811
    faults: list[str | tuple[int, str]],
) -> None:
    s3_proxy.faults["PUT"] = faults
    objects.create("m/1", b"mine")
    assert s3_proxy.faults["PUT"] == []
    assert objects.read("m/1") == b"mine"
    with pytest.raises(ConflictError):
        objects.create("m/1", b"other")


@pytest.mark.parametrize(
    "fault", ["after", "before", (412, "PreconditionFailed"), (409, "ConditionalRequestConflict")], ids=str
)
def test_a_create_without_a_reply_may_find_another_writer(
    objects: Objects,
    s3_proxy: Proxy,  # noqa: F811
    fault: str | tuple[int, str],
) -> None:
    objects.create("m/1", b"theirs")
    for count in (1, 2):
        s3_proxy.faults["PUT"] = [fault] * count
        with pytest.raises(ConflictError):
            objects.create("m/1", b"mine")
        s3_proxy.faults.clear()
    assert objects.read("m/1") == b"theirs"


def test_a_create_that_stays_unknown_says_so(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    s3_proxy.faults = {"PUT": ["after"] * 2, "HEAD": ["before"] * 99, "GET": ["before"] * 99}
    with pytest.raises(CommitUnknownError) as caught:
        objects.create("m/1", b"mine")
    assert (caught.value.code, caught.value.context) == ("commit-unknown", {"path": "m/1"})
    assert "start again" in caught.value.message
    s3_proxy.faults.clear()
    assert objects.read("m/1") == b"mine"


def test_a_create_that_never_arrives_is_unknown_too(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    s3_proxy.faults["PUT"] = ["before"] * 99
    with pytest.raises(CommitUnknownError):
        objects.create("m/1", b"mine")
    assert s3_proxy.count("PUT") == 0


@pytest.mark.parametrize("code", ["SlowDown", "AccessDenied", "InvalidAccessKeyId", "InvalidArgument"])
def test_a_create_that_was_refused_did_not_happen(objects: Objects, s3_proxy: Proxy, code: str) -> None:  # noqa: F811
    status = {"SlowDown": 503, "InvalidArgument": 400}.get(code, 403)
    s3_proxy.faults["PUT"] = [(status, code)] * 99
    with pytest.raises(UnavailableError) as caught:
        objects.create("m/1", b"mine")
    assert (caught.value.code, caught.value.context) == ("storage", {"path": "m/1", "reason": code})
    assert s3_proxy.count("PUT") == (storage_faults.ATTEMPTS if status == 503 else 1)
    assert s3_proxy.count("GET") == 0
    assert not objects.exists("m/1")


def test_nobody_at_the_endpoint(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    began = time.monotonic()
    acts: list[Callable[[], object]] = [
        lambda: objects.read("a"),
        lambda: objects.names("a"),
        lambda: objects.exists("a"),
        lambda: objects.put("a", b""),
        lambda: objects.create("a", b""),
        lambda: objects.delete("a"),
        lambda: objects.map("a", 4),
    ]
    for act in acts:
        with pytest.raises(UnavailableError) as caught:
            act()
        assert (caught.value.code, caught.value.context["path"]) == ("storage", "a")
        assert "check the endpoint" in caught.value.message
    assert time.monotonic() - began < 10


def test_wrong_credentials_in_words(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    refusal: list[str | tuple[int, str]] = [(403, "SignatureDoesNotMatch")]
    acts: list[Callable[[], object]] = [
        lambda: objects.read("a"),
        lambda: objects.names("a"),
        lambda: objects.exists("a"),
        lambda: objects.put("a", b""),
    ]
    for act in acts:
        s3_proxy.log.clear()
        s3_proxy.faults = {method: list(refusal) for method in ("GET", "HEAD", "PUT")}
        with pytest.raises(UnavailableError, match="check the credentials"):
            act()
        assert len(s3_proxy.log) == 1


def test_no_credentials_in_words(objects: Objects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(UnavailableError, match="check the credentials") as caught:
        objects.create("a", b"")
    assert caught.value.context["reason"] == "NoCredentialsError"


def test_a_bucket_that_is_not_there_is_not_an_empty_one(objects: Objects, copies: Path) -> None:
    gone = Objects("s3://no-such-bucket/root", copies=str(copies))
    acts: list[Callable[[], object]] = [
        lambda: gone.read("a"),
        lambda: gone.map("a"),
        lambda: gone.names("a"),
        lambda: gone.put("a", b""),
        lambda: gone.create("a", b""),
    ]
    for act in acts:
        with pytest.raises(UnavailableError, match="make the bucket") as caught:
            act()
        assert caught.value.context["reason"] == "NoSuchBucket"


def test_what_may_pass_is_tried_again(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    s3_proxy.faults = {
        "PUT": ["before", "before", (503, "SlowDown")],
        "GET": [(500, "InternalError"), "after", "after"],
    }
    objects.put("a", b"data")
    assert objects.read("a") == b"data"
    assert objects.map("a").to_pybytes() == b"data"
    assert s3_proxy.faults == {"PUT": [], "GET": []}


def test_the_waits_grow_and_are_bounded() -> None:
    def time_out() -> None:
        calls.append(1)
        raise TimeoutError

    waits: list[float] = []
    calls: list[int] = []
    with pytest.raises(TimeoutError):
        storage_faults.retrying().copy(sleep=waits.append)(time_out)
    assert len(calls) == len(waits) + 1 == storage_faults.ATTEMPTS
    assert waits[0] >= 0.2
    assert waits[-1] > waits[0]
    assert sum(waits) < 5


def test_a_server_that_says_nothing(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_faults, "PATIENCE", 0.5)
    monkeypatch.setitem(storage_connection._LIMITS, "read_timeout", 0.2)
    monkeypatch.setattr(storage_remote, "UPLOAD_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(CommitUnknownError):
            objects.create("a", b"data")
        for act in (lambda: objects.put("a", b"data"), lambda: objects.read("a")):
            with pytest.raises(UnavailableError, match="did not answer"):
                act()
        assert time.monotonic() - began < 5


MIB = 1 << 20


def test_a_piece_of_a_large_object_is_all_that_is_fetched(
    objects: Objects,
    s3_proxy: Proxy,  # noqa: F811
    copies: Path,
) -> None:
    data = os.urandom(20 * MIB)
    objects.put("big", data)
    s3_proxy.log.clear()
    with objects.open_input("big") as source:
        assert source.size() == len(data)
        source.seek(10 * MIB)
        assert source.read(1000) == data[10 * MIB : 10 * MIB + 1000]
        assert source.read(1000) == data[10 * MIB + 1000 : 10 * MIB + 2000]
        assert source.read_at(500, len(data) - 500) == data[-500:]
        source.seek(len(data))
        assert source.read(10) == b""
    ranges = [entry[2] for entry in s3_proxy.log if entry[0] == "GET"]
    assert len(ranges) == 2
    assert all(ranges)
    assert s3_proxy.bytes_read() < MIB
    assert s3_proxy.count("HEAD") == 1
    assert files_in(copies) == []


def test_parquet_and_arrow_are_read_by_ranges(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    table = pa.table({f"c{i}": pa.array(memoryview(os.urandom(4 * MIB)).cast("q").tolist()) for i in range(4)})
    with objects.writer("t.parquet") as sink:
        pq.write_table(table, sink, use_dictionary=False, compression="none")
    with objects.writer("t.arrow") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=64 * 1024)
    s3_proxy.log.clear()
    assert pq.ParquetFile(objects.open_input("t.parquet", sink.bytes)).read(["c2"]) == table.select(["c2"])
    assert s3_proxy.bytes_read() < 6 * MIB
    assert s3_proxy.count("HEAD") == 0
    s3_proxy.log.clear()
    batch = pa.ipc.open_file(objects.open_input("t.arrow", out.bytes)).get_batch(3)
    assert pa.table(batch) == table.slice(3 * 64 * 1024, 64 * 1024)
    assert s3_proxy.bytes_read() < 4 * MIB


def test_a_reader_hears_of_trouble_in_our_words(objects: Objects, s3_proxy: Proxy) -> None:  # noqa: F811
    objects.put("big", bytes(2 * MIB))
    with objects.open_input("big") as source:
        s3_proxy.faults["GET"] = ["before", "before", (500, "InternalError")]
        assert source.read(10) == bytes(10)
        s3_proxy.faults["GET"] = [(403, "AccessDenied")]
        source.seek(MIB)
        with pytest.raises(UnavailableError, match="credentials"):
            source.read(10)


def test_a_copy_is_fetched_once(objects: Objects, s3_proxy: Proxy, copies: Path) -> None:  # noqa: F811
    data = os.urandom(MIB)
    objects.put("a", data)
    s3_proxy.log.clear()
    assert objects.map("a", MIB).to_pybytes() == data
    assert (len(s3_proxy.log), s3_proxy.bytes_read()) == (1, MIB)
    assert Objects(objects.root, copies=str(copies)).map("a", MIB).to_pybytes() == data
    with objects.open_input("a", MIB) as source:
        assert source.read_at(10, 100) == data[100:110]
    assert len(s3_proxy.log) == 1
    assert len(files_in(copies)) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_torn_copy_is_fetched_again(objects: Objects, copies: Path, known: bool) -> None:
    objects.put("a", b"0123456789")
    size = 10 if known else None
    objects.map("a", size)
    (copy,) = files_in(copies)
    for torn in (b"", b"01234", b"0123456789 and more"):
        copy.write_bytes(torn)
        assert objects.open_input("a", size).read() == b"0123456789"
        assert objects.map("a", size).to_pybytes() == b"0123456789"
        assert copy.read_bytes() == b"0123456789"


def test_a_fetch_that_fails_leaves_no_copy(objects: Objects, s3_proxy: Proxy, copies: Path) -> None:  # noqa: F811
    objects.put("a", b"data")
    s3_proxy.faults["GET"] = [(403, "AccessDenied")]
    with pytest.raises(UnavailableError):
        objects.map("a", 4)
    assert files_in(copies) == []


def test_no_room_for_copies_is_said(s3_root: str, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "file").write_bytes(b"")
    objects = Objects(s3_root, copies=str(tmp_path / "file"))
    objects.put("a", b"data")
    with pytest.raises(UnavailableError, match="check that the folder exists"):
        objects.map("a")
    with pytest.raises(UnavailableError, match="check that the folder exists"), objects.writer("b"):
        pass
    assert objects.open_input("a").read() == b"data"


FETCHER = """
import sys
from statestore.checksums import checksum
from statestore.objects import Objects
objects = Objects(sys.argv[1], copies=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(8):
    print(checksum(objects.map(f"a/{number}", 300_000)), flush=True)
"""


def test_processes_share_copies(objects: Objects, s3_proxy: Proxy, copies: Path) -> None:  # noqa: F811
    data = {number: os.urandom(300_000) for number in range(8)}
    for number, one in data.items():
        objects.put(f"a/{number}", one)
    s3_proxy.log.clear()
    children = [child(FETCHER, objects.root, str(copies)) for _ in range(2)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = [process.communicate("go\n", timeout=60)[0] for process in children[:1]]
    fetched = s3_proxy.count("GET")
    outputs += [process.communicate("go\n", timeout=60)[0] for process in children[1:]]
    assert fetched == s3_proxy.count("GET") == 8
    assert outputs == ["".join(f"{checksum(data[number])}\n" for number in range(8))] * 2
    assert len(files_in(copies)) == 8


def test_processes_that_fetch_the_same_at_once_do_not_disturb_each_other(objects: Objects, copies: Path) -> None:
    data = {number: os.urandom(300_000) for number in range(8)}
    for number, one in data.items():
        objects.put(f"a/{number}", one)
    children = [child(FETCHER, objects.root, str(copies)) for _ in range(2)]
    for process in children:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in children]
    assert outputs == ["".join(f"{checksum(data[number])}\n" for number in range(8))] * 2
    assert len(files_in(copies)) == 8


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
        except TidemarkError as error:
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
    with pytest.raises(UsageError, match="lets two writers create one name") as caught:
        objects.create("m/1", b"first")
    assert caught.value.code == "no-atomic-create"
    assert objects.names("m") == []


def test_damage_to_a_file_or_to_its_copy_is_told_apart(s3_root: str, tmp_path: Path) -> None:  # noqa: F811
    """A damaged copy is fetched again; a file that is damaged, short or gone itself is named as such."""
    objects = Objects(s3_root, copies=str(tmp_path))
    state = PartitionState()
    for number in (1, 2):
        rows = pa.table({"k": [f"{number}", "b"], "b": [True, False], "total": [number, number]})
        state = advance(objects, [NAMED], state, {"named": TableChanges(put=rows)}, number, Parquet(snapshot_bytes=1))
    assert [ref.kind for ref in state.files] == ["snapshot", "changelog"]

    def total() -> int:
        batches = ParquetStore([NAMED], objects, state).scan("named")
        return sum(sum(batch["total"].to_pylist()) for batch in batches)

    assert total() == 5
    for copy in tmp_path.iterdir():
        data = bytearray(copy.read_bytes())
        data[len(data) // 3] ^= 1
        copy.write_bytes(bytes(data))
    assert total() == 5
    for ref in state.files:
        whole = objects.read(ref.path)
        for harm, code in ((whole[:100], "file-damaged"), (None, "file-missing")):
            objects.delete(ref.path)
            if harm is not None:
                objects.put(ref.path, harm)
            with pytest.raises(CorruptionError, match=code) as caught:
                total()
            assert caught.value.context["path"] == ref.path
            objects.delete(ref.path)
        objects.put(ref.path, whole)
        assert total() == 5
