"""Messages known by their identity in every kind of input: what comes again changes nothing.

The twin is the same job without `.messages(…)`, which gets each message once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import SCRATCH, examples, few
from tests.twins.signed import Signed
from tidestate import Aggregation, agg
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
FIELDS = {
    "k": "string",
    "t": TIME,
    "v": "int64",
    "part": "string",
    "at": "int64",
    "until": TIME,
    "kind": "string",
}
SCHEMA = pa.schema(list(FIELDS.items()))
SIDE = pa.schema([field for field in SCHEMA if field.name in ("k", "t", "v", "at")])
Rows = list[dict[str, Any]]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Rows], list[list[int]]]:
    """Batches of messages, and which of those so far come again with each of them."""
    made, again, base, sent = list[Rows](), list[list[int]](), 0, 0
    for size in draw(st.lists(st.integers(1, 6), min_size=2, max_size=5)):
        base += draw(st.sampled_from([0, 2, 8, 25]))
        batch: Rows = []
        for _ in range(size):
            at = max(0, base - draw(st.integers(0, 25)))
            life = draw(st.none() | st.integers(1, 30))
            row = {"k": draw(st.sampled_from("ab")), "t": at * SECOND, "v": sent, "part": draw(st.sampled_from("pq"))}
            row |= {"at": sent, "until": None if life is None else (at + life) * SECOND, "kind": None}
            batch.append(row)
            sent += 1
        made.append(batch)
        again.append(draw(st.lists(st.integers(0, sent - 1), max_size=6)))
    return made, again


def over(window: Any, **more: Any) -> Aggregation:
    lasting = ts.lifetime("until")
    events = ts.stream(event_time="t", watermark_delay="2 seconds", lifetime=lasting, **more)
    job = (
        events.group_by("k")
        .window(window)
        .aggregate(n=agg.count(), total=agg.sum("v"), each=agg.list("v"), most=agg.max("v"))
        .accumulation("retracting")
    )
    return job.allowed_lateness("9 seconds")


def by_offsets() -> Aggregation:
    job = ts.stream(offset="at").group_by("k").window(ts.offset_sessions(3, late=4))
    return job.aggregate(n=agg.count(), total=agg.sum("v"), each=agg.list("v")).accumulation("retracting")


JOBS: dict[str, tuple[Aggregation, tuple[str, ...]]] = {
    "lifetimes in tumbling windows": (over(ts.tumbling("6 seconds", of="lifetime")), ("part", "at")),
    "lifetimes in sliding windows": (
        over(ts.sliding("6 seconds", "2 seconds", of="lifetime")).allowed_lateness("3 seconds", rule="window"),
        ("part", "at"),
    ),
    "sessions of offsets": (by_offsets(), ("at",)),
}


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def check(
    once: Callable[[str], Harness],
    known: Callable[[str], Harness],
    given_: tuple[list[Rows], list[list[int]]],
    to_table: Callable[[Rows], pa.Table] = table,
) -> tuple[Harness, Harness]:
    """Both with the same panes, whatever comes again to ``known``, in the same batch, later, and after a restart."""
    made, again = given_
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        plain, tested = once(f"{folder}/once"), known(f"{folder}/known")
        expected, found, sent = list[Any](), list[Any](), list[dict[str, Any]]()
        for number, (batch, places) in enumerate(zip(made, again, strict=True)):
            expected += plain.feed(to_table(batch)).to_pylist()
            sent += batch
            found += tested.feed(to_table([*batch, *(sent[place] for place in places)])).to_pylist()
            if number % 2:
                tested.restart()
                found += tested.feed(to_table(sent)).to_pylist()
        expected += plain.finish().to_pylist()
        found += tested.finish().to_pylist()
        assert sorted(map(_key, found)) == sorted(map(_key, expected))
    return plain, tested


def _key(pane: dict[str, Any]) -> str:
    """A pane, whatever the order of its lists."""
    plain = {name: sorted(value) if isinstance(value, list) else value for name, value in pane.items()}
    return repr({name: value for name, value in plain.items() if name not in ("timing", "pane", "last")})


@pytest.mark.long
@pytest.mark.parametrize("name", few(JOBS, 1))
@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=streams())
def test_what_comes_again_changes_nothing(name: str, made: tuple[list[Rows], list[list[int]]]) -> None:
    job, identity = JOBS[name]
    check(
        lambda folder: job.harness(SCHEMA, folder=folder, partitions=2, store=Memory()),
        lambda folder: job.messages(identity).harness(SCHEMA, folder=folder, partitions=2, store=Memory()),
        made,
    )


@pytest.mark.long
@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=streams())
def test_rows_that_take_others_back(made: tuple[list[Rows], list[list[int]]]) -> None:
    """Each row takes back the one before it at times: that row is a message of its own."""
    job = over(ts.tumbling("6 seconds")).allowed_lateness("1 hour")
    known = job.messages(("part", "at")).graph.description
    for batch in made[0]:
        for row in batch:
            row["kind"] = "emit"
        batch += [{**row, "kind": "retract", "at": row["at"] + 1000} for row in batch if row["v"] % 3 == 0]
    check(
        lambda folder: Signed(job.graph.description, SCHEMA, folder=folder, partitions=2, store=Memory()),
        lambda folder: Signed(known, SCHEMA, folder=folder, partitions=2, store=Memory()),
        made,
    )


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=streams())
@pytest.mark.long
def test_the_sides_of_a_merge_have_offsets_of_their_own(made: tuple[list[Rows], list[list[int]]]) -> None:
    job = (
        ts.merge(
            left=ts.stream(event_time="t", watermark_delay="2 seconds"),
            right=ts.stream(event_time="t", watermark_delay="2 seconds"),
        )
        .sharing("at")
        .group_by("k")
        .window(ts.tumbling("6 seconds"))
    )
    job = job.aggregate(n=agg.count(), left=agg.sum("left_v"), each=agg.list("right_v")).allowed_lateness("9 seconds")
    known, schema = job.accumulation("retracting").messages("at"), {"left": SIDE, "right": SIDE}
    for batch in made[0]:
        for row in batch:
            row["at"] //= 2  # of both sides
            row["part"] = "left" if row["v"] % 2 else "right"

    def rows(batch: Rows) -> pa.Table:
        sides = {side: [row for row in batch if row["part"] == side] for side in ("left", "right")}
        return {side: table(own).select(SIDE.names) for side, own in sides.items()}

    check(
        lambda folder: job.accumulation("retracting").harness(schema, folder=folder, partitions=2, store=Memory()),
        lambda folder: known.harness(schema, folder=folder, partitions=2, store=Memory()),
        made,
        rows,
    )
    with pytest.raises(UsageError, match="message-identity"):
        job.messages(("left_part", "at"))


def test_a_lifetime_that_is_reprocessed_is_known_to_its_end() -> None:
    described = (
        ts.stream(event_time="t", lifetime=ts.lifetime("until"))
        .group_by("k")
        .window(ts.tumbling("10 seconds", of="lifetime"))
    )
    described = (
        described.aggregate(n=agg.count())
        .allowed_lateness("0 seconds")
        .retain_windows("30 seconds")
        .messages(identity=("part", "at"))
    )
    job = described.harness(SCHEMA)

    def fed(at: int, start: int, end: int) -> pa.Table:
        row = {"k": "a", "t": start * SECOND, "v": 1, "part": "x", "at": at, "until": end * SECOND, "kind": None}
        return job.feed(table([row]))

    fed(1, 20, 21)
    fed(2, 5, 45)
    assert job.reprocess_late().num_rows
    fed(3, 44, 45)
    fed(2, 5, 45)
    assert job.counters()["duplicates"] == 1
