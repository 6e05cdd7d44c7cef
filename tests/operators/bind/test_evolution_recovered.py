"""A changed job that is killed, rewound, forked or divided again around its change; a chain of which one operator
changes; what is fed back under other names.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.children.evolution import ROWS, changed
from tests.children.standalone import store_config
from tests.helpers.changed_jobs import CASES, CHANGED, added, events, first, tables
from tests.helpers.forked import forked
from tests.helpers.moves import fork, reset_to
from tests.helpers.other_cuts import CHAINED, KINDS, Event, standing, table
from tests.helpers.process import LONG, few, forget
from tests.helpers.recut_roots import in_seconds, stream
from tests.helpers.spark_inputs import rows as plain
from tidestate import Aggregation, agg
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.inspect.query import query
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.traces import REACHED
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig, StoreName
from tidestate.statestore.spec.tables import TIME

STORES: list[StoreConfig] = [Parquet(max_levels=2), Memory(max_levels=2), RocksDB(max_levels=2)]
EVENTS = events(6)
EVENTS_BY_ID = stream(random.Random(3))
Observed = list[list[tuple[object, ...]]]


def run(described: Any, root: Path, batches: list[pa.Table], store: StoreConfig, *, drain: bool = False) -> None:
    forget()  # as a new process
    described.standalone(checkpoint=root, store=store).run(batches, drain=drain)


def observed(root: Path, last: int | None = None) -> Observed:
    """Panes of each checkpoint that counts and has any."""
    checkpoint = Checkpoint.open(root)
    refs = [one.panes for one in checkpoint.outputs(last=last) if one.panes]
    found = [[pq.read_table(checkpoint.objects.locate(ref.path)) for ref in own] for own in refs]
    return [plain(pa.concat_tables(own)) for own in found]


def of_batches(root: Path, number: int) -> int:
    """The first checkpoint that has so many batches."""
    return next(one.id for one in Checkpoint.open(root).history() if one.input and one.input.batches == number)


def in_one_go(
    root: Path, before: Any, after: Any, since: int, batches: tuple[list[pa.Table], list[pa.Table]]
) -> Observed:
    """A job that is changed after so many batches, and to which nothing else happens."""
    run(before, root, batches[0][:since], Parquet())
    run(after, root, batches[1], Parquet(), drain=True)
    return observed(root)


@pytest.mark.parametrize(
    ("moment", "name"),
    few([("before", "rocksdb"), ("after", "parquet"), ("before", "parquet"), ("after", "memory")], 1),
)
def test_killed_at_the_fence_of_a_change(tmp_path: Path, moment: str, name: StoreName) -> None:
    root, cache, before = tmp_path / "root", tmp_path / "cache", first("sliding", "retracting")
    run(before, root, ROWS[:CHANGED], store_config(name, cache))
    had = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.parent.name != REACHED}
    assert forked("tests.children.evolution", root, name, cache, moment) == -signal.SIGKILL
    left = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert had.items() <= left.items()
    fence = CHANGED + 2
    assert [path.name for path in left.keys() - had.keys() if path.parent.name == "manifests"] == [
        f"{fence:020d}.json" for _ in range(moment == "after")
    ]
    run(changed(), root, ROWS, store_config(name, cache), drain=True)
    head = Checkpoint.open(root).read(Checkpoint.open(root).ids()[-1]).manifest
    assert head.operators["windows"].since == fence
    assert observed(root) == in_one_go(tmp_path / "whole", before, changed(), CHANGED, (ROWS, ROWS))
    assert verify(Checkpoint.open(root), read_percent=100).worst is None


CASES_AROUND = [
    pytest.param("all", Parquet(max_levels=2), id="all"),
    pytest.param("column", Memory(max_levels=2), id="column"),
    pytest.param("early and added", RocksDB(max_levels=2), id="early"),
]


def around(turn: int) -> pytest.MarkDecorator:
    """Changes and stores: in the long form all, else each test has its own."""
    return pytest.mark.parametrize(("name", "store"), CASES_AROUND if LONG else [CASES_AROUND[turn]])


class Jobs:
    """A job before and after a change, and its input for each."""

    def __init__(self, name: str) -> None:
        case = CASES[name]
        self.before = first("sliding", "retracting")
        self.after = case.change(self.before)
        self.old, self.new = tables(EVENTS), tables(EVENTS, case.value, case.kind)

    def changed_after(self, since: int, folder: Path) -> Observed:
        """What it shows if nothing else happens than a change after so many batches."""
        root = folder / f"changed-after-{since}"
        return in_one_go(root, self.before, self.after, since, (self.old, self.new))

    def unchanged(self, folder: Path) -> Observed:
        run(self.before, folder / "unchanged", self.old, Parquet(), drain=True)
        return observed(folder / "unchanged")


@pytest.mark.slow
@around(0)
@pytest.mark.long
def test_rewound_to_before_a_change(tmp_path: Path, name: str, store: StoreConfig) -> None:
    """The old description goes on as if there had been no change, the new one changes there."""
    jobs, root, other = Jobs(name), tmp_path / "root", tmp_path / "other"
    run(jobs.before, root, jobs.old[:CHANGED], store)
    run(jobs.after, root, jobs.new[: CHANGED + 2], store)
    reset_to(Checkpoint.open(root), of_batches(root, CHANGED - 1))
    shutil.copytree(root, other)
    run(jobs.before, root, jobs.old, store, drain=True)
    assert observed(root) == jobs.unchanged(tmp_path)
    run(jobs.after, other, jobs.new, store, drain=True)
    assert observed(other) == jobs.changed_after(CHANGED - 1, tmp_path)
    for one in (root, other):
        assert verify(Checkpoint.open(one), read_percent=100).worst is None


@pytest.mark.slow
@around(1)
def test_changed_and_divided_again(tmp_path: Path, name: str, store: StoreConfig) -> None:
    """Between the last batch before a change and the start after it; in the long form after that too."""
    jobs, roots = Jobs(name), [tmp_path / "between"]
    if LONG:
        roots.append(tmp_path / "after")
    for root in roots:
        run(jobs.before, root, jobs.old[:CHANGED], store)
    for root in roots[1:]:
        run(jobs.after, root, jobs.new[: CHANGED + 2], store)
    wanted = jobs.changed_after(CHANGED, tmp_path)
    for root in roots:
        rescale(root, 3)
        run(jobs.after, root, jobs.new, store, drain=True)
        assert observed(root) == wanted
        assert verify(Checkpoint.open(root), read_percent=100).worst is None


@pytest.mark.slow
@around(2)
@pytest.mark.long
def test_a_fork_that_is_changed(tmp_path: Path, name: str, store: StoreConfig) -> None:
    """From a checkpoint of a job that goes on unchanged; the fork reads its files through the new tables."""
    jobs, root = Jobs(name), tmp_path / "root"
    run(jobs.before, root, jobs.old[: CHANGED + 2], store)
    at = of_batches(root, CHANGED)
    fork(root, tmp_path / "fork", at)
    run(jobs.after, tmp_path / "fork", jobs.new, store, drain=True)
    begun = len(observed(root, last=at))
    assert observed(tmp_path / "fork") == jobs.changed_after(CHANGED, tmp_path)[begun:]
    run(jobs.before, root, jobs.old, store, drain=True)
    assert observed(root) == jobs.unchanged(tmp_path)
    for one in (root, tmp_path / "fork"):
        assert verify(Checkpoint.open(one), read_percent=100).worst is None


def per_key(*, later: bool, **more: Aggregate) -> Aggregation:
    """Counts per key, added up. Later the first operator has an aggregate more, one renamed, and more patience; the
    second one has ``more``.
    """
    began = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    if later:
        first = began.aggregate(n=agg.count(), which=agg.sum("bit"), highest=agg.max("id")).named("job")
        first = first.allowed_lateness("20 seconds", ledger_columns=["id"]).renamed(aggregates={"bits": "which"})
    else:
        first = began.aggregate(n=agg.count(), bits=agg.sum("bit")).named("job")
        first = first.allowed_lateness("10 seconds", ledger_columns=["id"])
    grouped = first.accumulation("retracting").group_by().window(ts.tumbling(f"{CHAINED} seconds"))
    second = grouped.aggregate(n=agg.sum("n"), bits=agg.sum("which" if later else "bits"), **more).named("second")
    second = second.allowed_lateness("1 hour").accumulation("retracting")
    return second.renamed(columns={"bits": "which"}) if later else second


@pytest.mark.slow
@pytest.mark.parametrize("store", few(STORES, 1), ids=lambda one: one.name)
def test_a_chain_of_which_one_operator_changes(tmp_path: Path, store: StoreConfig) -> None:
    """Every event is once in what the second shows or in the ledger of the first, by the lateness of its time."""
    batches = [EVENTS_BY_ID[number : number + 6] for number in range(0, 60, 6)]
    rows, since, looked = [table(part) for part in batches], 5, 6
    run(per_key(later=False), tmp_path, rows[:since], store)
    had = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    more = per_key(later=True)
    refused = per_key(later=True, highest=agg.max("highest"))
    with pytest.raises(IncompatibleError, match="retracted from now on"):
        run(refused, tmp_path, rows, store)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == had
    run(more, tmp_path, rows[:looked], store)
    taken, ledger = taken_in(batches, since)
    check_added(tmp_path, [one for part in batches[:looked] for one in part if one.id in taken], since * 6)
    run(more, tmp_path, rows, store, drain=True)
    checkpoint = Checkpoint.open(tmp_path)
    panes = [read(checkpoint, one.panes) for one in checkpoint.outputs()]
    late = [row["id"] for one in checkpoint.outputs() for row in read(checkpoint, one.late)]
    assert sorted(late) == sorted(ledger)
    wanted: dict[tuple[int, int, None], set[int]] = {}
    for one in taken.values():
        start = (one.at or 0) // CHAINED * CHAINED
        wanted.setdefault((start, start + CHAINED, None), set()).add(one.id)
    assert standing(panes, KINDS["chain"]) == wanted


def read(checkpoint: Checkpoint, refs: Sequence[FileRef]) -> list[dict[str, Any]]:
    found = [pq.read_table(checkpoint.objects.locate(ref.path)) for ref in refs]
    return [row for one in found for row in in_seconds(one)]


def taken_in(batches: list[list[Event]], since: int) -> tuple[dict[int, Event], list[int]]:
    """The events that the chain takes, and those in its ledger: 10 seconds of patience, later 20, but not for windows
    that had been forgotten by then.
    """
    taken: dict[int, Event] = {}
    ledger: list[int] = []
    reached, forgotten = None, -1_000_000
    for number, part in enumerate(batches):
        mark = None if reached is None else reached - 5
        if number == since:
            assert mark is not None
            forgotten = mark - 10
        for one in part:
            late = mark is not None and (one.at or 0) < mark - (20 if number >= since else 10)
            gone = (one.at or 0) // 10 * 10 + 10 <= forgotten
            if one.at is None or one.key is None or late or gone:
                ledger.append(one.id)
                continue
            taken[one.id] = one
            reached = one.at if reached is None else max(reached, one.at)
    return taken, ledger


def check_added(root: Path, events: list[Event], first_new: int) -> None:
    """The windows of the first operator: all of each under the new name, the new aggregate of what came since."""
    windows = in_seconds(query(root, operator="job").get_windows())
    assert windows
    for row in windows:
        own = [
            one.id
            for one in events
            if one.key == row["k"] and row["window_start"] <= (one.at or 0) < row["window_end"]
        ]
        newer = [number for number in own if number >= first_new]
        assert (row["n"], row["which"]) == (len(own), sum(1 << number for number in own))
        assert row["highest"] == max(newer, default=None)
    assert {row["highest"] is None for row in windows} == {True, False}


def rows_of(parts: list[list[tuple[int, str, int]]], names: tuple[str, str, str]) -> list[pa.Table]:
    """Seconds, keys and values, by these names."""
    schema = pa.schema(list(zip(names, (TIME, pa.string(), pa.int64()), strict=True)))
    return [
        pa.table(
            [pa.array([one[0] * 1_000_000 for one in part]).cast(TIME), *([one[n] for one in part] for n in (1, 2))],
            schema=schema,
        )
        for part in parts
    ]


def named(names: tuple[str, str, str]) -> Aggregation:
    time, key, value = names
    began = ts.stream(event_time=time).group_by(key).window(ts.tumbling("10 seconds"))
    return (
        began.aggregate(n=agg.count(), s=agg.sum(value))
        .named("job")
        .allowed_lateness("0 seconds")
        .retain_windows("5 minutes")
    )


FIRST_NAMES = ("t", "k", "v")
NAMES = {
    "once": [(("time", "user", "price"), {"t": "time", "k": "user", "v": "price"})],
    "and the mapping has gone": [(("t", "user", "price"), {"k": "user", "v": "price"}), (("t", "user", "price"), {})],
    "twice": [
        (("t", "user", "price"), {"k": "user", "v": "price"}),
        (("t", "who", "cost"), {"user": "who", "price": "cost"}),
    ],
    "and back": [(("t", "k", "price"), {"v": "price"}), (("t", "k", "v"), {"price": "v"})],
}


@pytest.mark.parametrize("name", NAMES)
def test_what_came_too_late_is_fed_back_under_other_names(tmp_path: Path, name: str) -> None:
    """Key, time and value are those of the events, whatever the columns are called by now."""
    parts = [[(1, "a", 1), (30, "a", 2)], [(2, "a", 4), (3, "b", 5)], [(31, "a", 8)], [(4, "a", 16)], [(32, "b", 32)]]
    run(named(FIRST_NAMES), tmp_path, rows_of(parts[:2], FIRST_NAMES), Parquet())
    for number, (names, mapping) in enumerate(NAMES[name], 3):
        runner = named(names).renamed(columns=mapping).standalone(checkpoint=tmp_path)
        runner.run(rows_of(parts[:number], names))
    runner.run(rows_of(parts, names))
    key = names[1]
    fed = [(row[key], row["n"], row["s"]) for row in runner.reprocess_late().to_pylist()]
    assert sorted(fed) == [("a", 3, 21), ("b", 1, 5)]
    assert runner.reprocess_late().num_rows == 0


def test_a_new_column_by_an_old_name_is_not_what_the_ledger_has(tmp_path: Path) -> None:
    """What is called v now is not what was: in rows of the ledger from before, it is null."""
    parts = [[(1, "a", 1), (30, "a", 2)], [(2, "a", 4)], [(31, "a", 8)]]
    run(named(FIRST_NAMES), tmp_path, rows_of(parts[:2], FIRST_NAMES), Parquet())
    later = named(("t", "k", "price")).renamed(columns={"v": "price"})
    run(later, tmp_path, rows_of(parts, ("t", "k", "price")), Parquet())
    newest = added(named(("t", "k", "price")), other=agg.sum("v"))
    runner = newest.standalone(checkpoint=tmp_path)
    runner.run([part.append_column("v", part["price"]) for part in rows_of(parts, ("t", "k", "price"))])
    assert runner.reprocess_late().select(["n", "s", "other"]).to_pylist() == [{"n": 2, "s": 5, "other": None}]
