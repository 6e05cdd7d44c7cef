"""Windows that rows name themselves: what closes them, and that they are there behind a join."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.inspect.query import query
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

HOUR, MINUTE = 3_600_000_000, 60_000_000
SCHEMA = pa.schema([("window_start", TIME), ("window_end", TIME), ("t", TIME), ("v", "int64")])


def days(**more: object) -> Windowed:
    described = windowed(**{"event_time": None, "watermark_delay": "30 minutes"} | more)  # type: ignore[arg-type]
    return described.aggregate(n=count()).late("0 seconds")


def rows(*events: tuple[int, float]) -> pa.Table:
    """Events of a day, at an hour of it."""
    starts = [24 * HOUR * day for day, _ in events]
    times = [start + int(hour * HOUR) for start, (_, hour) in zip(starts, events, strict=True)]
    columns = [starts, [start + 24 * HOUR for start in starts], times, [1] * len(events)]
    return pa.table(columns, schema=SCHEMA)


def counts(panes: pa.Table) -> list[tuple[int, int]]:
    return [(int(row["window_start"].timestamp()) // 86400, row["n"]) for row in panes.to_pylist()]


def test_the_first_event_of_a_day_does_not_close_the_day_before() -> None:
    harness = Harness(days(), SCHEMA)
    assert counts(harness.feed(rows((0, 1)))) == []
    assert counts(harness.feed(rows((0, 23)))) == []
    assert counts(harness.feed(rows((1, 0)))) == []
    assert counts(harness.feed(rows((0, 23.9)))) == []
    assert counts(harness.feed(rows((2, 0)))) == [(0, 3)]
    assert harness.ledger().num_rows == 0


def test_with_an_event_time_they_follow_that() -> None:
    harness = Harness(days(event_time="t"), SCHEMA)
    assert counts(harness.feed(rows((0, 1), (1, 0.4)))) == []
    assert counts(harness.feed(rows((0, 23.95)))) == []
    assert counts(harness.feed(rows((1, 0.5)))) == [(0, 2)]


def test_a_watermark_that_followed_the_ends_stays_ahead_until_the_starts_pass_it(tmp_path: Path) -> None:
    harness = Harness(days(), SCHEMA, folder=tmp_path)
    harness.feed(rows((0, 1)))
    harness.advance_watermark(24 * HOUR - 30 * MINUTE)  # what a root had before
    assert counts(harness.feed(rows((0, 2)))) == []
    assert query(tmp_path).watermark_us == 24 * HOUR - 30 * MINUTE
    assert counts(harness.feed(rows((1, 1)))) == []
    assert counts(harness.feed(rows((2, 1)))) == [(0, 2)]
    assert query(tmp_path).watermark_us == 48 * HOUR - 30 * MINUTE


EVENTS = pa.schema([("t", TIME), ("k", "string"), ("v", "int64")])


def events(*seconds: int) -> pa.Table:
    return pa.table([[s * 1_000_000 for s in seconds], ["a"] * len(seconds), list(seconds)], schema=EVENTS)


def test_behind_a_join_they_are_the_windows_of_its_pairs() -> None:
    pairs = join(event_time="t", on="k", window=tumbling("10 seconds"), name="pairs")
    sums = windowed(key="k", name="sums").aggregate(total=sum_("left_v")).late("0 seconds")
    harness = Harness(chain(pairs, sums, inputs={"pairs": ("l", "r"), "sums": "pairs"}), {"l": EVENTS, "r": EVENTS})
    panes = harness.feed({"l": events(1, 2, 11, 21), "r": events(3, 12, 22)})
    assert panes.select(["window_start", "total"]).to_pydict()["total"] == [3, 11]
    assert harness.finish()["total"].to_pylist() == [21]


@pytest.mark.parametrize(("side", "behind"), [("left", 10), ("right", 3)])
def test_the_time_of_a_side_has_the_bound_of_the_distance(side: str, behind: int) -> None:
    """The right row is 3 s before the left one to 10 s after it."""
    pairs = join(event_time="t", on="k", within=("-3 seconds", "10 seconds"), late="1 second", name="pairs")
    sums = windowed(event_time=f"{side}_t", name="sums").window(tumbling("10 seconds")).aggregate(n=count())
    graph = bind_graph(chain(pairs, sums, inputs={"pairs": ("l", "r"), "sums": "pairs"}), {"l": EVENTS, "r": EVENTS})
    plan = graph.nodes[0].plan
    assert plan.output_watermark(100_000_000, f"{side}_t") == (99 - behind) * 1_000_000


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_side_without_a_bound_gives_no_time(side: str) -> None:
    within = (None, "10 seconds") if side == "right" else ("-3 seconds", None)
    pairs = join(event_time="t", on="k", within=within, name="pairs")
    sums = windowed(event_time=f"{side}_t", name="sums").window(tumbling("10 seconds")).aggregate(n=count())
    with pytest.raises(UsageError, match="chain-time"):
        bind_graph(chain(pairs, sums, inputs={"pairs": ("l", "r"), "sums": "pairs"}), {"l": EVENTS, "r": EVENTS})
