"""Jobs of every kind of operator over the same small events, for those who divide their state again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tidestate.agg import count, mean
from tidestate.agg import list as list_
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import sliding, tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.join_choices import every
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.overlap_join import overlap_join
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.statestore.spec.tables import TIME
from tidestate.trigger import after_count, after_processing_time

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
    def schema(self) -> Any:
        made = self.make()
        return made.schema(SCHEMA, SCHEMA) if isinstance(made, Sided) else SCHEMA

    def batch(self, rows: Sequence[Event], number: int) -> pa.Table:
        made, first = self.make(), 1000 * number
        if not isinstance(made, Sided):
            return table(rows, first)
        left = table([row for row in rows if row.left], first)
        right = table([row for row in rows if not row.left], first)
        return made.rows(made.schema(SCHEMA, SCHEMA), left=left, right=right)


def _windows(key: Any = "k", delay: str = "5 seconds", name: str = "job") -> Any:
    return windowed(event_time="t", key=key, watermark_delay=delay, name=name)


def _chain() -> Any:
    first = _windows(["k", "n"], name="first").window(tumbling("10 seconds")).aggregate(s=sum_("v"), c=count())
    second = windowed(key="n", name="second").window(tumbling("30 seconds")).aggregate(s=sum_("s"), c=sum_("c"))
    once = deduplicated(event_time="t", on=["k", "v"], within="20 seconds", watermark_delay="5 seconds", name="once")
    return chain(
        once,
        first.late("10 seconds").accumulation(RETRACTING),
        second.late("30 seconds").accumulation(RETRACTING),
    )


KINDS: dict[str, Kind] = {
    "tumbling": Kind(
        lambda: (
            _windows()
            .window(tumbling("10 seconds"))
            .aggregate(n=count(), m=mean("v"), x=max_("v"))
            .late("30 seconds")
            .accumulation(RETRACTING)
        )
    ),
    "sliding, of two keys": Kind(
        lambda: _windows(["n", "k"]).window(sliding("20 seconds", "5 seconds")).aggregate(s=sum_("v")).late("10 s")
    ),
    "keyless": Kind(lambda: _windows(None).window(tumbling("10 seconds")).aggregate(n=count(), s=sum_("v"))),
    "keyless sessions": Kind(lambda: _windows(None).window(session("3 seconds")).aggregate(n=count())),
    "sessions": Kind(
        lambda: (
            _windows()
            .window(session("4 seconds"))
            .aggregate(n=count(), all=list_("v"))
            .late("30 seconds")
            .accumulation(RETRACTING)
        )
    ),
    "counted": Kind(lambda: _windows().window(count_window(3)).aggregate(n=count(), s=sum_("v"))),
    "triggered": Kind(
        lambda: (
            _windows()
            .window(tumbling("30 seconds"))
            .aggregate(n=count(), s=sum_("v"))
            .trigger(early=after_count(2))
            .late("10 seconds")
        )
    ),
    "by the clock": Kind(
        lambda: (
            _windows()
            .window(tumbling("30 seconds"))
            .aggregate(n=count())
            .trigger(early=after_processing_time("3 seconds"))
        )
    ),
    "dedup": Kind(
        lambda: deduplicated(event_time="t", on=["k", "v"], within="20 seconds", watermark_delay="5 seconds")
    ),
    "join": Kind(
        lambda: join(
            event_time="t",
            on="k",
            within=("-5 s", "10 s"),
            how="full",
            late="10 s",
            watermark_delay="5 s",
        )
    ),
    "join by offsets": Kind(
        lambda: join(event_time="t", on=["k", "n"], window=tumbling("10 s"), how="left", offset="o", late="10 s")
    ),
    "join of counts and times": Kind(
        lambda: join(
            event_time="t",
            on=["k", "n"],
            window=(count_window(400, by="offset"), tumbling("20 s")),
            offset=("o", None),
            large_windows=False,
        )
    ),
    "count windows in order": Kind(
        lambda: (
            windowed(event_time="t", key="k", watermark_delay="5 s", name="job", offset="o", in_order=True)
            .window(count_window(3))
            .aggregate(s=sum_("v"), c=count())
        )
    ),
    "deduplicated in order": Kind(
        lambda: deduplicated(event_time="t", on="k", within="4 s", watermark_delay="5 s", in_order=True)
    ),
    "join with updates": Kind(lambda: join(event_time="t", on="k", within=("-5 s", "10 s"), update=every("7 s"))),
    "session join": Kind(
        lambda: session_join(event_time="t", on="k", gap="4 seconds", how="full", late="10 s", watermark_delay="5 s")
    ),
    "session join by offsets": Kind(
        lambda: session_join(event_time="t", on=["k", "n"], session="k", gap="4 seconds", offset="o", late="10 s")
    ),
    "merge": Kind(
        lambda: (
            merge(event_time="t", key="k")
            .window(tumbling("10 seconds"))
            .aggregate(n=count(), s=sum_("left_v"))
            .late("20 seconds")
            .accumulation(RETRACTING)
        )
    ),
    "union": Kind(lambda: union(event_time="t", sides=["left", "right"])),
    "join with CTIs": Kind(
        lambda: join(
            event_time="t", on="k", within=("-5 s", "10 s"), how="left", late="10 s", offset="o"
        ).advance_time(advance_time("drop", generation(3, "20 seconds")))
    ),
    "join of lifetimes": Kind(
        lambda: overlap_join(event_time="t", on="k", offset="o", shape=("point", "edge_start")).advance_time(
            {
                "left": advance_time("drop", generation(3, "20 seconds")),
                "right": advance_time("adjust", import_from="left"),
            }
        )
    ),
    "chain": Kind(_chain),
}
