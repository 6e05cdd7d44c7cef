"""Jobs of every kind of operator over the same small events, for those who divide their state again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import tidestate as ts
from tidestate import GroupedStream, Stream, agg, trigger, watermark
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("t", TIME), ("v", pa.int64()), ("o", pa.int64())])
KEYS = "abcdefghijkl"


@dataclass(frozen=True)
class Event:
    left: bool
    key: str
    at: int
    value: int


events = st.builds(
    Event,
    left=st.booleans(),
    key=st.sampled_from(KEYS),
    at=st.integers(0, 90),
    value=st.integers(-50, 50),
)


def table(rows: Sequence[Event], first: int) -> pa.Table:
    """Events as rows; ``o`` counts on from ``first``."""
    columns = [
        pa.array([row.key for row in rows], pa.string()),
        pa.array([ord(row.key) % 3 for row in rows], pa.int32()),
        pa.array([row.at * SECOND for row in rows], pa.int64()).cast(TIME),
        pa.array([row.value for row in rows], pa.int64()),
        pa.array(range(first, first + len(rows)), pa.int64()),
    ]
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class Kind:
    """A job; its input comes in batches of events."""

    make: Callable[[], Any]

    @property
    def sided(self) -> bool:
        return len(self.make().graph.streams) == 2

    @property
    def schema(self) -> Any:
        return {"left": SCHEMA, "right": SCHEMA} if self.sided else SCHEMA

    def batch(self, rows: Sequence[Event], number: int) -> Any:
        first = 1000 * number
        if not self.sided:
            return table(rows, first)
        left = table([row for row in rows if row.left], first)
        right = table([row for row in rows if not row.left], first)
        return {"left": left, "right": right}


def _events() -> Stream:
    return ts.stream(event_time="t", watermark_delay="5 seconds")


def _windows(*keys: str) -> GroupedStream:
    return _events().group_by(*keys)


def _chain() -> Any:
    once = _events().deduplicate(["k", "v"], within="20 seconds", name="once")
    first = once.group_by("k", "n").window(ts.tumbling("10 seconds")).aggregate(s=agg.sum("v"), c=agg.count())
    first = first.allowed_lateness("10 seconds").accumulation("retracting").named("first")
    second = first.group_by("n").window(ts.tumbling("30 seconds")).aggregate(s=agg.sum("s"), c=agg.sum("c"))
    return second.allowed_lateness("30 seconds").accumulation("retracting").named("second")


def _by_ctis() -> Stream:
    made = watermark.cti_settings("drop", generate=watermark.generate_ctis(3, delay="20 seconds"))
    return ts.stream(event_time="t", offset="o").watermark(watermark.ctis(made))


KINDS: dict[str, Kind] = {
    "tumbling": Kind(
        lambda: (
            _windows("k")
            .window(ts.tumbling("10 seconds"))
            .aggregate(n=agg.count(), m=agg.mean("v"), x=agg.max("v"))
            .named("job")
            .allowed_lateness("30 seconds")
            .accumulation("retracting")
        )
    ),
    "sliding, of two keys": Kind(
        lambda: (
            _windows("n", "k")
            .window(ts.sliding("20 seconds", "5 seconds"))
            .aggregate(s=agg.sum("v"))
            .named("job")
            .allowed_lateness("10 s")
        )
    ),
    "keyless": Kind(
        lambda: _windows().window(ts.tumbling("10 seconds")).aggregate(n=agg.count(), s=agg.sum("v")).named("job")
    ),
    "keyless sessions": Kind(
        lambda: _windows().window(ts.sessions("3 seconds")).aggregate(n=agg.count()).named("job")
    ),
    "sessions": Kind(
        lambda: (
            _windows("k")
            .window(ts.sessions("4 seconds"))
            .aggregate(n=agg.count(), all=agg.list("v"))
            .named("job")
            .allowed_lateness("30 seconds")
            .accumulation("retracting")
        )
    ),
    "counted": Kind(
        lambda: _windows("k").window(ts.count_windows(3)).aggregate(n=agg.count(), s=agg.sum("v")).named("job")
    ),
    "triggered": Kind(
        lambda: (
            _windows("k")
            .window(ts.tumbling("30 seconds"))
            .aggregate(n=agg.count(), s=agg.sum("v"))
            .named("job")
            .trigger(early=trigger.after_count(2))
            .allowed_lateness("10 seconds")
        )
    ),
    "by the clock": Kind(
        lambda: (
            _windows("k")
            .window(ts.tumbling("30 seconds"))
            .aggregate(n=agg.count())
            .named("job")
            .trigger(early=trigger.after_processing_time("3 seconds"))
        )
    ),
    "dedup": Kind(
        lambda: ts.stream(event_time="t", watermark_delay="5 seconds").deduplicate(["k", "v"], within="20 seconds")
    ),
    "join": Kind(
        lambda: ts.stream(event_time="t", watermark_delay="5 s").join(
            ts.stream(event_time="t", watermark_delay="5 s"),
            on="k",
            within=("-5 s", "10 s"),
            how="full",
            allowed_lateness="10 s",
        )
    ),
    "join by offsets": Kind(
        lambda: ts.stream(event_time="t", offset="o").join(
            ts.stream(event_time="t", offset="o"),
            on=["k", "n"],
            window=ts.tumbling("10 s"),
            how="left",
            allowed_lateness="10 s",
            identity=True,
        )
    ),
    "join of counts and times": Kind(
        lambda: ts.stream(event_time="t", offset="o").join(
            ts.stream(event_time="t"),
            on=["k", "n"],
            left=ts.side(window=ts.offset_windows(400)),
            right=ts.side(window=ts.tumbling("20 s")),
            large_windows=False,
            identity=True,
        )
    ),
    "count windows in order": Kind(
        lambda: (
            ts.stream(event_time="t", watermark_delay="5 s", offset="o")
            .group_by("k")
            .window(ts.count_windows(3))
            .aggregate(s=agg.sum("v"), c=agg.count())
            .in_order()
            .named("job")
        )
    ),
    "deduplicated in order": Kind(
        lambda: ts.stream(event_time="t", watermark_delay="5 s").deduplicate("k", within="4 s", in_order=True)
    ),
    "join with updates": Kind(
        lambda: ts.stream(event_time="t").join(
            ts.stream(event_time="t"), on="k", within=("-5 s", "10 s"), sides=ts.side(update=ts.period("7 s"))
        )
    ),
    "session join": Kind(
        lambda: ts.stream(event_time="t", watermark_delay="5 s").join_sessions(
            ts.stream(event_time="t", watermark_delay="5 s"),
            on="k",
            gap="4 seconds",
            how="full",
            allowed_lateness="10 s",
        )
    ),
    "session join by offsets": Kind(
        lambda: ts.stream(event_time="t", offset="o").join_sessions(
            ts.stream(event_time="t", offset="o"),
            on=["k", "n"],
            gap="4 seconds",
            session_key="k",
            allowed_lateness="10 s",
            identity=True,
        )
    ),
    "merge": Kind(
        lambda: (
            ts.merge(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"))
            .group_by("k")
            .window(ts.tumbling("10 seconds"))
            .aggregate(n=agg.count(), s=agg.sum("left_v"))
            .allowed_lateness("20 seconds")
            .accumulation("retracting")
        )
    ),
    "sessions of messages": Kind(
        lambda: (
            ts.stream(offset="o")
            .group_by("k")
            .window(ts.message_sessions(2))
            .aggregate(n=agg.count(), s=agg.sum("v"), all=agg.list("o"))
        )
    ),
    "union": Kind(lambda: ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"))),
    "join with CTIs": Kind(
        lambda: _by_ctis().join(_by_ctis(), on="k", within=("-5 s", "10 s"), how="left", allowed_lateness="10 s")
    ),
    "join of lifetimes": Kind(
        lambda: (
            ts.stream(event_time="t", offset="o", lifetime=ts.lifetime(shape="point"))
            .watermark(
                watermark.ctis(
                    watermark.cti_settings("drop", generate=watermark.generate_ctis(3, delay="20 seconds"))
                )
            )
            .join_lifetimes(
                ts.stream(event_time="t", offset="o", lifetime=ts.lifetime(shape="edge_start")).watermark(
                    watermark.ctis(watermark.cti_settings("adjust", import_from="left"))
                ),
                on="k",
            )
        )
    ),
    "chain": Kind(_chain),
}
