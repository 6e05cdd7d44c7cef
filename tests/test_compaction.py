"""Folding files: a pure plan that keeps the limit, and folding that changes no row and uncovers none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.changes import DELETE, MERGE, PUT, Layer, TableChanges
from statestore.compaction import MIN_RUN, compact, live_files, plan
from statestore.fold import fold, fold_run, parts
from statestore.objects import Objects
from statestore.segments import FileRef, read_segment, write_segment
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


LIMITS = {
    "max_files": st.integers(2, 20),
    "snapshot_every": st.integers(1, 60),
    "sequence": st.integers(1, 1000),
    "partition": st.integers(0, 300),
}


@given(files=tables(), **LIMITS)
def test_a_plan_is_a_range_that_makes_room_for_one_more(
    files: list[FileRef], max_files: int, snapshot_every: int, sequence: int, partition: int
) -> None:
    files = files[:max_files]  # what a partition may have when the plan is made
    chosen = plan(files, max_files=max_files, snapshot_every=snapshot_every, sequence=sequence, partition=partition)
    if chosen is None:
        assert len(files) + 1 <= max_files
        return
    first, last = chosen
    assert 0 <= first < last <= len(files)
    assert len(files) - (last - first) + 1 + 1 <= max_files or (first, last) == (0, len(files))
    if (sequence + partition) % snapshot_every == 0:
        assert (first, last) == (0, len(files))
    else:
        assert last - first >= min(MIN_RUN, len(files))


@given(**LIMITS, rounds=st.integers(1, 60), data=st.data())
def test_a_table_never_names_more_files_than_allowed(
    max_files: int, snapshot_every: int, sequence: int, partition: int, rounds: int, data: st.DataObject
) -> None:
    files: list[FileRef] = []
    for number in range(sequence, sequence + rounds):
        chosen = plan(files, max_files=max_files, snapshot_every=snapshot_every, sequence=number, partition=partition)
        if chosen is not None:
            first, last = chosen
            size = sum(file.bytes for file in files[first:last])
            files[first:last] = [ref(files[last - 1].last, size, "snapshot" if first == 0 else "run")]
        files.append(ref(number, data.draw(st.integers(1, 1000), label="bytes")))
        assert len(files) <= max_files


def test_the_cheapest_young_neighbours_are_folded() -> None:
    files = [ref(0, 900), *(ref(i, 10) for i in range(1, 8))]
    assert plan(files, max_files=8, snapshot_every=50, sequence=1, partition=0) == (4, 8)
    assert plan(files[:7], max_files=8, snapshot_every=50, sequence=1, partition=0) is None


def test_snapshots_are_staggered_over_partitions() -> None:
    files = [ref(1), ref(2)]
    due = [plan(files, max_files=12, snapshot_every=5, sequence=10, partition=p) is not None for p in range(5)]
    assert due == [True, False, False, False, False]
    later = [plan(files, max_files=12, snapshot_every=5, sequence=s, partition=3) for s in range(10, 15)]
    assert later == [None, None, (0, 2), None, None]


def test_a_lone_snapshot_is_not_written_again() -> None:
    assert plan([ref(1, kind="snapshot")], max_files=12, snapshot_every=1, sequence=9, partition=0) is None
    assert plan([ref(1)], max_files=12, snapshot_every=1, sequence=9, partition=0) == (0, 1)
    assert plan([], max_files=12, snapshot_every=1, sequence=9, partition=0) is None


def test_a_file_whose_rows_have_all_expired_is_dropped() -> None:
    files = [ref(1, expiry_min=1, expiry_max=5), ref(2, expiry_min=1, expiry_max=6), ref(3)]
    assert live_files(files, {"counts": 5}) == tuple(files[1:])
    assert live_files(files, {"counts": 4}) == tuple(files)
    assert live_files(files, {"other": 100}) == tuple(files)
    assert live_files(files, {}) == tuple(files)


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


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("chosen", [(0, 4), (0, 2), (1, 4), (2, 3)], ids=str)
def test_compacting_files_changes_no_row(tmp_path: Path, chosen: tuple[int, int], mapped: bool) -> None:
    objects = Objects(tmp_path)
    stack = [
        [Layer(PUT, table(SPEC, [(1, 1, "a"), (2, 2, "b"), (3, 3, "c")]))],
        [Layer(DELETE, table(SPEC, [(1, None, None)], keys_only=True)), Layer(MERGE, table(SPEC, [(2, 10, None)]))],
        [Layer(PUT, table(SPEC, [(3, 30, "d")])), Layer(MERGE, table(SPEC, [(4, 4, "e"), (4, 4, "f")]))],
        [Layer(MERGE, table(SPEC, [(1, 5, "again")]))],
    ]
    files = [
        write_segment(objects, SPEC, group, "changelog", segment_name(i, i, f"s{i}", f"s{i - 1}"))
        for i, group in enumerate(stack)
    ]
    first, last = chosen
    made = compact(
        objects,
        SPEC,
        files,
        chosen,
        None,
        lambda a, b: segment_name(a.first, b.last, b.segment, a.previous),
        mapped=mapped,
    )
    (new,) = (file for file in made if file not in files)
    assert made == (*files[:first], new, *files[last:])
    assert new.kind == ("snapshot" if chosen == (0, len(files)) else "run")
    assert (new.first, new.last) == (first, last - 1)
    assert (new.segment, new.previous) == (f"s{last - 1}", f"s{first - 1}")
    whole = [layer for file in made for layer in read_segment(objects, SPEC, file, mapped=mapped)]
    assert rows_of(fold(SPEC, whole)) == modelled([layer for group in stack for layer in group])


def test_what_has_expired_is_left_out_and_an_empty_fold_writes_nothing(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    files = [
        write_segment(
            objects, SPEC, [Layer(PUT, table(SPEC, [(t, t, None)]))], "changelog", segment_name(t, t, f"s{t}")
        )
        for t in (1, 2, 3)
    ]

    def compacted(expired: int) -> tuple[FileRef, ...]:
        return compact(objects, SPEC, files, (0, 3), expired, lambda a, b: segment_name(1, 3, "s3"), mapped=True)

    (left,) = compacted(2)
    assert rows_of(fold(SPEC, read_segment(objects, SPEC, left, mapped=True))) == [(3, 3, None)]
    assert compacted(3) == ()
