"""What of a bucket lies on this host: nothing that was not asked for, each copy whole, once, and not forever."""

from __future__ import annotations

import errno
import os
import time
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.lineage import advance
from tests.helpers.process import LONG
from tests.helpers.races import child, let_go
from tests.helpers.schemes import Honest
from tests.helpers.table_model import NAMED
from tests.servers.proxy import Proxy
from tests.servers.s3 import s3_endpoint, s3_front, s3_proxy, s3_root  # noqa: F401  (fixtures)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, UnavailableError
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.parquet import ParquetStore

MIB = 1 << 20


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    return tmp_path / "copies"


@pytest.fixture
def objects(s3_root: str, copies: Path) -> Objects:  # noqa: F811
    return Objects(s3_root, copies=str(copies))


@pytest.fixture
def elsewhere() -> str:
    """A root of storage in memory, for tests of what is done here alone."""
    fsspec.register_implementation("honest", Honest, clobber=True)
    return f"honest://{uuid.uuid4().hex}/root"


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


@pytest.mark.slow
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
    table = pa.table({f"c{i}": pa.array(np.frombuffer(os.urandom(4 * MIB), np.int64)) for i in range(4)})
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


def test_no_room_for_copies_is_reported(s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    made = os.mkdir

    def full(path: str | os.PathLike[str], *rest: Any) -> None:
        if Path(path).is_relative_to(tmp_path):  # threads of others make folders too
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        made(path, *rest)

    monkeypatch.setattr(os, "mkdir", full)
    objects = Objects(s3_root, copies=str(tmp_path / "copies"))
    objects.put("a", b"data")
    with pytest.raises(UnavailableError, match="TMPDIR"):
        objects.map("a")
    with pytest.raises(UnavailableError, match="TMPDIR"), objects.writer("b"):
        pass
    assert objects.open_input("a").read() == b"data"


RACERS = 3 if LONG else 2
PLENTY = str(10 * MIB)
FETCHER = """
import sys
from tidestate.statestore.checksums import checksum
from tidestate.statestore.storage.objects import Objects
objects = Objects(sys.argv[1], copies=sys.argv[2], copies_bytes=int(sys.argv[3]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(8):
    print(checksum(objects.map(f"a/{number}", 300_000)), flush=True)
"""


@pytest.mark.long
@pytest.mark.slow
def test_processes_share_copies(objects: Objects, s3_proxy: Proxy, copies: Path) -> None:  # noqa: F811
    data = {number: os.urandom(300_000) for number in range(8)}
    for number, one in data.items():
        objects.put(f"a/{number}", one)
    s3_proxy.log.clear()
    outputs = let_go([child(FETCHER, objects.root, str(copies), PLENTY)])
    fetched = s3_proxy.count("GET")
    outputs += let_go([child(FETCHER, objects.root, str(copies), PLENTY)])
    assert fetched == s3_proxy.count("GET") == 8
    assert outputs == ["".join(f"{checksum(data[number])}\n" for number in range(8))] * 2
    assert len(files_in(copies)) == 8


@pytest.mark.long
@pytest.mark.slow
def test_processes_that_fetch_the_same_at_once_do_not_disturb_each_other(objects: Objects, copies: Path) -> None:
    data = {number: os.urandom(300_000) for number in range(8)}
    for number, one in data.items():
        objects.put(f"a/{number}", one)
    outputs = let_go([child(FETCHER, objects.root, str(copies), PLENTY) for _ in range(2)])
    assert outputs == ["".join(f"{checksum(data[number])}\n" for number in range(8))] * 2
    assert len(files_in(copies)) == 8


def test_damage_to_a_file_or_to_its_copy_is_distinguished(elsewhere: str, tmp_path: Path) -> None:
    """A damaged copy is fetched again; a file that is damaged, short or gone itself is named as such."""
    objects = Objects(elsewhere, copies=str(tmp_path))
    state = PartitionState()
    for number in (1, 2):
        rows = pa.table({"k": [f"{number}", "b"], "b": [True, False], "total": [number, number]})
        state = advance(objects, [NAMED], state, {"named": TableChanges(put=rows)}, number, Parquet(snapshot_bytes=1))
    assert [ref.kind for ref in state.files] == ["snapshot", "changelog"]

    def total() -> int:
        batches = ParquetStore([NAMED], objects, state)["named"].scan()
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


def total_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in files_in(folder))


def age(file: Path, seconds: float) -> None:
    """As if it had been used and written to so long ago."""
    then = time.time() - seconds
    os.utime(file, (then, then))


def bounded(root: str, copies: Path, limit: int, count: int = 14) -> Objects:
    """Objects with room for copies of ``limit`` bytes, and ``count`` objects of a thousand."""
    objects = Objects(root, copies=str(copies), copies_bytes=limit)
    for number in range(count):
        objects.put(f"a/{number}", bytes([number]) * 1000)
    return objects


def test_copies_are_pruned_to_their_limit(elsewhere: str, copies: Path) -> None:
    objects = bounded(elsewhere, copies, 10_000)
    held = []
    for number in range(14):
        assert objects.map(f"a/{number}", 1000).to_pybytes() == bytes([number]) * 1000
        held.append(total_of(copies))
    assert held == [*range(1000, 11_000, 1000), 8000, 9000, 10_000, 8000]


def test_what_was_used_of_late_stays(s3_root: str, s3_proxy: Proxy, copies: Path) -> None:  # noqa: F811
    objects = bounded(s3_root, copies, 10_000)
    for number in range(10):
        objects.map(f"a/{number}", 1000)
    for copy in files_in(copies):
        age(copy, 5000)
    versions = [objects.local_version(f"a/{number}") for number in range(10)]
    with objects.open_input("a/3", 1000):
        objects.map("a/0", 1000)
    assert [objects.local_version(f"a/{number}") for number in range(10)] == versions
    objects.map("a/10", 1000)
    s3_proxy.log.clear()
    for number in (0, 3, 10):
        objects.map(f"a/{number}", 1000)
    assert s3_proxy.log == []
    assert len(files_in(copies)) == 8


def test_a_copy_larger_than_the_limit_is_there_as_long_as_it_is_the_newest(
    elsewhere: str,
    copies: Path,
) -> None:
    objects = bounded(elsewhere, copies, 10)
    for number in range(3):
        assert objects.map(f"a/{number}", 1000).to_pybytes() == bytes([number]) * 1000
        assert total_of(copies) == 1000


def test_who_has_a_removed_copy_mapped_keeps_it(elsewhere: str, copies: Path) -> None:
    objects = bounded(elsewhere, copies, 10)
    mapped, opened = objects.map("a/1", 1000), objects.open_input("a/1", 1000)
    objects.map("a/2", 1000)
    assert objects.local_version("a/1") is None
    assert mapped.to_pybytes() == opened.read() == objects.map("a/1", 1000).to_pybytes() == b"\1" * 1000


def test_what_a_dead_process_left_unfinished_goes_and_nothing_that_is_not_ours(
    elsewhere: str,
    copies: Path,
) -> None:
    objects = bounded(elsewhere, copies, 1000)
    copies.mkdir(mode=0o700)
    old, young, other = copies / f".{'0a' * 16}", copies / f".{'0b' * 16}", copies / "notes.txt"
    for file in (old, young, other):
        file.write_bytes(bytes(5000))
    age(old, 4000)
    age(young, 3000)
    age(other, 10**6)
    objects.map("a/1", 1000)
    assert [file.exists() for file in (old, young, other)] == [False, True, True]


def test_the_folder_is_not_looked_through_for_each_copy(elsewhere: str, copies: Path) -> None:
    objects = bounded(elsewhere, copies, 100_000)
    objects.map("a/0", 1000)
    left = copies / f".{'0c' * 16}"
    left.write_bytes(b"")
    age(left, 4000)
    for number in range(1, 5):
        objects.map(f"a/{number}", 1000)
        assert left.exists()
    objects.map("a/5", 1000)
    assert not left.exists()


@pytest.mark.long
@pytest.mark.slow
def test_processes_that_prune_the_same_folder_do_not_disturb_each_other(objects: Objects, copies: Path) -> None:
    data = {number: os.urandom(300_000) for number in range(8)}
    for number, one in data.items():
        objects.put(f"a/{number}", one)
    outputs = let_go([child(FETCHER, objects.root, str(copies), "400_000") for _ in range(RACERS)])
    assert outputs == ["".join(f"{checksum(data[number])}\n" for number in range(8))] * RACERS
    assert 300_000 <= total_of(copies) <= RACERS * 400_000
