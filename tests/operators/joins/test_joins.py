"""Joins of two streams: what is refused, layouts, the page. What they show: tests/operators/joins/test_twin.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.orders import ORDERS, SECOND, SHIPMENTS, TIME, Row, tables
from tests.helpers.two_streams import bound
from tidestate import JoinedStream, UsageError
from tidestate.operators.joins.plan import JoinPlan

Pair = tuple[Any, ...]
SCHEMAS = {"left": ORDERS, "right": SHIPMENTS}


def near(**choices: Any) -> JoinedStream:
    """Orders, and what is shipped in the five seconds after each."""
    orders, shipments = ts.stream(event_time="ordered"), ts.stream(event_time="shipped")
    return orders.join(shipments, **{"on": "order", "within": ("0 s", "5 s")} | choices)


def joined(one: dict[str, Any] | None = None, other: dict[str, Any] | None = None, **choices: Any) -> JoinedStream:
    """Of two streams with these settings."""
    left, right = (ts.stream(**{"event_time": "t"} | (settings or {})) for settings in (one, other))
    return left.join(right, **{"on": "k"} | choices)


def observed(panes: pa.Table) -> list[Pair]:
    return [(row["order"], row["left_price"], row["right_weight"]) for row in panes.to_pylist()]


def test_each_side_has_a_watermark_and_the_smaller_one_counts() -> None:
    harness = near(how="left").harness(SCHEMAS)

    def feed(*fed: Row) -> list[Pair]:
        return observed(harness.feed(tables(list(fed))))

    assert feed(Row("left", "a", 1, 1), Row("left", "b", 90, 2)) == []  # the right side has sent nothing yet
    assert feed(Row("right", "b", 93, 3)) == [("b", 2, 3), ("a", 1, None)]


def test_a_late_partner_takes_back_what_was_emitted_alone() -> None:
    for unmatched, expected in (
        ("close", [("emit", 1, None), ("retract", 1, None), ("emit", 1, 2)]),
        ("final", [("emit", 1, 2)]),
    ):
        join = near(how="left", allowed_lateness="20 s", unmatched=unmatched)
        harness = join.harness(SCHEMAS)
        harness.feed(tables([Row("left", "a", 10, 1)]))
        panes = [harness.advance_watermark(20 * SECOND)]
        harness.restart()
        panes += [harness.feed(tables([Row("right", "a", 12, 2)])), harness.finish()]
        rows = [row for table in panes for row in table.to_pylist()]
        assert [(row["kind"], row["left_price"], row["right_weight"]) for row in rows] == expected
        assert bound(join, ORDERS, SHIPMENTS).retracts == (unmatched == "close")


def stored_around(join: JoinedStream, at_us: int, gone_us: int) -> tuple[int, int]:
    """How often a left row at ``at_us`` is stored with the watermark a microsecond before ``gone_us``, and there."""
    harness = join.harness(SCHEMAS, generate=False)
    row = pa.table([["a"], pa.array([at_us]).cast(TIME), [1]], schema=ORDERS)
    harness.feed({"left": row})
    harness.advance_watermark(gone_us - 1)
    before = harness.state("left").num_rows
    harness.advance_watermark(gone_us)
    return before, harness.state("left").num_rows


def test_a_row_is_kept_to_the_microsecond() -> None:
    """As long as it can meet others, and as long as is asked for where that is longer."""
    at = 10 * SECOND
    assert stored_around(near(), at, at + 5 * SECOND + 1) == (1, 0)
    assert stored_around(near(allowed_lateness="2 s"), at, at + 7 * SECOND + 1) == (1, 0)
    assert stored_around(near(sides=ts.side(retain="1 minute")), at, at + 60 * SECOND + 1) == (1, 0)
    assert stored_around(near(sides=ts.side(retain="1 s")), at, at + 5 * SECOND + 1) == (1, 0)
    early: dict[str, Any] = {"within": ("-9 s", "-3 s")}
    assert stored_around(near(**early), at, at - 3 * SECOND + 1) == (1, 0)
    assert stored_around(near(**early, how="left"), at, at + 1) == (1, 0)
    windows: dict[str, Any] = {"within": None, "window": ts.tumbling("10 s")}
    two, one = ts.Retention(windows=2), ts.Retention(span="25 s", windows=1)
    assert stored_around(near(**windows), at, 20 * SECOND) == (1, 0)
    assert stored_around(near(**windows, sides=ts.side(retain="25 s")), at, 45 * SECOND) == (1, 0)
    assert stored_around(near(**windows, sides=ts.side(retain=two)), at, 40 * SECOND) == (1, 0)
    assert stored_around(near(**windows, sides=ts.side(retain=one)), at, 30 * SECOND) == (1, 0)


def test_of_a_side_with_windows_of_its_own_so_much_is_kept() -> None:
    """What the limits ask for, by the one that keeps least, and never less than the current window."""
    by_offset, by_time = ts.offset_windows(3), ts.tumbling("4 s")
    asked: list[tuple[Any, Any, list[int]]] = [
        (by_offset, ts.Retention(offsets=5), [16, 17, 18, 19, 20]),
        (by_offset, ts.Retention(offsets=1), [18, 19, 20]),
        (by_offset, ts.Retention(windows=2), [*range(12, 21)]),
        (by_time, "10 s", [*range(10, 21)]),
        (by_time, "1 s", [19, 20]),
        (by_time, ts.Retention(span="10 s", windows=1), [16, 17, 18, 19, 20]),
        (by_time, ts.Retention(span="3 s", windows=2), [17, 18, 19, 20]),
    ]
    made = [{"k": "a", "t": number * SECOND, "o": number, "from": "x", "v": 0.0} for number in range(21)]
    rows = pa.Table.from_pylist(made, PLACES.set(1, pa.field("t", pa.int64()))).cast(PLACES)
    for window, kept, expected in asked:
        join = joined(
            {"offset": "o"}, left=ts.side(window=window, retain=kept), right=ts.side(retain="1 h"), in_order=False
        )
        harness = join.harness({"left": PLACES, "right": PLACES})
        harness.feed({"left": rows})
        assert harness.state("left")["offset"].to_pylist() == expected, kept


def test_a_held_pair_is_emitted_at_its_microsecond() -> None:
    harness = near(sides=ts.side(update="4 s")).harness(SCHEMAS)
    harness.advance_processing_time(SECOND)
    both = tables([Row("left", "a", 10, 1), Row("right", "a", 12, 2)])
    assert harness.feed(both).num_rows == 0
    assert harness.advance_processing_time(4 * SECOND - 1).num_rows == 0
    assert observed(harness.advance_processing_time(4 * SECOND)) == [("a", 1, 2)]
    assert harness.finish().num_rows == 0


def test_of_windows_that_overlap_a_pair_is_emitted_in_the_first() -> None:
    """Samza: "only send the first occurence of a message"; in each window where that is asked for."""
    overlapping: dict[str, Any] = {"within": None, "window": ts.sliding("20 s", "5 s")}
    for occurrence, times in (("first", 1), ("each", 3)):
        harness = near(**overlapping, occurrence=occurrence).harness(SCHEMAS)
        panes = harness.feed(tables([Row("left", "a", 12, 1), Row("right", "a", 18, 2)]))
        assert observed(pa.concat_tables([panes, harness.finish()])) == [("a", 1, 2)] * times


def test_a_replay_is_counted_and_produces_nothing() -> None:
    schema = pa.schema([("k", pa.string()), ("t", TIME), ("o", pa.int64()), ("from", pa.string())])
    identity = {"offset": "o", "origin": "from"}
    join = joined(identity, identity, within=("0 s", "5 s"), how="full", identity=True)
    harness = join.harness({"left": schema, "right": schema})
    rows = pa.table([["a"], pa.array([SECOND]).cast(TIME), [7], ["x"]], schema=schema)
    both = {"left": pa.concat_tables([rows, rows]), "right": rows}
    panes = harness.feed(both)
    assert panes.select(["left_o", "left_from", "right_o", "right_from"]).to_pylist() == [
        {"left_o": 7, "left_from": "x", "right_o": 7, "right_from": "x"}
    ]
    harness.restart()
    assert harness.feed(both).num_rows == 0
    assert harness.counters()["duplicates"] == 4
    assert [harness.state(side).num_rows for side in ("left", "right", "left_seen", "right_seen")] == [1, 1, 1, 1]
    nowhere = pa.table([["a"], pa.array([SECOND]).cast(TIME), pa.array([None], pa.int64()), ["x"]], schema=schema)
    assert harness.feed({"left": nowhere}).num_rows == 0
    assert harness.ledger()["reason"].to_pylist() == ["bad_offset"]


@pytest.mark.parametrize("own", [False, True])
def test_keys_may_have_the_names_of_the_message_store(own: bool) -> None:
    schema = pa.schema([("origin", pa.string()), ("end_time", pa.int64()), ("t", TIME), ("o", pa.int64())])
    offset = {"offset": "o"} if own else {}
    join = joined(offset, offset, on=("origin", "end_time"), within=("0 s", "5 s"), how="full", identity=own)
    harness = join.harness({"left": schema, "right": schema})

    def rows(*rows: tuple[str, int, int, int | None]) -> pa.Table:
        columns = list(zip(*rows, strict=True))
        times = pa.array([second * SECOND for second in columns[2]]).cast(TIME)
        return pa.table([columns[0], columns[1], times, pa.array(columns[3], pa.int64())], schema=schema)

    fed = {"left": rows(("x", 1, 1, 5), ("y", 1, 1, 6)), "right": rows(("x", 1, 2, 7), ("x", 2, 2, 8))}
    panes = pa.concat_tables([harness.feed(fed), harness.finish()])
    names = ["origin", "end_time", "left_o", "right_o"]
    found = [tuple(row.values()) for row in panes.select(names).to_pylist()]
    assert sorted(found, key=repr) == [("x", 1, 5, 7), ("x", 2, None, 8), ("y", 1, 6, None)]
    if own:
        again = join.harness({"left": schema, "right": schema})
        again.feed({"left": rows(("z", 3, 1, None))})
        assert again.ledger().select(["origin", "end_time", "reason"]).to_pylist() == [
            {"origin": "z", "end_time": 3, "reason": "bad_offset"}
        ]


SECONDLY, OF_OFFSETS = ts.tumbling("1 s"), ts.offset_windows(3)
OFFSET = {"offset": "o"}
ALL: dict[str, Any] = {"within": (None, None)}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no bounds": (lambda: joined(), "join-bounds"),
    "no bounds, and one side retains nothing": (lambda: joined(left=ts.side(retain="1 h")), "join-bounds"),
    "neither key nor bounds": (lambda: joined(on=(), sides=ts.side(retain="1 h")), "join-bounds"),
    "bounds and windows": (lambda: joined(**ALL, window=SECONDLY), "join-bounds"),
    "bounds the wrong way round": (lambda: joined(within=("2 s", "1 s")), "join-bounds"),
    "sessions": (lambda: joined(window=ts.sessions("1 s")), "join-window"),
    "no such join": (lambda: joined(**ALL, how="semi"), "join-how"),
    "a key twice": (lambda: joined(**ALL, on=("k", "k")), "join-on"),
    "on the offset": (lambda: joined({"offset": "k"}, {"offset": "k"}, **ALL, identity=True), "join-on"),
    "an origin without an offset": (lambda: joined({"origin": "o"}, {"origin": "o"}, **ALL), "offset"),
    "origin and offset in one": (
        lambda: joined(OFFSET | {"origin": "o"}, OFFSET | {"origin": "o"}, **ALL, identity=True),
        "join-offset",
    ),
    "offsets for both sides": (lambda: joined(OFFSET, OFFSET, window=OF_OFFSETS), "join-window"),
    "counted messages": (lambda: joined(left=ts.side(window=ts.count_windows(3))), "join-window"),
    "a session of one side": (lambda: joined(left=ts.side(window=ts.sessions("1 s"))), "join-window"),
    "offsets that are not named": (lambda: joined(left=ts.side(window=OF_OFFSETS)), "join-offset"),
    "offsets that are not named there": (lambda: joined(OFFSET, right=ts.side(window=OF_OFFSETS)), "join-offset"),
    "windows of each side as one": (lambda: joined(window=(SECONDLY, None)), "join-window"),
    "lateness with windows of each side": (
        lambda: joined(left=ts.side(window=SECONDLY), allowed_lateness="1 s"),
        "lateness",
    ),
    "a negative delay": (lambda: joined({}, {"watermark_delay": "-1 s"}, **ALL), "watermark-delay"),
    "each of no windows": (lambda: joined(**ALL, occurrence="each"), "join-occurrence"),
    "no such occurrence": (lambda: joined(window=SECONDLY, occurrence="last"), "join-occurrence"),
    "no such moment": (lambda: joined(**ALL, unmatched="never"), "join-unmatched"),
    "messages of a side by time": (
        lambda: joined(OFFSET, OFFSET, **ALL, sides=ts.side(retain=ts.Retention(offsets=5))),
        "join-retain",
    ),
    "messages without offsets": (lambda: joined(sides=ts.side(retain=ts.Retention(offsets=5))), "join-retain"),
    "a span of a side by offset": (
        lambda: joined(OFFSET, OFFSET, left=ts.side(window=OF_OFFSETS, retain="1 h")),
        "join-retain",
    ),
    "a period of no time": (lambda: joined(**ALL, sides=ts.side(update="0 s")), "join-update"),
    "on the time": (lambda: joined(**ALL, on="t"), "join-on"),
    "negative lateness": (lambda: joined(**ALL, allowed_lateness="-1 s"), "lateness"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_joins_are_refused(name: str) -> None:
    join, code = REFUSED[name]
    with pytest.raises(UsageError, match=rf"\[{code}\]"):
        join()


@pytest.mark.parametrize("limits", [{}, {"offsets": 0}, {"span": "-1 s"}], ids=repr)
def test_a_retention_of_nothing_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="join-retain"):
        joined(OFFSET, OFFSET, sides=ts.side(retain=ts.Retention(**limits)))


def test_windows_are_kept_of_a_side_that_has_some() -> None:
    with pytest.raises(UsageError, match="join-retain"):
        joined(within=("0 s", "1 s"), sides=ts.side(retain=ts.Retention(windows=2)))


PLACES = pa.schema([("k", pa.string()), ("t", TIME), ("o", pa.int64()), ("from", pa.string()), ("v", pa.float64())])
UNBOUND: dict[str, tuple[dict[str, Any], dict[str, Any], pa.Schema, str]] = {
    "an offset that is not there": (
        {"offset": "form"},
        ALL,
        PLACES,
        r"mean 'from' for 'form'.*column-missing.* side=left .*columns=\['k', 't', 'o', 'from', 'v'\]",
    ),
    "an offset that is no whole number": ({"offset": "v"}, ALL, PLACES, r"\[offset\]"),
    "an origin that is a number with a point": ({"offset": "o", "origin": "v"}, ALL, PLACES, "key-float"),
    "windows and a column of their name": (
        {},
        {"on": "window_end", "window": SECONDLY},
        pa.schema([("window_end", TIME), ("t", TIME)]),
        "name-taken",
    ),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_what_does_not_fit_the_input_is_refused(name: str) -> None:
    order, choices, schema, code = UNBOUND[name]
    join = joined(order, order, **choices, identity=bool(order))
    with pytest.raises(UsageError, match=code):
        bound(join, schema, schema)


LARGE: dict[str, Any] = {"large_windows": True}
SMALL: dict[str, Any] = {"large_windows": False}
LAYOUTS: dict[str, tuple[JoinedStream, tuple[str, str]]] = {
    "equal and near": (joined(within=("0 s", "1 s")), ("ts_eq_offset", "ts_eq_offset")),
    "equal and in one window": (joined(window=SECONDLY), ("ts_eq_offset", "ts_eq_offset")),
    "equal and far": (joined(within=("0 s", "1 s"), **LARGE), ("eq_ts_offset", "eq_ts_offset")),
    "equal and after": (joined(within=("0 s", None)), ("eq_ts_offset", "eq_ts_offset")),
    "equal and near, small": (joined(within=("0 s", None), **SMALL), ("ts_eq_offset", "ts_eq_offset")),
    "equal, small": (joined(sides=ts.side(retain="1 h"), **SMALL), ("eq_ts_offset", "eq_ts_offset")),
    "near": (joined(on=(), within=("0 s", "1 s")), ("ts_offset", "ts_offset")),
    "windows of both": (joined(window=SECONDLY, **SMALL), ("ts_eq_offset", "ts_eq_offset")),
    "by tuples": (
        joined(OFFSET, OFFSET, left=ts.side(window=OF_OFFSETS), identity=True),
        ("eq_offset", "eq_offset"),
    ),
    "by tuples and time": (
        joined(OFFSET, left=ts.side(window=OF_OFFSETS), right=ts.side(window=SECONDLY), **SMALL),
        ("offset", "eq_ts_offset"),
    ),
    "equal, by tuples": (
        joined(
            OFFSET,
            OFFSET,
            left=ts.side(retain=ts.Retention(offsets=100)),
            right=ts.side(retain="1 h"),
            identity=True,
        ),
        ("eq_offset", "eq_ts_offset"),
    ),
    "by tuples alone": (
        joined(OFFSET, OFFSET, on=(), left=ts.side(window=OF_OFFSETS), identity=True),
        ("offset", "offset"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_follow_the_matrix_and_are_emitted(name: str) -> None:
    join, layouts = LAYOUTS[name]
    plan = bound(join, PLACES, PLACES)
    assert isinstance(plan, JoinPlan)
    assert tuple(plan.layouts[side].name for side in ("left", "right")) == layouts
    for side, layout in zip(("left", "right"), layouts, strict=True):
        assert plan.stores[side].layout.name == layout
        distinct = [name for name in plan.sides[side].key_names if name not in plan.equal_names]
        assert distinct[-1] == "origin"
        assert set(plan.equal_names) <= set(plan.sides[side].key_names)


def test_sides_that_do_not_fit_are_refused() -> None:
    join = near(within=(None, None))
    with pytest.raises(UsageError, match=r"column-missing.*side=right.*'shipped'.*columns=\['order', ") as refused:
        join.harness({"left": ORDERS, "right": ORDERS})
    assert refused.value.context["columns"] == ORDERS.names
    other = pa.schema([("order", pa.int64()), ("shipped", TIME)])
    with pytest.raises(UsageError, match="side-types"):
        join.harness({"left": ORDERS, "right": other})


def test_a_join_keeps_no_windows_to_feed_back_to() -> None:
    with pytest.raises(UsageError, match=r"\[feed\]"):
        near().harness(SCHEMAS).reprocess_late()


def test_a_key_that_begins_as_a_side_is_no_column_of_it() -> None:
    own = pa.schema([("left_id", "int64"), ("t", TIME)])
    harness = joined(on="left_id", within=("0 s", "5 s")).harness({"left": own, "right": own})
    row = pa.table([[7], pa.array([SECOND]).cast(TIME)], schema=own)
    panes = harness.feed({"left": row, "right": row})
    assert panes.column_names == ["left_id", "time", "left_t", "right_t", "kind"]
    assert panes["left_id"].to_pylist() == [7]
