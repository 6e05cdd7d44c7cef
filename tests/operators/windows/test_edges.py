"""Windows by lifetime of events whose starts and ends are rows of their own, against a twin that knows all ends."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.advance_time import Row
from tests.helpers.process import LONG, SCRATCH
from tests.helpers.two_streams import STORES
from tests.twins.edges import EdgeTwin, Life, Message, Window
from tidestate import Aggregation, agg, watermark
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.advance_time import SHAPES
from tidestate.operators.streams.watermarks import stored_settings
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.watermark import cti_settings, generate_ctis

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        *(("k", "string"), ("t", TIME), ("until", TIME), ("shape", "string"), ("v", "int64")),
        *(("by", "string"), ("off", "int64")),
    ]
)
ORIGINS = ("x", "y")


def us(many: int) -> str:
    return f"{many} microseconds"


def described(kind: Sliding, by_ctis: Any, keys: Sequence[str] = ("k",), *, origins: bool = True) -> Aggregation:
    lives = ts.lifetime("until", shape="point", shape_column="shape")
    stream = ts.stream(event_time="t", offset="off", origin="by" if origins else None, lifetime=lives)
    sources = {"sources": ORIGINS} if origins else {}
    generator = watermark.ctis() if by_ctis is None else watermark.ctis(by_ctis)
    windows = stream.watermark(generator, **sources).group_by(*keys).window(kind)
    return windows.aggregate(n=agg.count(), total=agg.sum("v"), offs=agg.list("off"), first=agg.min("t"))


def batch(messages: Sequence[Message]) -> pa.Table:
    def times(values: list[int | None]) -> pa.Array:
        return pa.array(values, pa.int64()).cast(TIME)

    columns = [
        pa.array([one.key for one in messages], "string"),
        times([one.row.start for one in messages]),
        times([one.row.end for one in messages]),
        pa.array([one.row.shape for one in messages], "string"),
        pa.array([one.value for one in messages], "int64"),
        pa.array([one.origin for one in messages], "string"),
        pa.array([one.offset for one in messages], "int64"),
    ]
    return pa.table(columns, schema=SCHEMA)


class Drawn(NamedTuple):
    """A row to be: about when it starts, for how long it lives, and which of the edges so far it ends."""

    shape: str
    key: str
    value: int
    origin: str
    start: int
    length: int
    chosen: int


def message_of(drawn: Drawn, number: int, begun: Sequence[Message]) -> Message:
    """Message ``number``; the end of an edge is mostly that of one of those that have ``begun``."""
    start = 2 * number + drawn.start
    if drawn.shape == "edge_end" and drawn.chosen < len(begun):
        edge = begun[-1 - drawn.chosen]
        end = max(edge.row.start or 0, start + drawn.length)
        return edge._replace(row=Row("edge_end", edge.row.start, end), origin=drawn.origin, offset=number)
    has_end = drawn.shape in ("interval", "edge_end")
    row = Row(drawn.shape, start, start + drawn.length if has_end else None)
    return Message(drawn.key, drawn.value, row, drawn.origin, number)


def results(panes: pa.Table) -> dict[Window, tuple[Any, ...]]:
    found: dict[Window, tuple[Any, ...]] = {}
    bounds = [panes[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end", "first")]
    for row, start, end, first in zip(panes.to_pylist(), *bounds, strict=True):
        assert (row["kind"], row["timing"]) == ("emit", "on_time")
        window = (row.get("k", ""), start, end)
        assert window not in found
        found[window] = (row["n"], row["total"], sorted(row["offs"]), first)
    return found


def expected(windows: dict[Window, list[Life]]) -> dict[Window, tuple[Any, ...]]:
    return {
        window: (
            len(lives),
            sum(life.message.value for life in lives),
            sorted(life.message.offset for life in lives),
            min(life.start for life in lives),
        )
        for window, lives in windows.items()
    }


rows = st.builds(
    Drawn,
    st.sampled_from([*SHAPES, "edge_start", "edge_start", "edge_end", "edge_end"]),
    st.sampled_from("ab"),
    st.integers(0, 1),
    st.sampled_from(ORIGINS),
    st.integers(-8, 8),
    st.integers(0, 20),
    st.integers(0, 2),
)
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
advancing = st.sampled_from(
    [
        cti_settings("drop", generate=generate_ctis(3, delay="2 microseconds")),
        cti_settings("adjust", generate=generate_ctis(2)),
        cti_settings("adjust", generate=generate_ctis("4 microseconds", delay="1 microseconds")),
        cti_settings("drop", generate=generate_ctis(1, delay="-1 microseconds")),
        cti_settings("drop", generate=generate_ctis("20 microseconds")),
    ]
)
FEWER = settings(max_examples=settings.default.max_examples // (1 if LONG else 2))


@FEWER
@given(
    kinds,
    st.lists(st.lists(rows, max_size=9), min_size=1, max_size=5),
    advancing,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(sorted(STORES)),
)
def test_an_edge_is_in_every_window_that_fires_until_its_end_arrives(
    kind: Sliding,
    given_: list[list[Drawn]],
    by_ctis: Any,
    keyed: bool,
    origins: bool,
    restarts: bool,
    store: str,
) -> None:
    twin = EdgeTwin(kind, stored_settings(by_ctis), ORIGINS if origins else ("x",))
    job, begun = described(kind, by_ctis, ("k",) if keyed else (), origins=origins), list[Message]()
    number, found = 0, dict[Window, tuple[Any, ...]]()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job.harness(SCHEMA, store=STORES[store], folder=folder, partitions=2)
        for part in given_:
            taken = []
            for one in part:
                row = one._replace(key=one.key if keyed else "", origin=one.origin if origins else "x")
                taken.append(message_of(row, number, begun))
                number += 1
                if row.shape == "edge_start":
                    begun.append(taken[-1])
            twin.take(taken)
            found |= results(tested.feed(batch(taken[::-1])))
            assert found == expected(twin.windows(twin.watermark))
            if restarts:
                tested.restart()
        assert tested.counters().get("edge_ends_unmatched", 0) == twin.unmatched
        found |= results(tested.finish())
        assert {"very_late", "bad_window"}.isdisjoint(tested.ledger()["reason"].to_pylist())
    assert found == expected(twin.finished())


ENQUEUED = None
"""CTIs are rows."""
TEN = ts.tumbling(us(10), of="lifetime")


def feed(tested: Any, *rows: tuple[Row, int, str]) -> list[tuple[int, int, int]]:
    """The panes of a batch: start, count and total. ``rows``: with value and origin, numbered by their place."""
    offset = sum(tested.counters().get(name, 0) for name in ("events", "control_rows"))
    numbered = [Message("a", value, row, origin, offset + place) for place, (row, value, origin) in enumerate(rows)]
    panes = tested.feed(batch(numbered))
    starts = panes["window_start"].cast(pa.int64()).to_pylist()
    return list(zip(starts, panes["n"].to_pylist(), panes["total"].to_pylist(), strict=True))


def begins(start: int, value: int = 1, origin: str = "x") -> tuple[Row, int, str]:
    return Row("edge_start", start), value, origin


def ends(start: int, end: int, value: int = 1, origin: str = "x") -> tuple[Row, int, str]:
    return Row("edge_end", start, end), value, origin


def cti(at: int, origin: str = "x") -> tuple[Row, int, str]:
    return Row("cti", at), 0, origin


def open_edges(tested: Any) -> list[tuple[int, int]]:
    """Start as received, and value, of the edges that may be in windows to come."""
    rows = tested.state("edges")
    return sorted(zip(rows["_received"].to_pylist(), rows["v"].to_pylist(), strict=True))


def test_a_window_with_nothing_but_an_open_edge_fires(tmp_path: Path) -> None:
    tested = described(TEN, ENQUEUED, (), origins=False).harness(SCHEMA, folder=tmp_path, partitions=2)
    assert feed(tested, begins(13), cti(25)) == [(10, 1, 1)]
    assert feed(tested, cti(39)) == [(20, 1, 1)]
    tested.restart()
    assert feed(tested, cti(40)) == [(30, 1, 1)]
    assert feed(tested, ends(13, 60)) == []
    assert len(open_edges(tested)) == 1
    assert feed(tested, cti(100)) == [(40, 1, 1), (50, 1, 1)]
    assert open_edges(tested) == []


def test_an_end_closes_the_edge_of_its_key_start_and_values(tmp_path: Path) -> None:
    tested = described(TEN, ENQUEUED, origins=False).harness(SCHEMA, folder=tmp_path, partitions=1)
    feed(tested, begins(5, 1), begins(5, 2), begins(5, 2), begins(7, 4))
    assert open_edges(tested) == [(5, 1), (5, 2), (5, 2), (7, 4)]
    # The end of 8 has no start, and that of 7 comes before the second start of 7 has an end.
    assert feed(tested, ends(5, 12, 2), ends(8, 12, 4), ends(7, 15, 4), ends(7, 16, 4), cti(20)) == [
        (0, 4, 9),
        (10, 4, 9),
    ]
    assert tested.counters()["edge_ends_unmatched"] == 2
    assert open_edges(tested) == [(5, 1), (5, 2)]


def test_messages_count_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    """An end before its start ends nothing; messages of two origins have no order."""
    tested = described(TEN, ENQUEUED).harness(SCHEMA, folder=tmp_path, partitions=1)
    feed(tested, ends(5, 8), begins(5), ends(6, 9, 2, "y"), begins(6, 2))
    assert open_edges(tested) == [(5, 1), (6, 2)]
    assert tested.counters()["edge_ends_unmatched"] == 1
    assert tested.state("edges")["_until"].to_pylist().count(9) == 1


def test_an_edge_that_ends_when_it_starts_never_was(tmp_path: Path) -> None:
    sliding = ts.sliding(us(10), us(5), of="lifetime")
    tested = described(sliding, ENQUEUED).harness(SCHEMA, folder=tmp_path, partitions=1)
    feed(tested, begins(7))
    assert feed(tested, ends(7, 7), cti(100, "x"), cti(100, "y")) == []
    assert open_edges(tested) == []


def test_at_the_end_of_the_input_edges_count_up_to_the_last_window_of_their_key(tmp_path: Path) -> None:
    tested = described(TEN, ENQUEUED).harness(SCHEMA, folder=tmp_path, partitions=2)
    rows = [Message("a", 1, Row("edge_start", 5), "x", 0), Message("a", 2, Row("point", 35), "x", 1)]
    other = [Message("b", 3, Row("edge_start", 15), "x", 2), Message("b", 4, Row("edge_start", 2), "x", 3)]
    assert tested.feed(batch([*rows, *other])).num_rows == 0
    panes = tested.finish()
    starts = panes["window_start"].cast(pa.int64()).to_pylist()
    found = sorted(zip(panes["k"].to_pylist(), starts, panes["total"].to_pylist(), strict=True))
    assert found == [("a", 0, 1), ("a", 10, 1), ("a", 20, 1), ("a", 30, 3), ("b", 0, 4), ("b", 10, 7)]
    assert open_edges(tested) == []


def test_an_edge_in_too_many_windows_at_once_is_given_up(tmp_path: Path) -> None:
    tested = described(ts.tumbling(us(1), of="lifetime"), ENQUEUED).harness(SCHEMA, folder=tmp_path, partitions=1)
    feed(tested, begins(5), begins(7, 2))
    assert len(feed(tested, ends(7, 9, 2), cti(100_005, "x"), cti(100_005, "y"))) == 100_000
    assert feed(tested, cti(300_000, "x"), cti(300_000, "y")) == []
    ledger = tested.ledger()
    assert ledger["reason"].to_pylist() == ["bad_window"]
    assert ledger["t"].cast(pa.int64()).to_pylist() == [5]
    assert ledger["watermark"].cast(pa.int64()).to_pylist() == [100_005]
    assert open_edges(tested) == []


def test_what_a_cti_or_the_watermark_refuses_is_in_the_ledger_as_it_came(tmp_path: Path) -> None:
    tested = described(TEN, ENQUEUED).harness(SCHEMA, folder=tmp_path, partitions=1)
    feed(tested, begins(5), cti(30, "x"), cti(30, "y"))
    feed(tested, ends(5, 20), begins(5), begins(3, 1, "z"), ends(3, 12, 1, "z"))
    ledger = tested.ledger()
    found = zip(ledger["reason"].to_pylist(), ledger["t"].cast(pa.int64()).to_pylist(), strict=True)
    with pytest.raises(UsageError, match="feed"):
        tested.reprocess_late()
    assert sorted(found) == [("cti_violation", 5), ("cti_violation", 5), ("very_late", 3), ("very_late", 3)]
    assert open_edges(tested) == [(5, 1)]


def test_an_adjusted_edge_is_found_by_the_start_that_it_came_with(tmp_path: Path) -> None:
    adjusting = cti_settings("adjust", generate=generate_ctis(2))
    tested = described(TEN, adjusting, origins=False).harness(SCHEMA, folder=tmp_path, partitions=1)
    feed(tested, begins(10), begins(30), begins(3))
    assert feed(tested, ends(3, 55), begins(60)) == [(30, 3, 3), (40, 3, 3), (50, 3, 3)]
    assert tested.counters()["cti_adjusted"] == 1
    assert open_edges(tested) == [(10, 1), (30, 1), (60, 1)]


def test_aggregates_of_a_root_with_edges_may_go_but_not_come(tmp_path: Path) -> None:
    lives = ts.lifetime("until", shape="point", shape_column="shape")
    windows = ts.stream(event_time="t", offset="off", lifetime=lives).watermark(watermark.ctis()).group_by("k")
    first = windows.window(TEN).aggregate(n=agg.count(), total=agg.sum("v"), latest=agg.max("off"))
    rows = [Message("a", 1, Row("edge_start", 5), "x", 0), Message("a", 2, Row("edge_start", 5), "x", 1)]
    later = [Message("a", 2, Row("edge_end", 5, 15), "x", 2), Message("a", 0, Row("cti", 40), "x", 3)]
    first.standalone(checkpoint=tmp_path).run([batch(rows)])
    more = windows.window(TEN).aggregate(n=agg.count(), total=agg.sum("v"), by=agg.max("by"))
    with pytest.raises(IncompatibleError, match="drain first"):
        more.standalone(checkpoint=tmp_path).run([batch(rows), batch(later)])
    fewer = windows.window(TEN).aggregate(n=agg.count())
    runner = fewer.standalone(checkpoint=tmp_path, policy=ts.Policy(dropped="accept"))
    assert runner.run([batch(rows), batch(later)])["n"].to_pylist() == [2, 2, 1, 1]
    assert "edges-in-windows/1" in evidence.manifests(tmp_path)[-1]["needs"]
