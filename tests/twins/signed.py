"""A naive twin of operators whose input takes rows back, and the streams it is fed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import tidestate as ts
from tests.twins import naive_aggregates as naive
from tests.twins.naive_aggregates import Naive
from tidestate import Aggregation, agg, trigger
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.engine.job import Job
from tidestate.operators.local.harness import Harness
from tidestate.operators.plan.graph import single_operator
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.start.policy import Policy

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("t", TIME),
        ("k", pa.string()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("window_start", TIME),
        ("window_end", TIME),
    ]
)
Window = tuple[int, int, str]
Values = tuple[Any, ...]


class Signed(Harness):
    """A harness whose input takes rows back."""

    def _begin(self, policy: Policy) -> Job:
        assert isinstance(self._schema, pa.Schema)
        graph = single_operator(bind_plan(self.description, self._schema, signed=True))
        checkpoint = Checkpoint.open_or_create(self._folder)
        return Job.begin(graph, checkpoint, self._store, partitions=self._partitions, policy=policy)


@dataclass(frozen=True)
class Row:
    """``number`` tells rows apart; the operator does not see it."""

    t: int
    k: str | None
    v: int | None
    x: float | None
    number: int

    @property
    def event(self) -> dict[str, Any]:
        return {"t": self.t, "v": self.v, "x": self.x}


def total(events: list[dict[str, Any]]) -> int | None:
    found = naive.values(events)
    return sum(found) if found else None


def average(events: list[dict[str, Any]]) -> float | None:
    found = naive.values(events)
    return sum(found) / len(found) if found else None


def doubles(events: list[dict[str, Any]]) -> float | None:
    found = [event["x"] for event in events if event["x"] is not None]
    return sum(found) if found else None


AGGREGATES: dict[str, tuple[Aggregate, Naive, tuple[str, ...]]] = {
    "n": (agg.count(), len, ()),
    "nv": (agg.count("v"), lambda events: len(naive.values(events)), ()),
    "total": (agg.sum("v"), total, ()),
    "avg": (agg.mean("v"), average, ()),
    "sx": (agg.sum("x"), doubles, ("x",)),
    "least": (agg.min("v"), lambda events: min(naive.values(events), default=None), ("v",)),
    "most": (agg.max("v"), lambda events: max(naive.values(events), default=None), ("v",)),
    "newest": (agg.last("v", by="t"), naive.chosen("t", largest=True, newest=True), ("v", "t")),
    "listed": (agg.list("v"), naive.listed(), ("v",)),
    "tally": (agg.count_by_value("v"), naive.tallied, ("v",)),
    "middle": (agg.median("v"), naive.quantile(0.5, "linear"), ("v",)),
    "best": (agg.top_n("v", 2), naive.top(2, "v"), ("v",)),
    "spread": (agg.stddev("v"), naive.spread(population=False, root=True), ("v",)),
}
LINEAR = ("n", "nv", "total")


@dataclass(frozen=True)
class Case:
    windows: str
    mode: str
    allowed: int
    rule: str
    triggers: dict[str, Any]
    names: tuple[str, ...]

    def description(self) -> Aggregation:
        given_ = self.windows == "given"
        job = ts.stream(event_time=None if given_ else "t").group_by("k")
        kinds = {
            "tumbling": ts.tumbling("10 microseconds"),
            "sliding": ts.sliding("10 microseconds", "5 microseconds"),
            "global": ts.global_window(),
        }
        if not given_:
            job = job.window(kinds[self.windows])
        job = job.aggregate(**{name: AGGREGATES[name][0] for name in self.names})
        job = job.allowed_lateness(f"{self.allowed} microseconds", rule=self.rule)  # type: ignore[arg-type]
        return job.trigger(**self.triggers).accumulation(self.mode)  # type: ignore[arg-type]

    def windows_of(self, row: Row) -> list[tuple[int, int]]:
        if self.windows == "global":
            return [(-62_135_596_800_000_000, 253_402_300_799_999_999)]
        start = row.t // 10 * 10 if self.windows != "sliding" else row.t // 5 * 5
        starts = [start - 5, start] if self.windows == "sliding" else [start]
        return [(start, start + 10) for start in starts]


TRIGGERS: list[dict[str, Any]] = [
    {},
    {},
    {"early": trigger.each_batch()},
    {"early": trigger.each_batch(), "only_updated": True},
    {"early": trigger.after_count(2), "late": trigger.after_count(3), "closing": "if_new"},
    {"late": None, "closing": "if_new"},
    {"on_time": "non_empty", "closing": "always"},
    {"on_time": "never", "early": trigger.each_batch(), "closing": "always"},
    {"early": trigger.after_processing_time("3 microseconds"), "late": trigger.each_batch()},
    {"when": trigger.repeatedly(trigger.any_of(trigger.after_count(2), trigger.after_watermark()))},
]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    mode = draw(st.sampled_from(["accumulating", "retracting", "retracting", "discarding"]))
    names = LINEAR if mode == "discarding" else tuple(AGGREGATES)
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return Case(
        draw(st.sampled_from(["tumbling", "sliding", "global", "given"])),
        mode,
        draw(st.sampled_from([0, 5, 30])),
        draw(st.sampled_from(["event", "window"])),
        draw(st.sampled_from(TRIGGERS)),
        ("n", *(name for name in chosen if name != "n")),
    )


Batch = list[tuple[int, Row]]


@st.composite
def streams(draw: st.DrawFn) -> list[Batch]:
    """Batches of rows; each is taken back at most once, in the batch that brought it or in a later one."""
    standing: list[Row] = []
    number, batches = 0, []
    for base in range(draw(st.integers(1, 6))):
        batch: Batch = []
        for back in draw(st.lists(st.booleans(), max_size=8)):
            if back and standing:
                row = draw(st.sampled_from(standing))
                standing.remove(row)
                batch.append((-1, row))
                continue
            time = draw(st.integers(max(0, 6 * base - 15), 6 * base + 12))
            value, double = draw(st.one_of(st.none(), st.integers(-2, 2))), draw(st.sampled_from([None, 0.5, 1e18]))
            row = Row(time, draw(st.sampled_from(["a", "a", "b", "c", None])), value, double, number)
            number += 1
            standing.append(row)
            batch.append((1, row))
        batches.append(batch)
    return batches


def table(case: Case, batch: Batch) -> pa.Table:
    rows = []
    for sign, row in batch:
        (start, end) = case.windows_of(row)[0] if case.windows == "given" else (None, None)
        rows.append(
            row.event
            | {"k": row.k, "kind": "emit" if sign > 0 else "retract", "window_start": start, "window_end": end}
        )
    return pa.Table.from_pylist(rows, SCHEMA)


@dataclass
class Twin:
    """Per window and key all rows that were accepted, in order, with their signs."""

    case: Case
    watermark: int | None = None
    rows: dict[Window, list[tuple[int, Row]]] = field(default_factory=dict)
    rejected: int = 0

    def feed(self, batch: Batch) -> None:
        times = []
        for sign, row in batch:
            place = row.t
            if self.case.windows == "given":
                place = self.case.windows_of(row)[0][1] - 1
            windows = [window for window in self.case.windows_of(row) if not self.closed(place, window[1])]
            if row.k is None or not windows:
                self.rejected += 1
                continue
            self.rejected += len(windows) < len(self.case.windows_of(row))
            times.append(place)
            for window in windows:
                self.rows.setdefault((*window, row.k), []).append((sign, row))
        if times:
            self.watermark = max([*times, *([self.watermark] if self.watermark is not None else [])])

    def closed(self, place: int, end: int) -> bool:
        if self.watermark is None:
            return False
        bound = self.watermark - self.case.allowed
        return place < bound if self.case.rule == "event" else end <= bound

    def net(self) -> dict[Window, Values]:
        """The values of windows that have rows left."""
        found = {}
        for window, signed in self.rows.items():
            if sum(sign for sign, _ in signed):
                found[window] = tuple(self.value(name, signed) for name in self.case.names)
        return found

    def value(self, name: str, signed: list[tuple[int, Row]]) -> Any:
        """A row takes back the newest one before it that is the same to the aggregate; to sums all are."""
        _, compute, columns = AGGREGATES[name]
        if not columns:
            gone = Counter(row.number for sign, row in signed if sign < 0)
            return compute([row.event for sign, row in signed if sign > 0 and not gone[row.number]])
        left: list[Row] = []
        for sign, row in signed:
            if sign > 0:
                left.append(row)
            else:
                what = [row.event[column] for column in columns]
                places = [n for n, one in enumerate(left) if [one.event[column] for column in columns] == what]
                del left[places[-1]]
        return compute([row.event for row in left])


def rows_of(case: Case, panes: pa.Table) -> list[tuple[Window, Values, int, str]]:
    bounds = [panes[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
    values = zip(*(panes[name].to_pylist() for name in case.names), strict=True)
    windows = zip(*bounds, panes["k"].to_pylist(), strict=True)
    return list(zip(windows, map(tuple, values), panes["pane"].to_pylist(), panes["kind"].to_pylist(), strict=True))


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(close, found, expected))
    return bool(found == expected)


def read_retracting(case: Case, observed: list[tuple[Window, Values, int, str]]) -> dict[Window, Values]:
    """A retraction takes back the pane that stands, and a new pane comes where none stands."""
    standing: dict[Window, tuple[Values, int]] = {}
    for window, values, number, kind in observed:
        if kind == "retract":
            assert standing.pop(window) == (values, number)
        else:
            assert window not in standing
            standing[window] = (values, number)
    return {window: values for window, (values, _) in standing.items()}


def read_accumulating(case: Case, observed: list[tuple[Window, Values, int, str]]) -> dict[Window, Values]:
    """The newest pane stands; one of no rows stands for no window."""
    newest = {window: values for window, values, _, _ in observed}
    empty = tuple(AGGREGATES[name][1]([]) for name in case.names)
    for values in newest.values():
        assert values[0] or close(values, empty)
    return {window: values for window, values in newest.items() if values[0]}


def read_discarding(case: Case, observed: list[tuple[Window, Values, int, str]]) -> dict[Window, Values]:
    sums: dict[Window, list[int]] = {}
    for window, values, _, _ in observed:
        so_far = sums.setdefault(window, [0] * len(values))
        sums[window] = [one + (value or 0) for one, value in zip(so_far, values, strict=True)]
    return {window: tuple(values) for window, values in sums.items() if values[0]}


READ: dict[str, Callable[..., dict[Window, Values]]] = {
    "retracting": read_retracting,
    "accumulating": read_accumulating,
    "discarding": read_discarding,
}
