"""A deduplication accepts what the operators behind it take, unless it has a lateness of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.operators import Harness, sliding, tumbling
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.altered import altered
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("o", pa.int64())])
ONCE = deduplicated(event_time="t", on="k", within="1 minute", name="once")


def windows(kind: Any, **about: Any) -> Any:
    return windowed(**({"event_time": "t", "key": "k"} | about)).window(kind).aggregate(n=count())


def lateness(*readers: Runnable, inputs: Any = None, once: Runnable = ONCE) -> tuple[int, Any]:
    """In seconds, and as it is stored."""
    described = chain(once, *readers, inputs=inputs) if readers else once
    streams = described.streams if readers else ["input"]  # type: ignore[attr-defined]
    plan = bind_graph(described, dict.fromkeys(streams, SCHEMA)).plans["once"]
    return plan.allowed_us // SECOND, plan.configuration.get("allowed_lateness_us")


@pytest.mark.parametrize(
    ("reader", "seconds"),
    [
        (windows(tumbling("10 s")), 60),
        (windows(tumbling("10 s")).late("5 s"), 5),
        (windows(tumbling("10 s")).late("5 s", rule="window"), 15),
        (windows(sliding("30 s", "10 s")).late("5 s", rule="window"), 35),
        (windows(session("20 s")).late("30 minutes"), 1800),
        (windows(session("20 s")).late("30 minutes", rule="window"), 1820),
        (windows(count_window(3)).late("7 s"), 7),
        (windows(tumbling("10 s")).messages("o", retention=Retention(time=9 * SECOND)), 9),
        (windows(tumbling("10 s")).messages("o", retention=Retention(count=9)), 0),
    ],
    ids=range(9),
)
def test_of_a_reader(reader: Any, seconds: int) -> None:
    assert lateness(reader) == (seconds, seconds * SECOND or None)


def test_of_none_of_several_and_behind_what_passes_rows_on() -> None:
    one, other = windows(tumbling("10 s")).late("5 s"), windows(tumbling("10 s"), name="other").late("8 s")
    assert lateness() == (0, None)
    every = union(event_time="pane_time", sides=("a", "b"), name="every")
    inputs = {"other": "once", "every": ("windows", "other")}
    assert lateness(*(each.accumulation("discarding") for each in (one, other)), every, inputs=inputs) == (
        8,
        8 * SECOND,
    )
    assert lateness(altered(event_time="t", shift="1 hour"), one) == (5, 5 * SECOND)
    both = union(event_time="t", sides=("a", "b"))
    of_union = windows(tumbling("10 s"), event_time="time", key=()).late("6 s")
    assert lateness(both, of_union, inputs={"union": ("once", "x")}) == (6, 6 * SECOND)
    again = deduplicated(event_time="t", on="o", name="again")
    assert lateness(again, one) == (5, 5 * SECOND)
    assert lateness(again.late("2 s"), one) == (2, 2 * SECOND)
    met = join(event_time="t", on="k", within=("0 s", "5 s"))
    assert lateness(met, inputs={"joined": ("once", "x")}) == (0, None)
    assert lateness(one, once=ONCE.late("3 s")) == (3, 3 * SECOND)
    assert lateness(one, once=ONCE.late("0 s")) == (0, None)


# as it runs


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tidestate"]


def rows(*events: tuple[int, str]) -> pa.Table:
    made = [{"t": t * SECOND, "k": k, "o": number} for number, (t, k) in enumerate(events)]
    return pa.Table.from_pylist(made, SCHEMA)


def counts(panes: pa.Table) -> list[tuple[str, int]]:
    return [(row["k"], row["n"]) for row in panes.to_pylist()]


def sessions(late: str = "30 s") -> Any:
    return windows(session("10 s"), name="sessions").late(late)


def stored(job: Harness) -> Any:
    return job._job.head.operators["once"].configuration.get("allowed_lateness_us")


def begun(description: Runnable, folder: Path) -> Harness:
    return Harness(description, SCHEMA, folder=folder)


def test_it_rejects_nothing_that_its_reader_would_take(tmp_path: Path) -> None:
    job = begun(chain(ONCE, sessions()), tmp_path)
    assert counts(job.feed(rows((100, "a")))) == []
    assert counts(job.feed(rows((70, "b"), (69, "c"), (70, "b")))) == [("b", 1)]
    assert [len(job.ledger(name)) for name in ("once", "sessions")] == [1, 0]


@pytest.mark.parametrize("operator", [None, "once"])
def test_its_rejects_go_through_it_into_windows_that_are_retained(operator: str | None, tmp_path: Path) -> None:
    job = begun(chain(ONCE, sessions().retain("1 hour")), tmp_path)
    job.feed(rows((100, "a")))
    job.feed(rows((20, "b"), (21, "b")))
    assert counts(job.reprocess_late(operator=operator)) == [("b", 1)]
    assert counts(job.reprocess_late(operator=operator)) == []
    assert counts(job.reprocess_late(rows((20, "b"), (20, "c")), operator="once")) == [("c", 1)]


def test_it_follows_its_readers_and_is_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = begun(chain(ONCE, sessions()), tmp_path)
    assert stored(job) == 30 * SECOND
    assert job._job.head.needs == ("deduplication-lateness/1",)
    job = begun(chain(ONCE, sessions("50 s")), tmp_path)
    assert stored(job) == 50 * SECOND
    assert "operator once: allowed_lateness: 30 seconds -> 50 seconds" in warnings(caplog)[0]
    job = begun(chain(ONCE.late("0 s"), sessions("50 s")), tmp_path)
    assert stored(job) is None


def test_one_that_began_without_stays_so_until_it_is_given_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(chain(ONCE.late("0 s"), sessions()), tmp_path)
    assert not warnings(caplog)
    job = begun(chain(ONCE, sessions()), tmp_path)
    assert job._job.head.needs == ()
    (line,) = warnings(caplog)
    assert "operator once has begun without a lateness" in line
    assert 'allowed_lateness="30 seconds"' in line
    job.feed(rows((100, "a")))
    job.feed(rows((99, "b")))
    assert len(job.ledger("once")) == 1
    job = begun(chain(ONCE.late("30 s"), sessions()), tmp_path)
    job.feed(rows((99, "b"), (100, "c")))
    job.feed(rows((120, "d")))
    assert counts(job.feed(rows((99, "e"), (101, "f"), (100, "c")))) == [("f", 1)]
    assert len(job.ledger("once")) == 3  # what was late before the change stays so
