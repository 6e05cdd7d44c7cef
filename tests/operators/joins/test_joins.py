"""Joins of two streams: what is refused, layouts, the page. What they show: tests/operators/joins/test_twin.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.orders import ORDERS, SECOND, SHIPMENTS, TIME, Row, tables
from tidestate.operators import tumbling
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.join_choices import keep
from tidestate.operators.describe.windows import count_window, session
from tidestate.operators.joins.plan import JoinPlan
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError

Pair = tuple[Any, ...]


def observed(panes: pa.Table) -> list[Pair]:
    return [(row["order"], row["left_price"], row["right_weight"]) for row in panes.to_pylist()]


def test_each_side_has_a_watermark_and_the_smaller_one_counts() -> None:
    description = join(event_time=("ordered", "shipped"), on="order", within=("0 s", "5 s"), how="left")
    schema = description.schema(ORDERS, SHIPMENTS)
    harness = Harness(description, schema)

    def feed(*fed: Row) -> list[Pair]:
        return observed(harness.feed(description.rows(schema, **tables(list(fed)))))

    assert feed(Row("left", "a", 1, 1), Row("left", "b", 90, 2)) == []  # the right side has sent nothing yet
    assert feed(Row("right", "b", 93, 3)) == [("b", 2, 3), ("a", 1, None)]


def test_a_late_partner_takes_back_what_was_emitted_alone() -> None:
    near = {"event_time": ("ordered", "shipped"), "on": "order", "within": ("0 s", "5 s"), "late": "20 s"}
    for unmatched, expected in (
        ("close", [("emit", 1, None), ("retract", 1, None), ("emit", 1, 2)]),
        ("final", [("emit", 1, 2)]),
    ):
        description = join(**near, how="left", unmatched=unmatched)  # type: ignore[arg-type]
        schema = description.schema(ORDERS, SHIPMENTS)
        harness = Harness(description, schema)
        harness.feed(description.rows(schema, **tables([Row("left", "a", 10, 1)])))
        panes = [harness.advance_watermark(20 * SECOND)]
        harness.restart()
        panes += [harness.feed(description.rows(schema, **tables([Row("right", "a", 12, 2)]))), harness.finish()]
        rows = [row for table in panes for row in table.to_pylist()]
        assert [(row["kind"], row["left_price"], row["right_weight"]) for row in rows] == expected
        assert bind_plan(description, schema).retracts == (unmatched == "close")


def stored_around(description: Any, at_us: int, gone_us: int) -> tuple[int, int]:
    """How often a left row at ``at_us`` is stored with the watermark a microsecond before ``gone_us``, and there."""
    schema = description.schema(ORDERS, SHIPMENTS)
    harness = Harness(description, schema, generate=False)
    row = pa.table([["a"], pa.array([at_us]).cast(TIME), [1]], schema=ORDERS)
    harness.feed(description.rows(schema, left=row))
    harness.advance_watermark(gone_us - 1)
    before = harness.state("left").num_rows
    harness.advance_watermark(gone_us)
    return before, harness.state("left").num_rows


def test_a_row_is_kept_to_the_microsecond() -> None:
    """As long as it can meet others, and as long as is asked for where that is longer."""
    near: dict[str, Any] = {"event_time": ("ordered", "shipped"), "on": "order", "within": ("0 s", "5 s")}
    at = 10 * SECOND
    assert stored_around(join(**near), at, at + 5 * SECOND + 1) == (1, 0)
    assert stored_around(join(**near, late="2 s"), at, at + 7 * SECOND + 1) == (1, 0)
    assert stored_around(join(**near, retain="1 minute"), at, at + 60 * SECOND + 1) == (1, 0)
    assert stored_around(join(**near, retain="1 s"), at, at + 5 * SECOND + 1) == (1, 0)
    early = near | {"within": ("-9 s", "-3 s")}
    assert stored_around(join(**early), at, at - 3 * SECOND + 1) == (1, 0)
    assert stored_around(join(**early, how="left"), at, at + 1) == (1, 0)
    windows = near | {"within": None, "window": tumbling("10 s")}
    assert stored_around(join(**windows), at, 20 * SECOND) == (1, 0)
    assert stored_around(join(**windows, retain="25 s"), at, 45 * SECOND) == (1, 0)
    assert stored_around(join(**windows, retain=keep(windows=2)), at, 40 * SECOND) == (1, 0)
    assert stored_around(join(**windows, retain=keep("25 s", windows=1)), at, 30 * SECOND) == (1, 0)


def test_of_a_side_with_windows_of_its_own_so_much_is_kept() -> None:
    """What the limits ask for, by the one that keeps least, and never less than the current window."""
    by_offset, by_time = count_window(3, by="offset"), tumbling("4 s")
    asked: list[tuple[Any, Any, list[int]]] = [
        (by_offset, keep(messages=5), [16, 17, 18, 19, 20]),
        (by_offset, keep(messages=1), [18, 19, 20]),
        (by_offset, keep(windows=2), [*range(12, 21)]),
        (by_time, keep("10 s"), [*range(10, 21)]),
        (by_time, keep("1 s"), [19, 20]),
        (by_time, keep("10 s", windows=1), [16, 17, 18, 19, 20]),
        (by_time, keep("3 s", windows=2), [17, 18, 19, 20]),
    ]
    made = [{"k": "a", "t": number * SECOND, "o": number, "from": "x", "v": 0.0} for number in range(21)]
    rows = pa.Table.from_pylist(made, PLACES.set(1, pa.field("t", pa.int64()))).cast(PLACES)
    for window, kept, expected in asked:
        chosen: dict[str, Any] = {"offset": ("o", None), "retain": (kept, "1 h"), "in_order": False}
        description = join(event_time="t", on="k", window=(window, None), **chosen)
        schema = description.schema(PLACES, PLACES)
        harness = Harness(description, schema)
        harness.feed(description.rows(schema, left=rows))
        assert harness.state("left")["offset"].to_pylist() == expected, kept


def test_a_held_pair_is_emitted_at_its_microsecond() -> None:
    near: dict[str, Any] = {"event_time": ("ordered", "shipped"), "on": "order", "within": ("0 s", "5 s")}
    description = join(**near, update="4 s")
    schema = description.schema(ORDERS, SHIPMENTS)
    harness = Harness(description, schema)
    harness.advance_processing_time(SECOND)
    both = tables([Row("left", "a", 10, 1), Row("right", "a", 12, 2)])
    assert harness.feed(description.rows(schema, **both)).num_rows == 0
    assert harness.advance_processing_time(4 * SECOND - 1).num_rows == 0
    assert observed(harness.advance_processing_time(4 * SECOND)) == [("a", 1, 2)]
    assert harness.finish().num_rows == 0


def test_a_replay_is_counted_and_produces_nothing() -> None:
    schema = pa.schema([("k", pa.string()), ("t", TIME), ("o", pa.int64()), ("from", pa.string())])
    description = join(event_time="t", on="k", within=("0 s", "5 s"), how="full", offset="o", origin="from")
    one = description.schema(schema, schema)
    harness = Harness(description, one)
    rows = pa.table([["a"], pa.array([SECOND]).cast(TIME), [7], ["x"]], schema=schema)
    both = description.rows(one, left=pa.concat_tables([rows, rows]), right=rows)
    panes = harness.feed(both)
    assert panes.select(["left_o", "left_from", "right_o", "right_from"]).to_pylist() == [
        {"left_o": 7, "left_from": "x", "right_o": 7, "right_from": "x"}
    ]
    harness.restart()
    assert harness.feed(both).num_rows == 0
    assert harness.counters()["duplicates"] == 4
    assert [harness.state(side).num_rows for side in ("left", "right", "left_seen", "right_seen")] == [1, 1, 1, 1]
    nowhere = pa.table([["a"], pa.array([SECOND]).cast(TIME), pa.array([None], pa.int64()), ["x"]], schema=schema)
    assert harness.feed(description.rows(one, left=nowhere)).num_rows == 0
    assert harness.ledger()["reason"].to_pylist() == ["bad_offset"]


@pytest.mark.parametrize("own", [False, True])
def test_keys_may_have_the_names_of_the_message_store(own: bool) -> None:
    schema = pa.schema([("origin", pa.string()), ("end_time", pa.int64()), ("t", TIME), ("o", pa.int64())])
    given: dict[str, Any] = {"offset": "o"} if own else {}
    description = join(event_time="t", on=("origin", "end_time"), within=("0 s", "5 s"), how="full", **given)
    one = description.schema(schema, schema)
    harness = Harness(description, one)

    def rows(*rows: tuple[str, int, int, int | None]) -> pa.Table:
        columns = list(zip(*rows, strict=True))
        times = pa.array([second * SECOND for second in columns[2]]).cast(TIME)
        return pa.table([columns[0], columns[1], times, pa.array(columns[3], pa.int64())], schema=schema)

    fed = description.rows(one, left=rows(("x", 1, 1, 5), ("y", 1, 1, 6)), right=rows(("x", 1, 2, 7), ("x", 2, 2, 8)))
    panes = pa.concat_tables([harness.feed(fed), harness.finish()])
    names = ["origin", "end_time", "left_o", "right_o"]
    found = [tuple(row.values()) for row in panes.select(names).to_pylist()]
    assert sorted(found, key=repr) == [("x", 1, 5, 7), ("x", 2, None, 8), ("y", 1, 6, None)]
    if own:
        again = Harness(description, one)
        again.feed(description.rows(one, left=rows(("z", 3, 1, None))))
        assert again.ledger().select(["origin", "end_time", "reason"]).to_pylist() == [
            {"origin": "z", "end_time": 3, "reason": "bad_offset"}
        ]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no bounds": ({}, "join-bounds"),
    "no bounds, and one side retains nothing": ({"retain": ("1 h", None)}, "join-bounds"),
    "neither key nor bounds": ({"on": (), "retain": "1 h"}, "join-bounds"),
    "bounds and windows": ({"within": (None, None), "window": tumbling("1 s")}, "join-bounds"),
    "bounds the wrong way round": ({"within": ("2 s", "1 s")}, "join-bounds"),
    "sessions": ({"window": session("1 s")}, "join-window"),
    "no such join": ({"within": (None, None), "how": "semi"}, "join-how"),
    "a key twice": ({"within": (None, None), "on": ("k", "k")}, "join-on"),
    "on the offset": ({"within": (None, None), "offset": "k"}, "join-on"),
    "an origin without an offset": ({"within": (None, None), "origin": "o"}, "join-offset"),
    "origin and offset in one": ({"within": (None, None), "origin": "o", "offset": "o"}, "join-offset"),
    "offsets for both sides": ({"window": count_window(3, by="offset")}, "join-window"),
    "counted messages": ({"window": (count_window(3), None)}, "join-window"),
    "a session of one side": ({"window": (session("1 s"), None)}, "join-window"),
    "offsets that are not named": ({"window": (count_window(3, by="offset"), None)}, "join-offset"),
    "offsets that are not named there": (
        {"window": (None, count_window(3, by="offset")), "offset": ("o", None)},
        "join-offset",
    ),
    "three windows": ({"window": (None, None, None)}, "join-pair"),
    "lateness with windows of each side": ({"window": (tumbling("1 s"), None), "late": "1 s"}, "lateness"),
    "a negative delay": ({"within": (None, None), "watermark_delay": ("0 s", "-1 s")}, "lateness"),
    "each of no windows": ({"within": (None, None), "occurrence": "each"}, "join-occurrence"),
    "no such occurrence": ({"window": tumbling("1 s"), "occurrence": "last"}, "join-occurrence"),
    "no such moment": ({"within": (None, None), "unmatched": "never"}, "join-unmatched"),
    "messages of a side by time": ({"within": (None, None), "offset": "o", "retain": 5}, "join-retain"),
    "messages without offsets": ({"retain": 5}, "join-retain"),
    "a span of a side by offset": (
        {"window": (count_window(3, by="offset"), None), "offset": "o", "retain": ("1 h", None)},
        "join-retain",
    ),
    "a period of no time": ({"within": (None, None), "update": "0 s"}, "join-update"),
    "on the time": ({"within": (None, None), "on": "t"}, "join-on"),
    "negative lateness": ({"within": (None, None), "late": "-1 s"}, "lateness"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_joins_are_refused(name: str) -> None:
    asked, code = REFUSED[name]
    with pytest.raises(UsageError, match=code):
        join(**({"event_time": "t", "on": "k"} | asked))


@pytest.mark.parametrize(
    ("asked", "code"),
    [({}, "join-retain"), ({"messages": 0}, "join-retain"), ({"span": "-1 s"}, "join-retain")],
)
def test_a_retention_of_nothing_is_refused(asked: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        keep(**asked)


def test_windows_are_kept_of_a_side_that_has_some() -> None:
    with pytest.raises(UsageError, match="join-retain"):
        join(event_time="t", on="k", within=("0 s", "1 s"), retain=keep(windows=2))


PLACES = pa.schema([("k", pa.string()), ("t", TIME), ("o", pa.int64()), ("from", pa.string()), ("v", pa.float64())])
UNBOUND: dict[str, tuple[dict[str, Any], pa.Schema, str]] = {
    "an offset that is not there": (
        {"offset": "form"},
        PLACES,
        r"mean 'from' for 'form'.*column-missing.* side=left .*columns=\['k', 't', 'o', 'from', 'v'\]",
    ),
    "an offset that is no whole number": ({"offset": "v"}, PLACES, r"\[offset\]"),
    "an origin that is a number with a point": ({"offset": "o", "origin": "v"}, PLACES, "key-float"),
    "windows and a column of their name": (
        {"on": "window_end", "within": None, "window": tumbling("1 s")},
        pa.schema([("window_end", TIME), ("t", TIME)]),
        "name-taken",
    ),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_what_does_not_fit_the_input_is_refused(name: str) -> None:
    asked, schema, code = UNBOUND[name]
    description = join(**({"event_time": "t", "on": "k", "within": (None, None)} | asked))
    with pytest.raises(UsageError, match=code):
        bind_plan(description, description.schema(schema, schema))


LAYOUTS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "equal and near": ({"within": ("0 s", "1 s")}, ("ts_eq_offset", "ts_eq_offset")),
    "equal and in one window": ({"window": tumbling("1 s")}, ("ts_eq_offset", "ts_eq_offset")),
    "equal and far": ({"within": ("0 s", "1 s"), "large_windows": True}, ("eq_ts_offset", "eq_ts_offset")),
    "equal and after": ({"within": ("0 s", None)}, ("eq_ts_offset", "eq_ts_offset")),
    "equal and near, small": ({"within": ("0 s", None), "large_windows": False}, ("ts_eq_offset", "ts_eq_offset")),
    "equal, small": ({"retain": "1 h", "large_windows": False}, ("eq_ts_offset", "eq_ts_offset")),
    "near": ({"on": (), "within": ("0 s", "1 s")}, ("ts_offset", "ts_offset")),
    "windows of both": ({"window": tumbling("1 s"), "large_windows": False}, ("ts_eq_offset", "ts_eq_offset")),
    "by tuples": ({"window": (count_window(3, by="offset"), None), "offset": "o"}, ("eq_offset", "eq_offset")),
    "by tuples and time": (
        {"window": (count_window(3, by="offset"), tumbling("1 s")), "offset": ("o", None), "large_windows": False},
        ("offset", "eq_ts_offset"),
    ),
    "equal, by tuples": ({"offset": "o", "retain": (100, "1 h")}, ("eq_offset", "eq_ts_offset")),
    "by tuples alone": (
        {"on": (), "window": (count_window(3, by="offset"), None), "offset": "o"},
        ("offset", "offset"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_follow_the_matrix_and_are_emitted(name: str) -> None:
    asked, layouts = LAYOUTS[name]
    description = join(**({"event_time": "t", "on": "k"} | asked))
    plan = bind_plan(description, description.schema(PLACES, PLACES))
    assert isinstance(plan, JoinPlan)
    assert tuple(plan.layouts[side].name for side in ("left", "right")) == layouts
    for side, layout in zip(("left", "right"), layouts, strict=True):
        assert plan.stores[side].layout.name == layout
        distinct = [name for name in plan.sides[side].key_names if name not in plan.equal_names]
        assert distinct[-1] == "origin"
        assert set(plan.equal_names) <= set(plan.sides[side].key_names)


def test_sides_that_do_not_fit_are_refused() -> None:
    description = join(event_time=("ordered", "shipped"), on="order", within=(None, None))
    with pytest.raises(UsageError, match=r"column-missing.*side=right.*'shipped'.*columns=\['order', ") as refused:
        description.schema(ORDERS, ORDERS)
    assert refused.value.context["columns"] == ORDERS.names
    other = pa.schema([("order", pa.int64()), ("shipped", TIME)])
    with pytest.raises(UsageError, match="side-types"):
        description.schema(ORDERS, other)


def test_a_join_keeps_no_windows_to_feed_back_to() -> None:
    description = join(event_time=("ordered", "shipped"), on="order", within=("0 s", "5 s"))
    with pytest.raises(UsageError, match=r"\[feed\]"):
        Harness(description, description.schema(ORDERS, SHIPMENTS)).reprocess_late()


def test_a_key_that_begins_as_a_side_is_no_column_of_it() -> None:
    own = pa.schema([("left_id", "int64"), ("t", TIME)])
    description = join(event_time="t", on="left_id", within=("0 s", "5 s"))
    schema = description.schema(own, own)
    row = pa.table([[7], pa.array([SECOND]).cast(TIME)], schema=own)
    panes = Harness(description, schema).feed(description.rows(schema, left=row, right=row))
    assert panes.column_names == ["left_id", "time", "left_t", "right_t", "kind"]
    assert panes["left_id"].to_pylist() == [7]
