"""Folded files between two reads: nothing is open, the footer is kept by the process, damage and loss are seen."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from cachetools import LRUCache

from tests.helpers.lineage import advance
from tests.servers.proxy import Proxy
from tests.servers.s3 import s3_endpoint, s3_front, s3_proxy, s3_root  # noqa: F401  (fixtures)
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files import footers, sortedfile
from tidestate.statestore.files.filetable import FileTable, open_sources
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING, key_range
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.testing import FaultyObjects

SPEC = TableSpec("rows", (Column("k", "int64"),), (Column("v", "int64"),))
ROWS, ONE_KEY = 20_000, 7


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """About eighty blocks a file."""
    monkeypatch.setattr(sortedfile, "BLOCK_BYTES", 4000)


def filled(objects: Objects, values: Sequence[int] = range(ROWS)) -> tuple[Objects, PartitionState, FileRef]:
    """One snapshot, of these values under the keys from 0 on."""
    rows = pa.table({"k": range(len(values)), "v": values}, schema=SPEC.schema)
    put = {"rows": TableChanges(put=rows)}
    state = advance(objects, [SPEC], PartitionState(), put, 1, Parquet(snapshot_bytes=1))
    state = advance(objects, [SPEC], state, {"rows": TableChanges()}, 2, Parquet(snapshot_bytes=1))
    (ref,) = state.files
    assert ref.kind == "snapshot"
    return objects, state, ref


@pytest.fixture(params=["local", "s3", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Objects, PartitionState, FileRef]:
    if request.param == "local":
        return filled(Objects(tmp_path / "root"))
    if request.param == "s3":
        return filled(Objects(request.getfixturevalue("s3_root"), copies=str(tmp_path / "copies")))
    return filled(Objects(f"memory://{uuid.uuid4().hex}/root"))


def value_of(objects: Objects, state: PartitionState, key: int = ONE_KEY) -> int:
    """One look-up by a store of its own."""
    found = ParquetStore([SPEC], objects, state)["rows"].lookup(pa.table({"k": [key]}))
    return int(found.rows["v"][0].as_py())


def everything(objects: Objects, state: PartitionState) -> list[int]:
    batches = ParquetStore([SPEC], objects, state)["rows"].scan()
    return [value for batch in batches for value in batch["v"].to_pylist()]


def mappings_of(path: str) -> int:
    return sum(line.endswith(path) for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
@pytest.mark.parametrize("remote", [False, True])
def test_hundreds_of_open_files_need_no_descriptor_and_no_mapping(
    remote: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root = request.getfixturevalue("s3_root") if remote else str(tmp_path / "root")
    objects, _, ref = filled(Objects(root, copies=str(tmp_path / "copies")))
    objects.map(ref.path, ref.bytes)
    (path,) = [str(file) for file in tmp_path.rglob("*") if file.is_file() and file.stat().st_size == ref.bytes]
    with objects.open_input(ref.path, ref.bytes):
        assert mappings_of(path) == 1
    gc.collect()  # sockets of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    files = [sortedfile.SortedFile(objects, SPEC, ref) for _ in range(300)]
    first = key_range((0,), (10,))
    rows = [layer.rows for file in files for layer in file.layers(first)]
    assert [part.num_rows for part in rows] == [10] * 300
    assert len(os.listdir("/proc/self/fd")) <= before  # sockets of earlier tests may close in between
    assert mappings_of(path) == 0
    for layer in files[0].layers(EVERYTHING):
        assert layer.rows.num_rows == ROWS
        while mappings_of(path):  # a thread of Arrow may let go of it after the rows are there
            os.sched_yield()


def test_the_next_store_does_not_read_the_footer_again(table: tuple[Objects, PartitionState, FileRef]) -> None:
    objects, state, ref = table
    opened = []
    for _ in range(3):
        watched = FaultyObjects(objects)
        assert value_of(watched, state) == ONE_KEY
        opened.append(watched.log.count(f"open_input {ref.path}"))
    assert opened == [2, 1, 1]


def test_a_request_is_saved_on_remote_storage(
    s3_root: str,  # noqa: F811
    s3_proxy: Proxy,  # noqa: F811
    tmp_path: Path,
) -> None:
    objects, state, _ = filled(Objects(s3_root, copies=str(tmp_path)))
    counts = []
    for _ in range(3):
        s3_proxy.log.clear()
        assert value_of(objects, state) == ONE_KEY
        counts.append(len(s3_proxy.log))
    assert counts[0] - 1 == counts[1] == counts[2] > 0


def test_a_footer_damaged_in_place_is_seen_by_the_next_store(tmp_path: Path) -> None:
    objects, state, ref = filled(Objects(tmp_path))
    assert value_of(objects, state) == ONE_KEY
    path = tmp_path / ref.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"footer does not match.*file-damaged"):
            value_of(objects, state)
    path.write_bytes(whole)
    assert value_of(objects, state) == ONE_KEY


def test_damage_to_a_block_is_seen_though_the_footer_is_kept(table: tuple[Objects, PartitionState, FileRef]) -> None:
    objects, state, ref = table
    assert value_of(objects, state) == ONE_KEY
    whole = objects.read(ref.path)
    objects.delete(ref.path)
    objects.put(ref.path, whole[:10] + bytes(500) + whole[510:])
    with pytest.raises(CorruptionError, match="file-damaged"):
        value_of(objects, state)
    objects.delete(ref.path)
    objects.put(ref.path, whole)
    assert value_of(objects, state) == ONE_KEY


def test_no_wrong_bit_of_a_block_gives_another_row(tmp_path: Path) -> None:
    """Compression notices some of them only: of values that cannot be made smaller it changes the rows."""
    rng = np.random.default_rng(7)
    values = rng.integers(-(2**62), 2**62, 400)
    objects, state, ref = filled(Objects(tmp_path), values)
    path, few = tmp_path / ref.path, key_range((0,), (200,))
    whole, noticed = path.read_bytes(), 0
    for place in range(4, 1600, 8):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            rows = list(ParquetStore([SPEC], objects, state)["rows"].scan(few))
        except CorruptionError:
            noticed += 1
        else:
            assert pa.concat_tables(rows)["v"].to_pylist() == values[:200].tolist()
    assert noticed > 150


def test_a_file_that_goes_missing_is_named(table: tuple[Objects, PartitionState, FileRef]) -> None:
    objects, state, ref = table
    opened = ParquetStore([SPEC], objects, state)
    opened["rows"].lookup(pa.table({"k": [ONE_KEY]}))
    objects.delete(ref.path)
    for store in (opened, ParquetStore([SPEC], objects, state)):
        with pytest.raises(CorruptionError) as caught:
            store["rows"].lookup(pa.table({"k": [ROWS - 1]}))
        assert (caught.value.code, caught.value.context) == ("file-missing", {"path": ref.path})


def test_a_copy_that_is_pruned_under_a_scan_is_done_without(s3_root: str, tmp_path: Path) -> None:  # noqa: F811
    objects, state, ref = filled(Objects(s3_root, copies=str(tmp_path)))

    def values() -> Iterator[int]:
        for start in range(0, ROWS, 1000):
            for batch in store["rows"].scan(key_range((start,), (start + 1000,))):
                yield from batch["v"].to_pylist()
            objects.forget(ref.path)

    store = ParquetStore([SPEC], objects, state)
    assert list(values()) == list(range(ROWS))


def test_footers_are_kept_up_to_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [filled(Objects(tmp_path / str(number))) for number in range(4)]
    assert everything(*tables[0][:2]) == list(range(ROWS))
    size = int(footers._kept.currsize)
    assert size > 0
    for room, kept in ((2.5, 2), (0.5, 0)):
        monkeypatch.setattr(footers, "_kept", LRUCache(room * size, getsizeof=footers._size))
        for objects, state, _ in tables:
            assert value_of(objects, state) == ONE_KEY
        assert len(footers._kept) == kept


def test_a_band_is_measured_in_memory_not_in_the_file(tmp_path: Path) -> None:
    """Equal values take next to nothing in a file; bands of eighty blocks at once would not fit the budget."""
    objects, _, ref = filled(Objects(tmp_path / "root"))
    table = FileTable(SPEC, open_sources(objects, SPEC, [ref]), None, band_bytes=32_000)
    assert 8 <= len(table.bands(EVERYTHING)) <= 12  # 320,000 bytes of rows
    assert ref.bytes < 320_000 / 4
