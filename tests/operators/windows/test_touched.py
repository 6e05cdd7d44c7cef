"""Events in every window that their lifetime touches, against a twin that tries each window."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.advance_time import Row
from tests.helpers.internals import plan_of
from tests.helpers.process import LONG, SCRATCH
from tests.helpers.two_streams import STORES
from tests.twins.cti import CtiTwin
from tidestate import Aggregation, agg, trigger
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.embedded.window_operator import WindowOperator
from tidestate.operators.streams.watermarks import stored_settings
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("until", TIME), ("v", "int64"), ("off", "int64")])
Event = tuple[str, int, int | None]
"""Key, start, and end or none, in microseconds."""
Window = tuple[str, int, int]


def us(many: int) -> str:
    return f"{many} microseconds"


def batch(events: list[tuple[int, Event]]) -> pa.Table:
    """Events by number, which is their offset and value."""
    columns = [
        pa.array([key for _, (key, _, _) in events], "string"),
        pa.array([start for _, (_, start, _) in events], pa.int64()).cast(TIME),
        pa.array([end for _, (_, _, end) in events], pa.int64()).cast(TIME),
        pa.array([number for number, _ in events], "int64"),
        pa.array([number for number, _ in events], "int64"),
    ]
    return pa.table(columns, schema=SCHEMA)


def touched(kind: Sliding, start: int, end: int | None) -> list[tuple[int, int]]:
    """The windows that a lifetime touches, each tried; events are between -100 and 200."""
    found = []
    for number in range(-400 // kind.slide, 600 // kind.slide):
        first = kind.shift + number * kind.slide
        if first < (start + 1 if end is None else end) and start < first + kind.size:
            found.append((first, first + kind.size))
    return found


events = st.tuples(st.sampled_from("ab"), st.integers(-50, 60), st.none() | st.integers(-50, 120))
kinds = st.builds(
    lambda size, slide, offset, tumbles: (
        ts.tumbling(us(size), offset=us(offset), of="lifetime")
        if tumbles
        else ts.sliding(us(size), us(slide), offset=us(offset), of="lifetime", strict=False)
    ),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 5),
    st.booleans(),
)


LASTING = ts.lifetime("until")
FEWER = settings(max_examples=settings.default.max_examples // (1 if LONG else 2))


def described(kind: Sliding, variant: str, late: int, rule: Any) -> Aggregation:
    events = ts.stream(event_time="t", offset="off", lifetime=LASTING)
    made = (
        events.group_by("k")
        .window(kind)
        .aggregate(n=agg.count(), total=agg.sum("v"), values=agg.list("v"), latest=agg.max("v"))
        .allowed_lateness(us(late), rule=rule)
    )
    if variant == "in order":
        made = made.in_order()
    if variant == "early":
        made = made.trigger(early=trigger.after_count(2))
    return made.accumulation("retracting")


def net(panes: list[pa.Table]) -> dict[Window, tuple[Any, ...]]:
    """What each window ends with."""
    found: Counter[tuple[Any, ...]] = Counter()
    for part in panes:
        part = part.set_column(0, "window_start", part["window_start"].cast(pa.int64()))
        part = part.set_column(1, "window_end", part["window_end"].cast(pa.int64()))
        for row in part.to_pylist():
            values = (row["n"], row["total"], tuple(sorted(row["values"])), row["latest"])
            window = (row["k"], row["window_start"], row["window_end"])
            found[(window, values)] += -1 if row["kind"] == "retract" else 1
    assert set(found.values()) <= {0, 1}
    return {window: values for (window, values), many in found.items() if many}


@FEWER
@given(
    kinds,
    st.lists(st.lists(events, max_size=6), min_size=1, max_size=4),
    st.sampled_from(["usual", "in order", "early"]),
    st.integers(0, 30),
    st.sampled_from(["event", "window"]),
    st.sampled_from(sorted(STORES)),
)
def test_an_event_is_in_every_window_that_its_lifetime_touches(
    kind: Sliding, given_: list[list[Event]], variant: str, late: int, rule: str, store: str
) -> None:
    expected: defaultdict[Window, list[int]] = defaultdict(list)
    watermark, number, bad, panes = None, 0, 0, []
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = described(kind, variant, late, rule).harness(
            SCHEMA, store=STORES[store], folder=folder, partitions=2
        )
        for part in given_:
            numbered = list(enumerate(part, number))
            number += len(part)
            seen = []
            for place, (key, start, end) in numbered:
                if end is not None and end <= start:
                    bad += 1
                    continue
                windows = touched(kind, start, end)
                if watermark is not None:
                    if rule == "event" and start < watermark - late:
                        continue
                    if rule == "window":
                        open_ = [window for window in windows if window[1] > watermark - late]
                        if windows and not open_:
                            continue
                        windows = open_
                seen.append(start)
                for window in windows:
                    expected[(key, *window)].append(place)
            panes.append(tested.feed(batch(numbered)))
            watermark = max([*seen, *([] if watermark is None else [watermark])], default=None)
            if watermark is not None:
                due = {window for window, values in expected.items() if values and window[2] <= watermark}
                assert due <= set(net(panes))
                assert variant == "early" or due == set(net(panes))
        panes.append(tested.finish())
        assert tested.ledger()["reason"].to_pylist().count("bad_window") == bad
    whole = {
        window: (len(values), sum(values), tuple(sorted(values)), max(values))
        for window, values in expected.items()
        if values
    }
    assert net(panes) == whole


@FEWER
@given(kinds, st.lists(events, max_size=12), st.integers(1, 12), st.sampled_from(["drop", "adjust"]))
def test_an_adjusted_interval_touches_windows_from_its_new_start(
    kind: Sliding, given_: list[Event], cut: int, policy: Any
) -> None:
    by_cti = ts.watermark.cti_settings(policy, generate=ts.watermark.generate_ctis(2))
    events = ts.stream(event_time="t", offset="off", lifetime=LASTING).watermark(ts.watermark.ctis(by_cti))
    made = events.group_by("k").window(kind).aggregate(values=agg.list("v"))
    made = made.allowed_lateness("100 days").accumulation("discarding")
    twin, expected = CtiTwin(stored_settings(by_cti)), Counter[tuple[Any, ...]]()
    for number, (key, start, end) in enumerate(given_):
        taken = twin.take(number, Row("interval", start, end))
        if taken and taken[0]:
            expected.update((key, *window, number) for window in touched(kind, taken[1], end))
    found: Counter[tuple[Any, ...]] = Counter()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = made.harness(SCHEMA, folder=folder, partitions=1)
        numbered = list(enumerate(given_))
        for part in (tested.feed(batch(numbered[:cut])), tested.feed(batch(numbered[cut:])), tested.finish()):
            bounds = [part[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
            for key, first, last, values in zip(
                part["k"].to_pylist(), *bounds, part["values"].to_pylist(), strict=True
            ):
                found.update((key, first, last, value) for value in values)
    assert found == expected


def test_too_many_windows_and_far_ends_are_in_the_ledger(tmp_path: Path) -> None:
    made = (
        ts.stream(event_time="t", lifetime=LASTING)
        .group_by("k")
        .window(ts.tumbling("1 microsecond", of="lifetime"))
        .aggregate(n=agg.count())
    )
    tested = made.harness(SCHEMA, folder=tmp_path / "root", partitions=1)
    tested.feed(batch([(0, ("a", 0, 100_000)), (1, ("a", 0, 100_002)), (2, ("a", 0, 2**62)), (3, ("a", 5, 5))]))
    assert tested.ledger()["reason"].to_pylist() == ["bad_window"] * 3
    assert tested.finish().num_rows == 100_000


def test_late_windows_are_reprocessed_one_by_one(tmp_path: Path) -> None:
    made = (
        ts.stream(event_time="t", lifetime=LASTING)
        .group_by("k")
        .window(ts.tumbling("10 microseconds", of="lifetime"))
    )
    made = (
        made.aggregate(n=agg.count())
        .allowed_lateness("0 seconds", rule="window")
        .retain_windows("1 second")
        .accumulation("retracting")
    )
    tested = made.harness(SCHEMA, folder=tmp_path / "root", partitions=1)
    tested.feed(batch([(0, ("a", 5, None)), (1, ("a", 15, None))]))
    tested.feed(batch([(2, ("a", 3, 25))]))
    assert tested.ledger()["window_start"].cast(pa.int64()).to_pylist() == [0]
    panes = tested.reprocess_late()
    assert [(row["kind"], row["n"]) for row in panes.to_pylist()] == [("retract", 1), ("emit", 2)]


def test_by_hand_each_message_is_in_every_window_that_its_lifetime_touches(tmp_path: Path) -> None:
    made = (
        ts.stream(event_time="t", lifetime=LASTING)
        .group_by("k")
        .window(ts.sliding("10 microseconds", "5 microseconds", of="lifetime"))
    )
    made = made.aggregate(values=agg.list("v")).allowed_lateness("0 seconds", rule="window")
    windows = made.graph.description
    with WindowOperator(windows, SCHEMA, checkpoint=tmp_path, origin="k", offset="off") as tested:
        tested.add_messages(batch([(0, ("a", 5, 12)), (1, ("a", 14, None))]))
        assert tested.add_messages(batch([(0, ("a", 5, 12)), (2, ("a", 3, 22))]))["duplicates"] == 1
        tested.drain()
        panes = pa.concat_tables([result.panes for result in tested.get_result()])
    found = {round(row["window_start"].timestamp() * 1e6): sorted(row["values"]) for row in panes.to_pylist()}
    assert found == {0: [0], 5: [0, 1, 2], 10: [0, 1, 2], 15: [2], 20: [2]}


def test_what_makes_no_sense_is_refused() -> None:
    kind = ts.tumbling("1 second", of="lifetime")
    made = ts.stream(event_time="t", lifetime=LASTING).group_by("k").window(kind).aggregate(n=agg.count())
    for code, wrong in (
        ("join-window", lambda: ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", window=kind)),
        (
            "join-window",
            lambda: ts.stream(event_time="t", lifetime=LASTING).join(
                ts.stream(event_time="t", lifetime=LASTING),
                on="k",
                left=ts.side(window=kind),
                sides=ts.side(retain="1 hour"),
            ),
        ),
        ("column-missing", lambda: made.harness(pa.schema([field for field in SCHEMA if field.name != "until"]))),
        ("event-time-type", lambda: made.harness(SCHEMA.set(2, pa.field("until", "int64")))),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == code


def test_the_earliest_event_of_a_window_has_no_bound() -> None:
    made = (
        ts.stream(event_time="t", lifetime=LASTING)
        .group_by("k")
        .window(ts.tumbling("1 second", of="lifetime"))
        .aggregate(n=agg.count())
    )
    plan = plan_of(made.pane_timestamp("earliest").harness(SCHEMA))
    with pytest.raises(UsageError) as caught:
        plan.output_watermark(5, "timestamp")
    assert caught.value.code == "chain-time"
    assert plan.output_watermark(1_500_000, "window_start") == 1_000_000
