"""Session joins against brute force: after every step what is observed, net, are all pairs of the sessions passed."""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import SCRATCH, examples, few
from tests.helpers.session_join_play import Play, joins
from tests.helpers.two_streams import LEFT, RIGHT, SECOND, STORES, TIME, Row, bound, by_side, numbered, rows, seconds
from tests.twins.sessions import ENDED, Brute
from tidestate import OperatorStream
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreConfig


@pytest.mark.slow
@pytest.mark.parametrize("store", few(STORES.values(), list(STORES).index("parquet")), ids=STORES)
def test_what_is_emitted_is_the_product_of_sessions(store: StoreConfig) -> None:
    @settings(deadline=None, max_examples=examples(25))
    @given(joins(), st.lists(st.lists(rows, max_size=8), min_size=1, max_size=5), st.booleans())
    def check(made: tuple[OperatorStream, Brute], batches: list[list[Row]], restart: bool) -> None:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            play = Play(made, store, folder)
            for number, batch in enumerate(numbered(batches)):
                play.brute.batch(batch)
                play.check(play.harness.feed(by_side(batch)))
                if restart:
                    play.harness.restart()
                play.brute.passed(number * 9)
                play.check(play.harness.advance_watermark(number * 9 * SECOND))
                play.kept()
            play.brute.passed(ENDED)
            play.check(play.harness.finish())
            play.kept()
            assert play.harness.ledger().num_rows == play.brute.rejected

    check()


def test_a_late_row_inside_a_session_shows_only_what_it_adds() -> None:
    description = ts.stream(event_time="ordered").join_sessions(
        ts.stream(event_time="paid"), on="k", gap="5 s", how="full", allowed_lateness="1 minute"
    )
    harness = description.harness({"left": LEFT, "right": RIGHT}, generate=False)

    def fed(*batch: Row) -> list[tuple[int | None, int | None, str]]:
        return as_rows(harness.feed(by_side(list(batch))))

    def as_rows(panes: pa.Table) -> list[tuple[int | None, int | None, str]]:
        return [(row["left_price"], row["right_cost"], row["kind"]) for row in panes.to_pylist()]

    assert fed(Row("left", "a", 0, 1), Row("left", "a", 4, 2)) == []
    assert as_rows(harness.advance_watermark(20 * SECOND)) == [(1, None, "emit"), (2, None, "emit")]
    first = fed(Row("right", "a", 3, 3))
    assert first == [(1, None, "retract"), (2, None, "retract"), (1, 3, "emit"), (2, 3, "emit")]
    assert fed(Row("left", "a", 2, 4)) == [(4, 3, "emit")]
    assert fed(Row("right", "a", 2, 5)) == [
        (1, 5, "emit"),
        (4, 5, "emit"),
        (2, 5, "emit"),
    ]  # in the order of their times
    assert harness.counters() | {"pairs": 6, "unmatched": 2, "retractions": 2} == harness.counters()


def test_a_session_fires_and_goes_at_a_microsecond() -> None:
    """It ends at 5 seconds, and is over ten later, with its rows, its identities and the time at which it is due."""
    description = ts.stream(event_time="t", offset="o").join_sessions(
        ts.stream(event_time="t", offset="o"), on="k", gap="5 s", how="full", allowed_lateness="10 s", identity=True
    )
    own = pa.schema([("k", "string"), ("t", TIME), ("o", "int64")])
    schema = {"left": own, "right": own}
    harness = description.harness(schema, generate=False)
    row = pa.table([["a"], pa.array([0]).cast(TIME), [1]], schema=own)
    both = {"left": row, "right": row}
    assert harness.feed(both).num_rows == 0
    assert harness.advance_watermark(5 * SECOND - 1).num_rows == 0
    assert harness.advance_watermark(5 * SECOND)["kind"].to_pylist() == ["emit"]
    another = {"left": pa.table([["a"], pa.array([0]).cast(TIME), [2]], schema=own)}
    assert harness.feed(another)["left_o"].to_pylist() == [2], "it has fired: the late row adds its own pair"
    tables = ("left", "right", "left_seen", "right_seen", "sessions", "ends")
    harness.advance_watermark(15 * SECOND - 1)
    assert [harness.state(name).num_rows for name in tables] == [2, 1, 2, 1, 1, 1]
    harness.feed(both)
    assert (harness.counters()["duplicates"], harness.ledger().num_rows) == (2, 0)
    harness.advance_watermark(15 * SECOND)
    assert [harness.state(name).num_rows for name in tables] == [0] * 6
    harness.feed(both)
    assert (harness.counters()["duplicates"], harness.ledger().num_rows) == (2, 2)


def test_sessions_that_a_late_row_joins_take_back_what_they_emitted() -> None:
    """The first has fired, the second has not, and a third one of another key stays as it is."""
    description = ts.stream(event_time="ordered").join_sessions(
        ts.stream(event_time="paid"), on="k", gap="5 s", allowed_lateness="1 minute"
    )
    harness = description.harness({"left": LEFT, "right": RIGHT}, generate=False)
    first, second = ([Row(side, "a", at, at) for side in ("left", "right")] for at in (0, 8))
    harness.feed(by_side([*first, *second, Row("left", "b", 0, 1), Row("right", "b", 0, 1)]))

    def standing(panes: pa.Table) -> list[tuple[Any, ...]]:
        columns = panes["k"].to_pylist(), *(seconds(panes, name) for name in ("window_start", "window_end"))
        return [
            *zip(*columns, *(panes[name].to_pylist() for name in ("left_price", "right_cost", "kind")), strict=True)
        ]

    fired = standing(harness.advance_watermark(6 * SECOND))
    assert sorted(fired) == [("a", 0, 5, 0, 0, "emit"), ("b", 0, 5, 1, 1, "emit")]
    harness.restart()
    assert standing(harness.feed(by_side([Row("left", "a", 4, 4)]))) == [("a", 0, 5, 0, 0, "retract")]
    assert harness.state("sessions").num_rows == harness.state("ends").num_rows == 2
    assert harness.advance_watermark(13 * SECOND - 1).num_rows == 0
    whole = standing(harness.advance_watermark(13 * SECOND))
    assert sorted(whole) == [("a", 0, 13, left, right, "emit") for left in (0, 4, 8) for right in (0, 8)]


def test_without_lateness_nothing_is_ever_taken_back() -> None:
    at_once, late = (
        ts.stream(event_time="ordered").join_sessions(
            ts.stream(event_time="paid"), on="k", gap="5 s", allowed_lateness=late
        )
        for late in ("0 s", "1 s")
    )
    assert not bound(at_once).retracts
    assert bound(late).retracts


def test_what_is_still_to_come_is_not_before_this() -> None:
    description = ts.stream(event_time="ordered").join_sessions(
        ts.stream(event_time="paid"), on="k", gap="5 s", allowed_lateness="10 s"
    )
    plan: Any = bound(description)
    marks = (BEGINNING_US, 30 * SECOND, END_US)
    assert [plan.output_watermark(mark) for mark in marks] == [BEGINNING_US, 20 * SECOND, END_US]
    assert plan.output_watermark(30 * SECOND, "window_end") == 20 * SECOND
    with pytest.raises(UsageError, match="chain-time"):
        plan.output_watermark(30 * SECOND, "window_start")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no gap": ({"gap": None}, "session-gap"),
    "two gaps": ({"gap_column": "g"}, "session-gap"),
    "no such join": ({"how": "semi"}, "join-how"),
    "on the time": ({"on": "t"}, "key-columns"),
    "on a column twice": ({"on": ("k", "k")}, "key-columns"),
    "negative lateness": ({"allowed_lateness": "-1 s"}, "lateness"),
    "no name": ({"name": ""}, "operator-name"),
    "sessions of a column twice": ({"session_key": ("u", "u")}, "key-columns"),
    "sessions of the time": ({"session_key": "t"}, "key-columns"),
    "one column for both": ({"offset": "o", "origin": "o"}, "join-offset"),
    "on the offset": ({"offset": "k"}, "join-on"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_joins_are_refused(name: str) -> None:
    asked, code = REFUSED[name]
    chosen = {"on": "k", "gap": "5 s"} | asked
    order = {name: chosen.pop(name) for name in ("offset", "origin") if name in chosen}
    left, right = (ts.stream(event_time="t", **order) for _ in "lr")
    with pytest.raises(UsageError, match=code):
        left.join_sessions(right, identity=bool(order), **chosen)


def test_names_that_are_ours_are_refused_and_a_gap_of_nothing() -> None:
    own = pa.schema([("k", "string"), ("t", TIME), ("window_end", "int64"), ("gap", pa.duration("us"))])
    taken = ts.stream(event_time="t").join_sessions(ts.stream(event_time="t"), on=("k", "window_end"), gap="5 s")
    with pytest.raises(UsageError, match="name-taken"):
        bound(taken, own, own)
    description = ts.stream(event_time="ordered").join_sessions(ts.stream(event_time="paid"), gap_column="gap")
    harness = description.harness({"left": LEFT, "right": RIGHT})
    harness.feed(by_side([Row("left", "a", 1, 1, gap=0), Row("right", "a", 1, 2, gap=5)]))
    assert harness.ledger()["reason"].to_pylist() == ["bad_window"]
    with pytest.raises(UsageError, match=r"\[feed\]"):
        harness.reprocess_late()


def test_a_key_that_begins_as_a_side_is_no_column_of_it() -> None:
    own = pa.schema([("left_id", "int64"), ("t", TIME)])
    description = ts.stream(event_time="t").join_sessions(ts.stream(event_time="t"), on="left_id", gap="5 s")
    schema = {"left": own, "right": own}
    harness = description.harness(schema)
    row = pa.Table.from_pylist([{"left_id": 7, "t": 1}], pa.schema([("left_id", "int64"), ("t", "int64")])).cast(own)
    harness.feed({"left": row, "right": row})
    panes = harness.finish()
    assert panes.column_names == ["left_id", "window_start", "window_end", "time", "left_t", "right_t", "kind"]
    assert panes["left_id"].to_pylist() == [7]
