"""A deduplication accepts what the operators behind it take, unless it has a lateness of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.bundles import other_needs
from tests.helpers.internals import head_of
from tidestate import OperatorStream, Stream, agg
from tidestate.operators import (
    Harness,
)
from tidestate.operators.bind.graph import bind_graph
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("o", pa.int64())])
EVENTS = ts.stream(event_time="t")


def once_of(events: Stream = EVENTS, late: str | None = None) -> OperatorStream:
    return events.deduplicate("k", within="1 minute", allowed_lateness=late, name="once")


ONCE = once_of()


def windows(kind: Any, events: Stream = ONCE, key: str | None = "k", name: str = "windows") -> Any:
    keys = () if key is None else (key,)
    return events.group_by(*keys).window(kind).aggregate(n=agg.count()).named(name)


def lateness(job: OperatorStream) -> tuple[int, Any]:
    """Of the operator ``once`` in front: in seconds, and as it is stored."""
    graph = job.graph
    schemas = SCHEMA if len(graph.streams) == 1 else dict.fromkeys(graph.streams, SCHEMA)
    plan = bind_graph(graph.description, schemas).plans["once"]
    return plan.allowed_us // SECOND, plan.configuration.get("allowed_lateness_us")


@pytest.mark.parametrize(
    ("reader", "seconds"),
    [
        (windows(ts.tumbling("10 s")), 60),
        (windows(ts.tumbling("10 s")).allowed_lateness("5 s"), 5),
        (windows(ts.tumbling("10 s")).allowed_lateness("5 s", rule="window"), 15),
        (windows(ts.sliding("30 s", "10 s")).allowed_lateness("5 s", rule="window"), 35),
        (windows(ts.sessions("20 s")).allowed_lateness("30 minutes"), 1800),
        (windows(ts.sessions("20 s")).allowed_lateness("30 minutes", rule="window"), 1820),
        (windows(ts.count_windows(3)).allowed_lateness("7 s"), 7),
        (windows(ts.tumbling("10 s")).messages(["o"], retain=ts.Retention(span="9 seconds")), 9),
        (windows(ts.tumbling("10 s")).messages(["o"], retain=ts.Retention(messages=9)), 0),
    ],
    ids=range(9),
)
def test_of_a_reader(reader: Any, seconds: int) -> None:
    assert lateness(reader) == (seconds, seconds * SECOND or None)


def test_of_none_of_several_and_behind_what_passes_rows_on() -> None:
    def within(span: str, events: Stream = ONCE) -> Any:
        return windows(ts.tumbling("10 s"), events).allowed_lateness(span)

    other = windows(ts.tumbling("10 s"), name="other").allowed_lateness("8 s")
    assert lateness(ONCE) == (0, None)
    every = ts.union(a=within("5 s").accumulation("discarding"), b=other.accumulation("discarding"), name="every")
    assert lateness(every) == (8, 8 * SECOND)
    assert lateness(within("5 s", ONCE.shift_time("1 hour"))) == (5, 5 * SECOND)
    once, x = once_of(ts.stream("y", event_time="t")), ts.stream("x", event_time="t")
    of_union = windows(ts.tumbling("10 s"), ts.union(a=once, b=x), key=None).allowed_lateness("6 s")
    assert lateness(of_union) == (6, 6 * SECOND)
    assert lateness(within("5 s", ONCE.deduplicate("o", name="again"))) == (5, 5 * SECOND)
    again = ONCE.deduplicate("o", name="again", allowed_lateness="2 s")
    assert lateness(within("5 s", again)) == (2, 2 * SECOND)
    assert lateness(once.join(x, on="k", within=("0 s", "5 s"))) == (0, None)
    assert lateness(within("5 s", once_of(late="3 s"))) == (3, 3 * SECOND)
    assert lateness(within("5 s", once_of(late="0 s"))) == (0, None)


# as it runs


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tidestate"]


def rows(*events: tuple[int, str]) -> pa.Table:
    made = [{"t": t * SECOND, "k": k, "o": number} for number, (t, k) in enumerate(events)]
    return pa.Table.from_pylist(made, SCHEMA)


def counts(panes: pa.Table) -> list[tuple[str, int]]:
    return [(row["k"], row["n"]) for row in panes.to_pylist()]


def sessions(late: str = "30 s", once: OperatorStream = ONCE) -> Any:
    return windows(ts.sessions("10 s"), once, name="sessions").allowed_lateness(late)


def stored(job: Harness) -> Any:
    return head_of(job).operators["once"].configuration.get("allowed_lateness_us")


def begun(description: OperatorStream, folder: Path) -> Harness:
    return description.harness(SCHEMA, folder=folder)


def test_it_rejects_nothing_that_its_reader_would_take(tmp_path: Path) -> None:
    job = begun(sessions(), tmp_path)
    assert counts(job.feed(rows((100, "a")))) == []
    assert counts(job.feed(rows((70, "b"), (69, "c"), (70, "b")))) == [("b", 1)]
    assert [len(job.ledger(name)) for name in ("once", "sessions")] == [1, 0]


@pytest.mark.parametrize("operator", [None, "once"])
def test_its_rejects_go_through_it_into_windows_that_are_retained(operator: str | None, tmp_path: Path) -> None:
    job = begun(sessions().retain_windows("1 hour"), tmp_path)
    job.feed(rows((100, "a")))
    job.feed(rows((20, "b"), (21, "b")))
    assert counts(job.reprocess_late(operator=operator)) == [("b", 1)]
    assert counts(job.reprocess_late(operator=operator)) == []
    assert counts(job.reprocess_late(rows((20, "b"), (20, "c")), operator="once")) == [("c", 1)]


def test_it_follows_its_readers_and_is_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = begun(sessions(), tmp_path)
    assert stored(job) == 30 * SECOND
    assert other_needs(head_of(job).needs) == ["deduplication-lateness/1"]
    job = begun(sessions("50 s"), tmp_path)
    assert stored(job) == 50 * SECOND
    assert "operator once: allowed_lateness: 30 seconds -> 50 seconds" in warnings(caplog)[0]
    job = begun(sessions("50 s", once_of(late="0 s")), tmp_path)
    assert stored(job) is None


def test_one_that_began_without_stays_so_until_it_is_given_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(sessions("30 s", once_of(late="0 s")), tmp_path)
    assert not warnings(caplog)
    job = begun(sessions(), tmp_path)
    assert other_needs(head_of(job).needs) == []
    (line,) = warnings(caplog)
    assert "operator once has begun without an allowed lateness" in line
    assert 'allowed_lateness="30 seconds"' in line
    job.feed(rows((100, "a")))
    job.feed(rows((99, "b")))
    assert len(job.ledger("once")) == 1
    job = begun(sessions("30 s", once_of(late="30 s")), tmp_path)
    job.feed(rows((99, "b"), (100, "c")))
    job.feed(rows((120, "d")))
    assert counts(job.feed(rows((99, "e"), (101, "f"), (100, "c")))) == [("f", 1)]
    assert len(job.ledger("once")) == 3  # what was late before the change stays so
