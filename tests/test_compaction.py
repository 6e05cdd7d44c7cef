"""Folding files: a pure plan that keeps the limit, and folding that changes no row and uncovers none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.changes import DELETE, MERGE, PUT, Layer, TableChanges
from statestore.files import sortedfile
from statestore.files.compaction import fold_into, live_files, plan
from statestore.files.filetable import FileTable, open_source
from statestore.files.segments import FileKind, FileRef, write_segment
from statestore.fold import fold, fold_run, parts
from statestore.keyrange import EVERYTHING
from statestore.objects import Objects
from statestore.store import Parquet, StoreConfig
from statestore.tables import Column, TableSpec
from tests.lineage import segment_name
from tests.table_model import Row, TableModel, plain, table

SPEC = TableSpec(
    "counts",
    (Column("t", "int64"),),
    (Column("total", "int64", combiner="sum"), Column("note", "string", combiner="replace")),
    "t",
)
ROWS = st.tuples(st.integers(0, 4), st.none() | st.integers(-3, 3), st.sampled_from([None, "x", "y"]))


def ref(number: int, size: int = 1, kind: str = "changelog", **more: int) -> FileRef:
    return FileRef(f"f{number}", size, "", 1, "counts", kind, f"s{number}", "", number, number, **more)  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn) -> list[FileRef]:
    sizes = draw(st.lists(st.integers(1, 10**6), max_size=20))
    snapshot = draw(st.booleans())
    return [ref(i, size, "snapshot" if snapshot and i == 0 else "changelog") for i, size in enumerate(sizes)]


CONFIGS = st.builds(
    Parquet,
    max_files=st.integers(2, 20),
    snapshot_bytes=st.sampled_from([1, 10**4, 10**7]),
    recovery_s=st.integers(1, 60),
    budget_bytes=st.sampled_from([1 << 20, 1 << 28]),
)


@given(files=tables(), config=CONFIGS, partition=st.integers(0, 300))
def test_a_plan_is_a_range_that_makes_room_for_one_more(
    files: list[FileRef], config: StoreConfig, partition: int
) -> None:
    files = files[: config.max_files]  # what a partition may have when the plan is made
    chosen = plan(files, config, partition)
    if chosen is None:
        assert len(files) + 1 <= config.max_files
        return
    first, last = chosen
    assert 0 <= first < last <= len(files)
    assert len(files) - (last - first) + 1 + 1 <= config.max_files or (first, last) == (0, len(files))
    if first and files[first].kind != "changelog":
        assert last - first >= min(4, len(files))


@given(config=CONFIGS, partition=st.integers(0, 300), rounds=st.integers(1, 60), data=st.data())
def test_a_table_never_names_more_files_than_allowed(
    config: StoreConfig, partition: int, rounds: int, data: st.DataObject
) -> None:
    files: list[FileRef] = []
    for number in range(rounds):
        chosen = plan(files, config, partition)
        if chosen is not None:
            first, last = chosen
            size = sum(file.bytes for file in files[first:last])
            files[first:last] = [ref(files[last - 1].last, size, "snapshot" if first == 0 else "run")]
        files.append(ref(number, data.draw(st.integers(1, 10**7), label="bytes")))
        assert len(files) <= config.max_files


MB = 1 << 20
PLAIN = Parquet(max_files=8, snapshot_bytes=1 << 40)


def test_the_young_files_are_folded_up_to_a_clearly_larger_one() -> None:
    files = [ref(0, 900 * MB, "snapshot"), ref(1, 8 * MB, "run"), *(ref(i, MB) for i in range(2, 8))]
    assert plan(files, PLAIN, 0) == (1, 8)
    larger = [files[0], ref(1, 10 * MB, "run"), *files[2:]]
    assert plan(larger, PLAIN, 0) == (2, 8)
    assert plan(files[:7], PLAIN, 0) is None


def test_small_files_are_folded_into_one() -> None:
    assert plan([ref(i, 1000) for i in range(8)], PLAIN, 0) == (0, 8)


@pytest.mark.parametrize(("checkpoints", "times"), [(1000, 4), (10_000, 7)])
def test_a_byte_is_folded_a_few_times_however_large_the_table_grows(checkpoints: int, times: int) -> None:
    files: list[FileRef] = []
    folded = 0
    for number in range(checkpoints):
        if (chosen := plan(files, Parquet(snapshot_bytes=1 << 50, budget_bytes=1 << 40), 0)) is not None:
            first, last = chosen
            size = sum(file.bytes for file in files[first:last])
            folded += size
            files[first:last] = [ref(number, size, "run")]
        files.append(ref(number, MB))
    assert folded / (checkpoints * MB) < times


def test_level_0_is_folded_when_it_outgrows_the_budget() -> None:
    files = [ref(0, 900 * MB, "snapshot"), *(ref(i, 20 * MB) for i in range(1, 5))]
    assert plan(files, PLAIN, 0) == (1, 5)
    assert plan(files[:4], PLAIN, 0) is None
    assert plan([files[0], ref(1, 65 * MB)], PLAIN, 0) == (1, 2)


def test_a_snapshot_comes_when_the_log_has_outgrown_it_and_staggered() -> None:
    def due(logged: int, partition: int, base: int = 10 * MB) -> bool:
        files = [ref(0, base, "snapshot"), ref(1, logged)]
        return plan(files, Parquet(snapshot_bytes=4 * MB), partition) == (0, 2)

    assert not any(due(29 * MB, partition) for partition in range(20))
    assert all(due(51 * MB, partition) for partition in range(20))
    some = [due(40 * MB, partition) for partition in range(20)]
    assert 5 < sum(some) < 15


def test_a_snapshot_comes_when_a_restart_would_take_too_long() -> None:
    files = [ref(0, 100 * MB, "snapshot"), ref(1, 60 * MB)]
    assert plan(files, Parquet(recovery_s=2), 0) == (0, 2)
    assert plan(files, Parquet(recovery_s=30), 0) is None
    # Where the log is but little beside the snapshot, folding it would not help.
    assert plan([ref(0, 200 * MB, "snapshot"), ref(1, 10 * MB)], Parquet(recovery_s=1), 0) is None


def test_a_lone_snapshot_is_not_written_again() -> None:
    eager = Parquet(snapshot_bytes=1, recovery_s=1)
    assert plan([ref(1, 200 * MB, "snapshot")], eager, 0) is None
    assert plan([ref(1)], eager, 0) == (0, 1)
    assert plan([], eager, 0) is None


def test_a_file_whose_rows_have_all_expired_is_dropped() -> None:
    files = [ref(1, expiry_min=1, expiry_max=5), ref(2, expiry_min=1, expiry_max=6), ref(3)]
    assert live_files(files, SPEC, 5) == tuple(files[1:])
    assert live_files(files, SPEC, 4) == tuple(files)
    assert live_files(files, SPEC, None) == tuple(files)


def test_where_rows_expire_by_a_value_a_file_that_may_hide_others_stays() -> None:
    spec = TableSpec("v", (Column("k", "string"),), (Column("at", "int64"),), "at")
    files = [ref(1, expiry_min=1, expiry_max=9), ref(2, expiry_min=1, expiry_max=5)]
    assert live_files(files, spec, 5) == tuple(files)
    assert live_files(files[::-1], spec, 5) == tuple(files[:1])
    assert live_files(files, spec, 9) == ()


@st.composite
def layers(draw: st.DrawFn) -> list[Layer]:
    made = []
    for op in draw(st.lists(st.sampled_from([DELETE, PUT, MERGE]), min_size=1, max_size=6)):
        unique = {} if op == MERGE else {"unique_by": lambda row: row[0]}
        rows = draw(st.lists(ROWS, min_size=1, max_size=4, **unique))
        made.append(Layer(op, table(SPEC, rows, keys_only=op == DELETE)))
    return made


def modelled(stack: list[Layer]) -> list[Row]:
    model = TableModel(SPEC)
    for layer in stack:
        part = {DELETE: "delete", PUT: "put", MERGE: "merge"}[layer.op]
        model.apply(TableChanges(**{part: layer.rows}))
    return model.snapshot()


def rows_of(folded: pa.Table) -> list[Row]:
    return sorted(plain(folded), key=repr)


@given(stack=layers())
def test_folding_gives_the_rows_one_would_count(stack: list[Layer]) -> None:
    assert rows_of(fold(SPEC, stack)) == modelled(stack)
    assert rows_of(fold(SPEC, [Layer(MERGE, parts(SPEC, stack))])) == modelled(stack)


@given(below=layers(), run=layers(), above=layers())
def test_a_folded_run_hides_what_its_layers_hid(below: list[Layer], run: list[Layer], above: list[Layer]) -> None:
    folded = fold_run(SPEC, run)
    assert len(folded) <= 3
    assert all(layer.rows.num_rows for layer in folded)
    assert rows_of(fold(SPEC, [*below, *folded, *above])) == modelled([*below, *run, *above])
    keys = [key for layer in folded for key in layer.rows["t"].to_pylist()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("chosen", [(0, 4), (0, 2), (1, 4), (2, 3)], ids=str)
@pytest.mark.parametrize("block_bytes", [20, 4 << 20])
def test_folding_files_changes_no_row(
    tmp_path: Path, chosen: tuple[int, int], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sortedfile, "BLOCK_BYTES", block_bytes)
    objects = Objects(tmp_path)
    stack = [
        [Layer(PUT, table(SPEC, [(1, 1, "a"), (2, 2, "b"), (3, 3, "c")]))],
        [Layer(DELETE, table(SPEC, [(1, None, None)], keys_only=True)), Layer(MERGE, table(SPEC, [(2, 10, None)]))],
        [Layer(PUT, table(SPEC, [(3, 30, "d")])), Layer(MERGE, table(SPEC, [(4, 4, "e"), (4, 4, "f")]))],
        [Layer(MERGE, table(SPEC, [(1, 5, "again")]))],
    ]
    files = [write_segment(objects, SPEC, group, segment_name(i, i, f"s{i}")) for i, group in enumerate(stack)]
    first, last = chosen
    sources = [open_source(objects, SPEC, file) for file in files]
    kind: FileKind = "run" if first else "snapshot"
    picked = FileTable(SPEC, sources[first:last], None, 1)
    new = fold_into(objects, SPEC, picked, kind, segment_name(first, last - 1, f"s{last - 1}"))
    assert new is not None
    assert (new.kind, new.first, new.last, new.segment) == (kind, first, last - 1, f"s{last - 1}")
    whole = FileTable(SPEC, [*sources[:first], open_source(objects, SPEC, new), *sources[last:]], None, 1)
    expected = modelled([layer for group in stack for layer in group])
    assert [row for rows in whole.scan(EVERYTHING) for row in plain(rows)] == expected


def test_what_has_expired_is_left_out_and_an_empty_fold_writes_nothing(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    files = [
        write_segment(objects, SPEC, [Layer(PUT, table(SPEC, [(t, t, None)]))], segment_name(t, t, f"s{t}"))
        for t in (1, 2, 3)
    ]

    def folded(expired: int) -> FileRef | None:
        sources = [open_source(objects, SPEC, file) for file in files]
        picked = FileTable(SPEC, sources, expired, 1 << 20)
        return fold_into(objects, SPEC, picked, "snapshot", segment_name(1, 3, "s3"))

    left = folded(2)
    assert left is not None
    (layer,) = open_source(objects, SPEC, left).layers(EVERYTHING)
    assert plain(layer.rows) == [(3, 3, None)]
    assert folded(3) is None
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
