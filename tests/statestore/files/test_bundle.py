"""Bundles: small files of several tables in one, each read and checked as if it were alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.durable_store import DurableStore
from tests.helpers.lineage import advance
from tests.helpers.process import few
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, UnavailableError
from tidestate.statestore.files import bundle
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import FileRef, PartitionState, count_files
from tidestate.statestore.files.resident import clear_residents
from tidestate.statestore.files.segments import read_segment
from tidestate.statestore.files.tails import examine
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import open_store
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.testing.checks import check_store
from tidestate.statestore.testing.generated import applied, seeded_changes
from tidestate.statestore.testing.history import ModelHistory
from tidestate.statestore.testing.tables import SPECS

OFTEN = Parquet(max_levels=3)
COUNTS = tuple(
    TableSpec(name, (Column("end", "int64"), Column("k", "string")), (Column("n", "int64", combiner="sum"),), "end")
    for name in ("one", "two", "three")
)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    clear_residents()
    yield
    clear_residents()


def counted(spec: TableSpec, end: int, rows: int = 1) -> TableChanges:
    columns = {"end": [end] * rows, "k": [f"{spec.name}{number}" for number in range(rows)], "n": [end] * rows}
    return TableChanges(merge=pa.table(columns, schema=spec.schema))


def counts(objects: Objects, state: PartitionState, specs: Sequence[TableSpec] = COUNTS) -> list[list[object]]:
    store = ParquetStore(specs, objects, state)
    found = [[row for part in store[spec.name].scan() for row in part.to_pylist()] for spec in specs]
    store.close()
    return found


def three(objects: Objects) -> PartitionState:
    return advance(objects, COUNTS, PartitionState(), {spec.name: counted(spec, 1) for spec in COUNTS}, 1)


def test_the_small_changes_of_all_tables_are_in_one_file_that_anybody_reads(tmp_path: Path) -> None:
    state = three(Objects(tmp_path))
    (path,) = {ref.path for ref in state.files}
    assert path.endswith(".bundle")
    assert [path] == [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()]
    data = (tmp_path / path).read_bytes()
    for ref, spec in zip(state.files, COUNTS, strict=True):
        assert ref.table == spec.name
        assert ref.bundle_bytes == ref.file_bytes == len(data)
        assert ref.start % bundle.ALIGNED == 0
        part = data[ref.start : ref.start + ref.bytes]
        assert checksum(part) == ref.checksum
        rows = pa.ipc.open_file(part).read_all().to_pylist()
        assert rows == [{"__op": 0, "end": 1, "k": f"{spec.name}0", "n": 1}]
    assert count_files(state.files) == 1


def test_a_single_table_and_what_is_large_or_apart_have_files_of_their_own(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    alone = advance(objects, COUNTS, PartitionState(), {"one": counted(COUNTS[0], 1)}, 1)
    assert [ref.path.partition(".")[2] for ref in alone.files] == ["one.changelog.arrow"]
    assert not any(ref.bundle_bytes or ref.start for ref in alone.files)
    changes = {spec.name: counted(spec, 2, 20_000 if spec.name == "two" else 1) for spec in COUNTS}
    large = advance(objects, COUNTS, PartitionState(), changes, 2)
    assert [ref.path.partition(".")[2] for ref in large.files] == ["bundle", "two.changelog.arrow", "bundle"]
    log = PartitionLog(objects, COUNTS, Parquet(), "windows", 0, 1, uuid.uuid4().hex, separate_tables=("three",))
    apart = log.append(PartitionState(), {spec.name: counted(spec, 1) for spec in COUNTS}, 1)
    assert [ref.path.partition(".")[2] for ref in apart.files] == ["bundle", "bundle", "three.changelog.arrow"]
    assert counts(objects, apart) == counts(objects, three(objects))


def test_a_bundle_is_never_larger_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BUNDLE_BYTES", 6000)
    state = three(Objects(tmp_path))
    sizes = {ref.path: ref.file_bytes for ref in state.files}
    assert len(sizes) == 2
    assert max(sizes.values()) <= 6000
    assert sizes == {path: (tmp_path / path).stat().st_size for path in sizes}


def test_what_is_folded_has_a_file_that_readers_of_parquet_open(tmp_path: Path) -> None:
    objects, state = Objects(tmp_path), PartitionState()
    for sequence in range(1, 5):
        state = advance(objects, COUNTS, state, {spec.name: counted(spec, 1) for spec in COUNTS}, sequence, OFTEN)
    (snapshot, change) = (ref for ref in state.files if ref.table == "two")
    assert (snapshot.kind, change.kind) == ("snapshot", "changelog")
    assert (snapshot.bundle_bytes > 0, change.bundle_bytes > 0) == (False, True)
    assert pq.read_table(tmp_path / snapshot.path).to_pylist() == [{"end": 1, "k": "two0", "n": 3}]
    kept = counts(objects, state)
    assert kept[1] == [{"end": 1, "k": "two0", "n": 4}]
    clear_residents()
    assert counts(objects, state) == kept


@pytest.mark.parametrize("part_bytes", [0, 2500, 1 << 18], ids=["none", "some", "all"])
@pytest.mark.parametrize("seed", few(range(4), 0, 1))
def test_whatever_is_in_bundles_tables_are_what_the_model_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, part_bytes: int
) -> None:
    monkeypatch.setattr(bundle, "MOST_PART_BYTES", part_bytes)
    history, random = ModelHistory(SPECS), Random(seed)
    store = DurableStore(SPECS, Objects(tmp_path), OFTEN)
    for sequence in range(1, 16):
        history.apply(store, seeded_changes(seed, sequence), applied(sequence))
        if random.random() < 0.3:
            clear_residents()
            store.close()
            store = DurableStore(SPECS, Objects(tmp_path), OFTEN)
        check_store(store, history.now, f"after change set {sequence}")
    store.close()


@pytest.mark.parametrize("seed", few(range(4), 0, 1))
def test_a_root_may_have_files_of_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """As where an earlier version has written its state, or where changes are large now and then."""
    history, store = ModelHistory(SPECS), DurableStore(SPECS, Objects(tmp_path), Parquet(max_levels=6))
    for sequence in range(1, 25):
        monkeypatch.setattr(bundle, "MOST_PART_BYTES", 0 if sequence < 5 or sequence % 4 == 0 else 1 << 18)
        history.apply(store, seeded_changes(seed, sequence), applied(sequence))
        if sequence % 3 == 0:
            clear_residents()
        check_store(store, history.now, f"after change set {sequence}")
    store.close()


@pytest.mark.parametrize("name", ["memory", "rocksdb"])
def test_other_stores_are_filled_and_brought_forward_from_bundles(tmp_path: Path, name: str) -> None:
    config = RocksDB(cache_dir=str(tmp_path / "cache")) if name == "rocksdb" else Memory()
    objects, state = Objects(tmp_path / "root"), PartitionState()
    for sequence in range(1, 6):
        state = advance(objects, COUNTS, state, {spec.name: counted(spec, sequence) for spec in COUNTS}, sequence)
        if sequence in (2, 5):
            with open_store(config, objects, "identity", COUNTS, state) as store:
                found = [[row for part in store[spec.name].scan() for row in part.to_pylist()] for spec in COUNTS]
            assert found == counts(objects, state)
    assert count_files(state.files) == 5


def test_damage_to_a_part_is_damage_to_its_table_alone(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    state = three(objects)
    target = tmp_path / state.files[0].path
    whole = target.read_bytes()
    before = counts(objects, state)
    for damaged in state.files:
        for place in range(damaged.start, damaged.start + damaged.bytes, 97):
            data = bytearray(whole)
            data[place] ^= 1
            target.write_bytes(data)
            clear_residents()
            for ref, spec, rows in zip(state.files, COUNTS, before, strict=True):
                if ref == damaged:
                    with pytest.raises(CorruptionError, match="checksum") as error:
                        read_segment(objects, spec, ref)
                    assert error.value.code == "file-damaged"
                else:
                    assert [
                        row for layer in read_segment(objects, spec, ref) for row in layer.rows.to_pylist()
                    ] == rows
    target.write_bytes(whole)
    assert counts(objects, state) == before


@pytest.mark.parametrize("size", [-1, 1, None], ids=["shorter", "longer", "gone"])
def test_a_bundle_of_another_size_is_damage_to_all_its_tables(tmp_path: Path, size: int | None) -> None:
    objects = Objects(tmp_path)
    state = three(objects)
    target = tmp_path / state.files[0].path
    whole = target.read_bytes()
    if size is None:
        target.unlink()
    else:
        target.write_bytes(whole[:size] if size < 0 else whole + b"x")
    for ref, spec in zip(state.files, COUNTS, strict=True):
        for read in (
            lambda ref=ref, spec=spec: read_segment(objects, spec, ref),
            lambda ref=ref: examine(objects, ref),
        ):
            with pytest.raises(CorruptionError) as error:
                read()
            assert error.value.code == ("file-missing" if size is None else "file-damaged")
            if size is not None:
                assert f"{len(whole) + size} bytes, expected {len(whole)}" in str(error.value)


def test_a_part_that_is_not_the_one_that_is_meant_is_refused(tmp_path: Path) -> None:
    """Though its bytes are whole: of another table, or under the name of another bundle."""
    objects = Objects(tmp_path)
    first, second, _ = three(objects).files
    swapped = msgspec.structs.replace(second, start=first.start, bytes=first.bytes, checksum=first.checksum)
    with pytest.raises(CorruptionError) as error:
        read_segment(objects, COUNTS[1], swapped)
    assert error.value.code == "file-foreign"
    other = f"{first.path.rpartition('-')[0]}-{uuid.uuid4().hex}.bundle"
    (tmp_path / other).write_bytes((tmp_path / first.path).read_bytes())
    with pytest.raises(CorruptionError) as error:
        read_segment(objects, COUNTS[0], msgspec.structs.replace(first, path=other))
    assert error.value.code == "file-foreign"


def test_what_storage_refuses_is_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects(tmp_path)
    base = three(objects)

    def refuse(*_: object) -> None:
        raise UnavailableError("storage refused", code="storage", path="x", reason="ENOSPC")

    monkeypatch.setattr(objects, "put", refuse)
    with pytest.raises(UnavailableError):
        advance(objects, COUNTS, base, {spec.name: counted(spec, 2) for spec in COUNTS}, 2)
    monkeypatch.undo()
    after = advance(objects, COUNTS, base, {spec.name: counted(spec, 2) for spec in COUNTS}, 2)
    assert [len(rows) for rows in counts(objects, after)] == [2, 2, 2]
    assert [len(rows) for rows in counts(objects, base)] == [1, 1, 1]


def test_a_ref_of_a_file_of_its_own_is_stored_as_before() -> None:
    ref = FileRef("data/windows/0/a.main.changelog.arrow", 10, "xxh3:00", 3, "main")
    assert set(msgspec.to_builtins(ref)) == {"path", "bytes", "checksum", "rows", "table"}
    assert ref.file_bytes == 10
