"""Merges of two streams against brute force: the latest pane of each window holds what both sides brought."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import SCRATCH, examples, few
from tests.helpers.two_streams import SECOND, SIDES, STORES, Row, bound, by_side, numbered, rows, seconds
from tidestate import Aggregation, MergedStreams, UsageError, agg, watermark
from tidestate.operators.describe.configuration import configuration_of
from tidestate.statestore.spec.store import StoreConfig


def earned(prices: pa.Table) -> pa.Table:
    return pa.table({"balance": prices["left_price"], "moves": pa.array([1] * prices.num_rows, pa.int64())})


def spent(costs: pa.Table) -> pa.Table:
    balance = pc.negate(costs["right_cost"])
    return pa.table({"moves": pa.array([1] * costs.num_rows, pa.int64()), "balance": balance})


def both(older: pa.Table, newer: pa.Table) -> pa.Table:
    names = older.column_names
    return pa.table([pc.add(older[name], newer[name]) for name in names], names=names)


def balance_and_moves(states: pa.Table) -> pa.Array:
    columns = [states[name].combine_chunks() for name in ("balance", "moves")]
    return pa.StructArray.from_arrays(columns, names=["balance", "moves"])


def balance(*, lifts: dict[str, Any] | None = None, **changes: Any) -> Any:
    return agg.accumulate(
        **{
            "name": "balance",
            "columns": {"left": ["left_price"], "right": ["right_cost"]},
            "state": {"balance": pa.int64(), "moves": pa.int64()},
            "lift": {"left": earned, "right": spent} | (lifts or {}),
            "merge": both,
            "result": balance_and_moves,
            "result_type": pa.struct([("balance", pa.int64()), ("moves", pa.int64())]),
        }
        | changes
    )


def together(delays: tuple[int, int] = (0, 0), **settings: Any) -> MergedStreams:
    """Orders and costs, with these watermark delays in seconds."""
    orders, costs = (
        ts.stream(event_time=time, watermark_delay=f"{delay} s", **settings)
        for time, delay in zip(("ordered", "paid"), delays, strict=True)
    )
    return ts.merge(left=orders, right=costs)


def merged(windows: Any, late: int = 0, streams: MergedStreams | None = None) -> Aggregation:
    results: dict[str, Any] = {
        "n": agg.count(),
        "orders": agg.count("left_price"),
        "costs": agg.sum("right_cost"),
        "own": balance(),
        "left": agg.list("left_price"),
        "right": agg.list("right_cost"),
    }
    grouped = (streams or together()).group_by("k").window(windows)
    return grouped.aggregate(**results).allowed_lateness(f"{late} s", rule="window")


class Brute:
    """The rows of each window, and the watermark of each side."""

    def __init__(self, size: int, slide: int, late: int, delays: dict[str, int]) -> None:
        self.size, self.slide, self.late, self.delays = size, slide, late, delays
        self.windows: dict[tuple[str, int], list[tuple[int, int, Row]]] = {}
        self.batches = 0
        self.newest: dict[str, int] = {}
        self.watermark: int | None = None

    def batch(self, batch: list[Row]) -> None:
        before = self.watermark
        self.batches += 1
        for row in batch:
            newest = row.at // self.slide * self.slide
            starts = range(newest, row.at - self.size, -self.slide)
            open_ = [start for start in starts if before is None or start + self.size + self.late > before]
            for start in open_:
                late = self.batches if before is not None and start + self.size <= before else 0
                self.windows.setdefault((row.key, start), []).append((late, newest, row))
            if open_:
                self.newest[row.side] = max(self.newest.get(row.side, 0), row.at)
        if len(self.newest) == 2:
            marks = [newest - self.delays[side] for side, newest in self.newest.items()]
            self.watermark = max(min(marks), self.watermark if self.watermark is not None else min(marks))

    def observed(self) -> dict[tuple[str, int], dict[str, Any]]:
        passed = self.watermark
        return {
            # By slice, then as they arrived; late ones follow, batch by batch.
            place: self.answer([row for *_, row in sorted(held, key=lambda one: one[:2])])
            for place, held in self.windows.items()
            if passed is not None and place[1] + self.size <= passed
        }

    def answer(self, held: list[Row]) -> dict[str, Any]:
        left, right = ([row.value for row in held if row.side == side] for side in ("left", "right"))
        return {
            "n": len(held),
            "orders": len(left),
            "costs": sum(right) if right else None,
            "own": {"balance": sum(left) - sum(right), "moves": len(held)},
            "left": left,
            "right": right,
        }


def taken(panes: pa.Table, latest: dict[tuple[str, int], dict[str, Any]]) -> None:
    names = ["n", "orders", "costs", "own", "left", "right"]
    starts = seconds(panes, "window_start")
    for row, start in zip(panes.select(["k", *names]).to_pylist(), starts, strict=True):
        latest[row.pop("k"), start] = row


@pytest.mark.parametrize("store", few(STORES.values(), list(STORES).index("parquet")), ids=STORES)
def test_windows_hold_the_rows_of_both_sides(store: StoreConfig) -> None:
    @settings(deadline=None, max_examples=examples(20))
    @given(
        st.sampled_from([(5, 5), (10, 10), (6, 2), (9, 3)]),
        st.sampled_from([0, 4]),
        st.sampled_from([(0, 0), (3, 3), (0, 7)]),
        st.lists(st.lists(rows, max_size=8), min_size=1, max_size=5),
        st.booleans(),
    )
    def check(
        sizes: tuple[int, int], late: int, delays: tuple[int, int], batches: list[list[Row]], restart: bool
    ) -> None:
        size, slide = (f"{span} s" for span in sizes)
        job = merged(ts.tumbling(size) if size == slide else ts.sliding(size, slide), late, together(delays))
        brute = Brute(*sizes, late, dict(zip(("left", "right"), delays, strict=True)))
        latest: dict[tuple[str, int], dict[str, Any]] = {}
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            harness = job.harness(SIDES, store=store, folder=folder, partitions=2)
            for batch in numbered(batches):
                # The one stream has the left rows of a batch first.
                batch = sorted(batch, key=lambda row: row.side)
                brute.batch(batch)
                taken(harness.feed(by_side(batch)), latest)
                assert latest == brute.observed()
                if restart:
                    harness.restart()
            taken(harness.finish(), latest)
            brute.watermark = 10**6
            assert latest == brute.observed()

    check()


def test_sessions_are_of_both_sides_together() -> None:
    windows = together().sharing("gap").group_by().window(ts.sessions(gap_column="gap"))
    job = windows.aggregate(n=agg.count(), left=agg.list("left_price"), right=agg.list("right_cost"))
    harness = job.harness(SIDES)
    harness.feed(by_side([Row("left", "a", 0, 1), Row("right", "a", 8, 2), Row("left", "b", 4, 3)]))
    harness.feed(by_side([Row("right", "b", 10, 4, gap=1), Row("left", "b", 30, 5)]))
    panes = harness.finish()
    found = zip(panes["left"].to_pylist(), panes["right"].to_pylist(), seconds(panes, "window_end"), strict=True)
    assert list(found) == [([1, 3], [2, 4], 13), ([5], [], 35)]


def test_the_watermark_is_that_of_the_side_that_is_behind() -> None:
    harness = merged(ts.tumbling("10 s")).harness(SIDES)

    def fed(*batch: Row) -> list[int]:
        return seconds(harness.feed(by_side(list(batch))), "window_end")

    assert fed(Row("left", "a", 5, 1), Row("left", "a", 95, 2)) == []  # the right side has sent nothing yet
    assert fed(Row("right", "a", 12, 3)) == [10]
    assert fed(Row("left", "a", 200, 4)) == []
    assert fed(Row("right", "a", 31, 5)) == [20]


def test_a_watermark_of_another_kind_is_by_side_too() -> None:
    streams = together().watermark(watermark.bounded("2 s"), idle_timeout="5 s")
    job = merged(ts.tumbling("10 s"), streams=streams)
    harness = job.harness(SIDES)
    batch = [Row("left", "a", 5, 1), Row("left", "a", 22, 2)]
    assert harness.feed(by_side(batch)).num_rows == 0
    idle = harness.advance_processing_time(60 * SECOND)
    assert seconds(idle, "window_end") == []  # the side that is silent is idle; the other has sent nothing since
    assert seconds(harness.feed(by_side([Row("left", "a", 33, 3)])), "window_end") == [10, 30]
    assert configuration_of(job.graph.description)["watermark"]["by"] == "side"


def test_three_sides_and_an_order_of_their_own() -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("v", pa.int64()), ("n", pa.int64())])
    streams = ts.merge(**{side: ts.stream(event_time="t", offset="n") for side in "abc"})
    job = (
        streams.group_by()
        .window(ts.count_windows(3))
        .aggregate(n=agg.count(), **{s: agg.list(f"{s}_v") for s in "abc"})
    )
    parts = {
        side: pa.table({"t": [number], "v": [number], "n": [number]}).cast(
            pa.schema([("t", pa.int64()), ("v", pa.int64()), ("n", pa.int64())])
        )
        for side, number in (("a", 3), ("b", 1), ("c", 2))
    }
    harness = job.harness(dict.fromkeys(parts, schema))
    panes = harness.feed({side: rows_.cast(schema) for side, rows_ in parts.items()})
    assert panes.select(["n", "a", "b", "c"]).to_pylist() == [{"n": 3, "a": [3], "b": [1], "c": [2]}]
    assert configuration_of(job.graph.description)["sides"]["names"] == ["a", "b", "c"]


def test_an_accumulation_travels_and_says_what_it_is() -> None:
    made = pickle.loads(pickle.dumps(balance()))
    assert made == balance()
    assert made.columns == ("side", "left_price", "right_cost")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "too few rows": ({"left": lambda rows_: earned(rows_).slice(1)}, "own-function"),
    "no table": ({"right": lambda rows_: rows_["right_cost"]}, "own-function"),
    "another type": (
        {"right": lambda rows_: pa.table({"balance": ["x"] * len(rows_), "moves": [1] * len(rows_)})},
        "own-function",
    ),
    "another column": ({"left": lambda rows_: rows_}, "own-function"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_lift_returns_is_checked(name: str) -> None:
    lifts, code = WRONG[name]
    windows = together().group_by("k").window(ts.tumbling("5 s"))
    harness = windows.aggregate(own=balance(lifts=lifts, name=f"balance {name}")).harness(SIDES)
    with pytest.raises(UsageError, match=code):
        harness.feed(by_side([Row("left", "a", 1, 1), Row("right", "a", 1, 1)]))


def counted(streams: MergedStreams, key: str = "k") -> Aggregation:
    return streams.group_by(key).window(ts.tumbling("5 s")).aggregate(n=agg.count())


def timed(name: str | None = None) -> Any:
    return ts.stream(name, event_time="t")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "one side": (lambda: counted(ts.merge(a=timed())), "sides"),
    "a side twice": (lambda: ts.merge(timed("a"), timed("a")), "sides"),
    "a side without a name": (lambda: counted(ts.merge(**{"a": timed(), "": timed()})), "sides"),
    "a stream without a name": (lambda: ts.merge(timed("a"), timed()), "stream-name"),
    "by the time": (lambda: counted(ts.merge(a=timed(), b=timed()), "t"), "key-columns"),
    "by the side": (lambda: counted(together(), "side"), "key-columns"),
    "an origin without an offset": (lambda: together(origin="o"), "offset"),
    "negative delay": (lambda: together((-1, -1)), "watermark-delay"),
    "no name": (lambda: counted(together()).named("a b"), "operator-name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_merges_are_refused(name: str) -> None:
    streams, code = REFUSED[name]
    with pytest.raises(UsageError, match=rf"\[{code}\]"):
        streams()


def test_keys_are_shared_anyway() -> None:
    assert counted(together().sharing("k")).graph.description == counted(together()).graph.description


def test_columns_of_no_side_windows_of_offsets_and_lifts_of_nothing_are_refused() -> None:
    begun = together(offset="n").group_by("k")
    with pytest.raises(UsageError, match=r"\[column-missing\]"):
        bound(together().group_by("k").window(ts.tumbling("1 s")).aggregate(m=agg.list("middle_price")))
    with pytest.raises(UsageError, match="aggregate-option"):
        balance(columns={"left": (), "right": ["right_cost"]})
    with pytest.raises(UsageError, match=r"\[offset\]"):
        begun.window(ts.offset_windows(5)).aggregate(n=agg.count())
    with pytest.raises(UsageError, match=r"\[window\]"):
        begun.window("1 hour")  # type: ignore[arg-type]
