"""Folding files: a pure plan that keeps the limit, and folding that changes no row and uncovers none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.lineage import segment_name
from tests.helpers.table_model import KeyRow, TableModel, as_tuples, table
from tidestate.statestore.files import sortedfile
from tidestate.statestore.files.compaction import WORK_BYTES, Fold, live_levels, plan, under_way
from tidestate.statestore.files.filetable import FileTable, open_sources
from tidestate.statestore.files.folding import fold_into
from tidestate.statestore.files.refs import FileKind, FileRef, Level
from tidestate.statestore.files.segments import write_segment
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Layer, TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING
from tidestate.statestore.spec.store import Parquet, StoreConfig
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.fold import fold, fold_run, parts

SPEC = TableSpec(
    "counts",
    (Column("t", "int64"),),
    (Column("total", "int64", combiner="sum"), Column("note", "string", combiner="replace")),
    "t",
)
ROWS = st.tuples(st.integers(0, 4), st.none() | st.integers(-3, 3), st.sampled_from([None, "x", "y"]))


def ref(number: int, size: int = 1, kind: str = "changelog", until: int = 0, **more: int) -> FileRef:
    last = until or number
    return FileRef(f"f{number}", size, "", 1, "counts", kind, f"s{last}", "", number, last, **more)  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn) -> list[Level]:
    sizes = draw(st.lists(st.integers(1, 10**6), max_size=20))
    snapshot = draw(st.booleans())
    return [(ref(i, size, "snapshot" if snapshot and i == 0 else "changelog"),) for i, size in enumerate(sizes)]


CONFIGS = st.builds(
    Parquet,
    max_levels=st.integers(2, 20),
    snapshot_bytes=st.sampled_from([1, 10**4, 10**7]),
    recovery_s=st.integers(1, 60),
    budget_bytes=st.sampled_from([1 << 20, 1 << 28]),
)


@given(levels=tables(), config=CONFIGS, partition=st.integers(0, 300))
def test_a_plan_makes_room_for_one_more(levels: list[Level], config: StoreConfig, partition: int) -> None:
    levels = levels[: config.max_levels]  # what a partition may have when the plan is made
    folds = plan(levels, config, partition, SPEC)
    if not folds:
        assert len(levels) + 1 <= config.max_levels
        return
    ((first, last, piece),) = folds  # so little is folded whole
    assert piece is None
    assert 0 <= first < last <= len(levels)
    assert len(levels) - (last - first) + 1 + 1 <= config.max_levels or (first, last) == (0, len(levels))
    if first and levels[first][0].kind != "changelog":
        assert last - first >= min(4, len(levels))


@given(levels=tables(), config=CONFIGS, spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=20))
def test_large_levels_of_different_times_are_left_as_they_are(
    levels: list[Level], config: StoreConfig, spans: list[tuple[int, int]]
) -> None:
    timed = [
        (msgspec.structs.replace(level[0], bytes=level[0].bytes + 2**20, expiry_min=low, expiry_max=low + more),)
        for level, (low, more) in zip(levels, spans, strict=False)
    ]
    overlap = max((sum(low <= at <= low + more for low, more in spans[: len(levels)]) for at in range(60)), default=0)
    folds = plan(timed, config, 0, SPEC)
    if overlap < min(4, config.max_levels, len(levels)) and len(levels) < 4 * config.max_levels:
        assert [fold for fold in folds if fold.last - fold.first > 1 and config.budget_bytes > 2**27] == []
    if overlap >= config.max_levels:
        assert folds


class Simulated:
    """A table whose keys are spread evenly: what its levels become, and what each checkpoint folds, by bytes."""

    def __init__(self, config: StoreConfig, partition: int = 0) -> None:
        self.levels: list[Level] = []
        self.config, self.partition = config, partition
        self.folded: list[int] = []
        self.depths: list[int] = []

    def write(self, number: int, size: int) -> None:
        work = 0
        for first, last, piece in plan(self.levels, self.config, self.partition, SPEC):
            picked = self.levels[first:last]
            name = max((ref for level in picked for ref in level), key=lambda ref: ref.last)
            kind = "run" if first else "snapshot"
            done = [ref for ref in picked[0] if ref.last == name.last] if piece else []
            rest = [[ref for ref in level if ref not in done] for level in picked]
            total = sum(ref.bytes for level in rest for ref in level)
            share = min(1.0, piece / total) if piece else 1.0
            taken = [int(share * sum(ref.bytes for ref in level)) for level in rest]
            made = msgspec.structs.replace(picked[0][0], bytes=sum(taken), kind=kind, last=name.last)
            left = [(self._less(level, part),) if share < 1 else () for level, part in zip(rest, taken, strict=True)]
            levels = [level for level in [(*done, made, *left[0]), *left[1:]] if level]
            self.levels[first:last] = levels
            work += sum(taken)
        self.levels.append((ref(number, size),))
        self.folded.append(work)
        self.depths.append(len(self.levels))

    def _less(self, level: list[FileRef], part: int) -> FileRef:
        return msgspec.structs.replace(level[0], bytes=sum(ref.bytes for ref in level) - part)


@given(config=CONFIGS, partition=st.integers(0, 300), rounds=st.integers(1, 60), data=st.data())
def test_a_table_has_no_more_levels_than_allowed(
    config: StoreConfig, partition: int, rounds: int, data: st.DataObject
) -> None:
    table = Simulated(config, partition)
    for number in range(rounds):
        table.write(number, data.draw(st.integers(1, 10**6), label="bytes"))
        assert len(table.levels) <= config.max_levels


MB = 1 << 20
PLAIN = Parquet(max_levels=8, snapshot_bytes=1 << 40)


def alone(*files: FileRef) -> list[Level]:
    return [(file,) for file in files]


def test_the_young_files_are_folded_up_to_a_clearly_larger_one() -> None:
    files = [ref(0, 900 * MB, "snapshot"), ref(1, 8 * MB, "run"), *(ref(i, MB) for i in range(2, 8))]
    assert plan(alone(*files), PLAIN, 0, SPEC) == [Fold(1, 8)]
    larger = [files[0], ref(1, 10 * MB, "run"), *files[2:]]
    assert plan(alone(*larger), PLAIN, 0, SPEC) == [Fold(2, 8)]
    assert plan(alone(*files[:7]), PLAIN, 0, SPEC) == []


def test_small_files_are_folded_into_one() -> None:
    assert plan(alone(*(ref(i, 1000) for i in range(8))), PLAIN, 0, SPEC) == [Fold(0, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoints", "size", "times", "budget"),
    [
        (1000, MB, 5, 256 * MB),
        (10_000, MB, 8, 256 * MB),
        pytest.param(50_000, MB, 10, 256 * MB, marks=pytest.mark.long),
        (1000, 64 * MB, 7, 256 * MB),
        (1000, 8 * MB, 7, 16 * MB),
    ],
)
def test_a_byte_is_folded_a_few_times_and_a_checkpoint_folds_little_however_large_the_table_grows(
    checkpoints: int, size: int, times: int, budget: int
) -> None:
    table = Simulated(Parquet(snapshot_bytes=1 << 50, budget_bytes=budget))
    for number in range(checkpoints):
        table.write(number, size)
    assert sum(table.folded) / (checkpoints * size) < times
    assert max(table.folded) <= 2 * max(WORK_BYTES, checkpoints * size // 64) + 5 * size
    assert max(table.depths) <= 20


def test_what_is_too_much_for_one_checkpoint_is_folded_in_pieces() -> None:
    old = alone(ref(0, 1000 * MB, "snapshot"), ref(1, 900 * MB, "run"))
    young = alone(*(ref(i, 100 * MB) for i in range(2, 8)))
    assert plan([*old, *young], PLAIN, 0, SPEC) == [Fold(6, 8), Fold(0, 6, WORK_BYTES + 400 * MB)]
    # The first piece is done: the oldest level reaches up to the second level's end.
    done = (ref(0, 400 * MB, "snapshot", until=1), ref(0, 900 * MB, "snapshot"))
    half = [done, (ref(1, 600 * MB, "run"),), (ref(2, MB),)]
    assert under_way(half) == (0, 2)
    assert plan(half, PLAIN, 0, SPEC) == [Fold(0, 2, WORK_BYTES + 4 * MB)]
    assert under_way([done, (ref(2, MB),)]) is None


def test_level_0_is_folded_when_it_outgrows_the_budget() -> None:
    files = [ref(0, 900 * MB, "snapshot"), *(ref(i, 20 * MB) for i in range(1, 5))]
    assert plan(alone(*files), PLAIN, 0, SPEC) == [Fold(1, 5)]
    assert plan(alone(*files[:4]), PLAIN, 0, SPEC) == []
    assert plan(alone(files[0], ref(1, 65 * MB)), PLAIN, 0, SPEC) == [Fold(1, 2)]


def test_a_snapshot_comes_when_the_log_has_outgrown_it_and_staggered() -> None:
    def due(logged: int, partition: int, base: int = 10 * MB) -> bool:
        levels = alone(ref(0, base, "snapshot"), ref(1, logged))
        return plan(levels, Parquet(snapshot_bytes=4 * MB), partition, SPEC) == [Fold(0, 2)]

    assert not any(due(29 * MB, partition) for partition in range(20))
    assert all(due(51 * MB, partition) for partition in range(20))
    some = [due(40 * MB, partition) for partition in range(20)]
    assert 5 < sum(some) < 15


def test_a_snapshot_comes_when_a_restart_would_take_too_long() -> None:
    levels = alone(ref(0, 100 * MB, "snapshot"), ref(1, 60 * MB))
    assert plan(levels, Parquet(recovery_s=2), 0, SPEC) == [Fold(0, 2)]
    assert plan(levels, Parquet(recovery_s=30), 0, SPEC) == []
    # Where the log is small next to the snapshot, folding it would not help.
    assert plan(alone(ref(0, 200 * MB, "snapshot"), ref(1, 10 * MB)), Parquet(recovery_s=1), 0, SPEC) == []


def test_a_lone_snapshot_is_not_written_again() -> None:
    eager = Parquet(snapshot_bytes=1, recovery_s=1)
    assert plan(alone(ref(1, 200 * MB, "snapshot")), eager, 0, SPEC) == []
    assert plan(alone(ref(1)), eager, 0, SPEC) == [Fold(0, 1)]
    assert plan([], eager, 0, SPEC) == []


def test_a_file_whose_rows_have_all_expired_is_dropped() -> None:
    level = (ref(1, expiry_min=1, expiry_max=5), ref(1, 2, expiry_min=1, expiry_max=6))
    assert live_levels([level, (ref(3),)], SPEC, 5) == [level[1:], (ref(3),)]
    assert live_levels([level[:1], (ref(3),)], SPEC, 5) == [(ref(3),)]
    assert live_levels([level], SPEC, 4) == [level]
    assert live_levels([level], SPEC, None) == [level]


def test_where_rows_expire_by_a_value_a_file_that_may_hide_others_stays() -> None:
    spec = TableSpec("v", (Column("k", "string"),), (Column("at", "int64"),), "at")
    long, short = (ref(1, expiry_min=1, expiry_max=9),), (ref(2, expiry_min=1, expiry_max=5),)
    assert live_levels([long, short], spec, 5) == [long, short]
    assert live_levels([short, long], spec, 5) == [long]
    assert live_levels([long, short], spec, 9) == []
    # Files of the oldest level hide nothing, whichever of them have expired.
    assert live_levels([(*long, *short)], spec, 5) == [long]


@st.composite
def layers(draw: st.DrawFn) -> list[Layer]:
    made = []
    for op in draw(st.lists(st.sampled_from([DELETE, PUT, MERGE]), min_size=1, max_size=6)):
        unique = {} if op == MERGE else {"unique_by": lambda row: row[0]}
        rows = draw(st.lists(ROWS, min_size=1, max_size=4, **unique))
        made.append(Layer(op, table(SPEC, rows, keys_only=op == DELETE)))
    return made


def modelled(stack: list[Layer]) -> list[KeyRow]:
    model = TableModel(SPEC)
    for layer in stack:
        part = {DELETE: "delete", PUT: "put", MERGE: "merge"}[layer.op]
        model.apply(TableChanges(**{part: layer.rows}))
    return model.snapshot()


def rows_of(folded: pa.Table) -> list[KeyRow]:
    return sorted(as_tuples(folded), key=repr)


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
    kind: FileKind = "run" if first else "snapshot"
    picked = FileTable(SPEC, open_sources(objects, SPEC, files[first:last]), None, 1)
    (new,) = fold_into(objects, SPEC, picked, kind, segment_name(first, last - 1, f"s{last - 1}"))
    assert (new.kind, new.first, new.last, new.segment) == (kind, first, last - 1, f"s{last - 1}")
    whole = FileTable(SPEC, open_sources(objects, SPEC, [*files[:first], new, *files[last:]]), None, 1)
    expected = modelled([layer for group in stack for layer in group])
    assert [row for rows in whole.scan(EVERYTHING) for row in as_tuples(rows)] == expected


def test_what_has_expired_is_left_out_and_an_empty_fold_writes_nothing(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    files = [
        write_segment(objects, SPEC, [Layer(PUT, table(SPEC, [(t, t, None)]))], segment_name(t, t, f"s{t}"))
        for t in (1, 2, 3)
    ]

    def folded(expired: int) -> list[FileRef]:
        picked = FileTable(SPEC, open_sources(objects, SPEC, files), expired, 1 << 20)
        return fold_into(objects, SPEC, picked, "snapshot", segment_name(1, 3, "s3"))

    (left,) = open_sources(objects, SPEC, folded(2))
    (layer,) = left.layers(EVERYTHING)
    assert as_tuples(layer.rows) == [(3, 3, None)]
    assert folded(3) == []
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
