"""Jobs whose messages are known by an identity do not grow while their input goes on as it did."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.internals import head_of
from tests.helpers.process import LONG, few, in_turn
from tidestate import agg, trigger
from tidestate.operators import Harness
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.store import Memory

SECOND = 1_000_000
SCHEMA = pa.schema(
    {
        "part": pa.string(),
        "at": pa.int64(),
        "t": pa.timestamp("us", tz="UTC"),
        "until": pa.timestamp("us", tz="UTC"),
        "k": pa.string(),
        "gap": pa.int64(),
        "v": pa.int64(),
    }
)
KINDS: dict[str, Any] = {
    "tumbling": ts.tumbling("7 seconds"),
    "lifetimes": ts.sliding("6 seconds", "2 seconds", of="lifetime"),
    "sliding": ts.sliding("6 seconds", "2 seconds"),
    "between": ts.sliding("2 seconds", "5 seconds", strict=False),
    "session": ts.sessions("2 seconds"),
    "gaps": ts.sessions(gap_column="gap"),
    "counted": ts.count_windows(4, 3),
}
KEPT: dict[str, Retention | None] = {
    "lateness": None,
    "count": ts.Retention(messages=20),
    "bytes": ts.Retention(bytes=900),
    "time": ts.Retention(span="20 seconds"),
}
LATE: dict[str, dict[str, Any]] = {
    "event": {"span": "6 seconds"},
    "window": {"span": "6 seconds", "rule": "window"},
    "horizon": {},
}


def rows(number: int) -> list[dict[str, Any]]:
    """Ten seconds of events of two origins whose offsets are far apart, late ones among them, twice."""
    made = []
    for place in range(12):
        one = number * 12 + place
        part = "pq"[place % 3 == 0]
        t = number * 10 + place % 10 - (5 if place % 5 == 0 else 30 if place == 7 else 0)
        offset = one + (1_000_000 if part == "q" else 0)
        row = {"part": part, "at": offset, "t": t * SECOND, "until": (t + place) * SECOND, "k": "abc"[place % 3]}
        made.append({**row, "gap": (1 + place % 4) * SECOND, "v": one})
    return [*made, *made[:4]]


CASES = [
    ("tumbling", "lateness", "event"),
    ("sliding", "count", "horizon"),
    ("gaps", "time", "window"),
    ("counted", "bytes", "event"),
]
"""Each way to keep and each rule of lateness has its turn, and of windows those that keep state in different ways."""
ROUNDS, FEW = (30, 10) if LONG else (13, 7)


@pytest.mark.parametrize(("kind", "kept", "late"), in_turn(KINDS, KEPT, LATE) if LONG else few(CASES, 0))
def test_after_many_rounds_there_is_no_more_than_after_a_few(kind: str, kept: str, late: str) -> None:
    if kind == "counted" and (late == "window" or kept == "lateness"):
        pytest.skip(
            "counted windows keep all messages, and by the rule of windows identities too, without a retention"
        )
    events = ts.stream(event_time="t", watermark_delay="3 seconds", lifetime=ts.lifetime("until"))
    job = events.group_by("k").window(KINDS[kind]).aggregate(n=agg.count(), each=agg.list("v"))
    if LATE[late]:
        job = job.allowed_lateness(**LATE[late])
    if kind != "counted" and late == "event":
        job = job.trigger(when=trigger.after_count(3))
    assert_bounded(job.messages(("part", "at"), retain=KEPT[kept]).harness(SCHEMA, store=Memory()))


def assert_bounded(harness: Harness) -> None:
    counts = []
    for number in range(ROUNDS):
        harness.feed(pa.Table.from_pylist(rows(number), SCHEMA))
        if number in (FEW - 1, FEW, FEW + 1, ROUNDS - 2, ROUNDS - 1):
            tables = [spec.name for spec in next(iter(head_of(harness).operators.values())).tables]
            counts.append({name: harness.state(name).num_rows for name in tables})
    before, after = counts[:3], counts[3:]
    grown = {
        name: (most, now[name])
        for now in after
        for name in now
        if now[name] > (most := max(one[name] for one in before)) + 2
    }
    assert not grown
    assert any(after[-1].values())
