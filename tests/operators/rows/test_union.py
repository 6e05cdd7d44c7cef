"""Unions: every row is passed on at once with its side, whatever the watermark; only rows without a time are not."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import SCRATCH, examples
from tests.helpers.two_streams import SECOND, STORES, TIME
from tidestate import OperatorStream, Stream
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.spec.store import StoreConfig

PANES = pa.schema(
    [
        ("k", pa.string()),
        ("t", TIME),
        ("v", pa.list_(pa.int64())),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
    ]
)
NAMES = ("a", "b", "c")
Event = tuple[str, str | None, int | None, list[int]]
events = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(["x", "y", None]),
    st.one_of(st.none(), st.integers(-50, 50)),
    st.lists(st.integers(0, 9), max_size=3),
)


def three() -> OperatorStream:
    return ts.union(a=ts.stream(event_time="t"), b=ts.stream(event_time="t"), c=ts.stream(event_time="t"))


def by_side(batch: list[Event]) -> dict[str, pa.Table]:
    sides = {}
    for side in NAMES:
        own = [(k, None if at is None else at * SECOND, v) for name, k, at, v in batch if name == side]
        columns: list[Any] = [
            pa.array([k for k, _, _ in own], pa.string()),
            pa.array([at for _, at, _ in own], pa.int64()).cast(TIME),
            pa.array([v for _, _, v in own], pa.list_(pa.int64())),
            pa.array(["emit"] * len(own), pa.string()).dictionary_encode().cast(PANES.field("kind").type),
        ]
        sides[side] = pa.table(columns, schema=PANES)
    return sides


def reported(panes: pa.Table) -> Counter[tuple[Any, ...]]:
    times = [at // SECOND for at in panes["time"].cast(pa.int64()).to_pylist()]
    assert panes["time"].equals(panes["t"])
    columns = (panes["side"].to_pylist(), panes["k"].to_pylist(), times, panes["v"].to_pylist())
    return Counter((side, k, at, tuple(v)) for side, k, at, v in zip(*columns, strict=True))


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_every_row_is_passed_on_in_its_batch(store: StoreConfig) -> None:
    @settings(deadline=None, max_examples=examples(15))
    @given(st.lists(st.lists(events, max_size=8), min_size=1, max_size=4), st.integers(1, 3), st.booleans())
    def check(batches: list[list[Event]], partitions: int, restart: bool) -> None:
        description, lost = three(), 0
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            schema = dict.fromkeys(NAMES, PANES)
            harness = description.harness(schema, store=store, folder=folder, partitions=partitions)
            for batch in batches:
                panes = harness.feed(by_side(batch))
                timed = [(*one[:3], tuple(one[3])) for one in batch if one[2] is not None]
                assert reported(panes) == Counter(timed)
                lost += len(batch) - len(timed)
                if restart:
                    harness.restart()
            assert harness.finish().num_rows == 0
            ledger = harness.ledger()
        assert ledger["reason"].to_pylist() == ["null_event_time"] * lost

    check()


def test_the_watermark_is_the_smallest_and_holds_what_is_to_come() -> None:
    description = ts.union(
        a=ts.stream(event_time="t", watermark_delay="0 s"),
        b=ts.stream(event_time="t", watermark_delay="5 s"),
        c=ts.stream(event_time="t", watermark_delay="0 s"),
    )
    stored = of_type(description.graph.description, Sided)
    plan: Any = bind_plan(stored, stored.sides.schema(dict.fromkeys(NAMES, PANES)))
    assert [plan.output_watermark(mark) for mark in (BEGINNING_US, 7, END_US)] == [BEGINNING_US, 7, END_US]
    with pytest.raises(UsageError, match="chain-time"):
        plan.output_watermark(7, "window_end")
    runner = description.standalone(checkpoint=tempfile.mkdtemp())
    batches = [[("a", "x", 20, [])], [("b", "x", 30, []), ("c", "x", 40, [])]]
    seen = []
    for count, _ in enumerate(runner.stream(by_side(batch) for batch in batches)):  # type: ignore[arg-type]
        seen.append(runner.head.watermark_us)
        assert count == len(seen) - 1
    assert seen[1] == 20 * SECOND


def test_it_runs_alone_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    description = three()
    events = [[("a", "x", at, [at]), ("b", "y", at + 1, [])] for at in range(4)]
    batches = [by_side(batch) for batch in events]
    whole = [(side, k, at, tuple(v)) for batch in events for side, k, at, v in batch]
    first = description.standalone(checkpoint=tmp_path, partitions=2).run(batches[:2])
    rest = description.standalone(checkpoint=tmp_path, partitions=2).run(batches, drain=True)
    assert reported(first) + reported(rest) == Counter(whole)
    assert first.schema.names == ["k", "t", "v", "kind", "side", "time"]


def test_a_union_is_a_side_of_another() -> None:
    inner = ts.union(a=ts.stream("a", event_time="t"), b=ts.stream("b", event_time="t"), name="inner")
    outer = ts.union(both=inner, more=ts.stream("more", event_time="t"), name="outer")
    harness = outer.harness(dict.fromkeys(("a", "b", "more"), PANES))
    panes = harness.feed({"a": by_side([("a", "x", 7, [])])["a"]})
    assert panes.column_names == ["k", "t", "v", "kind", "side", "time"]
    assert (panes["side"].to_pylist(), panes["time"].cast(pa.int64()).to_pylist()) == (["both"], [7 * SECOND])


def at() -> Stream:
    return ts.stream(event_time="t")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "one side": (lambda: ts.union(a=at()), "sides"),
    "negative delay": (lambda: ts.stream(event_time="t", watermark_delay="-1 s"), "watermark-delay"),
    "no name": (lambda: ts.union(a=at(), b=at(), name=""), "operator-name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_unions_are_refused(name: str) -> None:
    wrong, code = REFUSED[name]
    with pytest.raises(UsageError, match=rf"\[{code}\]"):
        wrong()


def test_sides_that_differ_are_refused() -> None:
    more = PANES.append(pa.field("extra", pa.int64()))
    with pytest.raises(UsageError, match="side-columns"):
        three().harness({"a": PANES, "b": PANES, "c": more})
    with pytest.raises(UsageError, match="column-missing"):
        three().harness({"a": more, "b": PANES, "c": more})
