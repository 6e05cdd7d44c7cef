"""What the two sides compute: a description of ours, and the same as a query of Spark's own. Equal panes by design.

Spark merges sessions that only touch, ours do not: a gap that is a microsecond longer is the same in whole
microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

import tidestate as ts
from tidestate import agg, trigger
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe.stages import Decode
from tidestate.operators.describe.windows import Windows

DELAY = "60 seconds"
JOIN_DELAY, WITHIN = "5 seconds", ("0 seconds", "2 seconds")
SIDES = ("left", "right")
PAIR = ("key", "left_event_time", "left_price", "right_event_time", "right_price")
GAPS = "CASE WHEN key % 2 = 0 THEN '15 minutes' ELSE '30 minutes' END"
Check: TypeAlias = list[int | float]


@dataclass(frozen=True)
class Workload:
    """``ours``: our description; ``native`` and ``middle``: the window and an aggregate of Spark's query, whose
    output mode is ``output``. ``stateful``: Spark's side is a stateful processor instead. ``decodes``: ours reads
    JSON texts, Spark's what its ``from_json`` makes of them.
    """

    ours: ts.Aggregation
    native: Callable[[], Column] = lambda: sf.window("event_time", "10 seconds")
    middle: Callable[[], Column] = lambda: sf.avg("price")
    output: str = "append"
    stateful: bool = False
    decodes: bool = False

    def query(self, bids: DataFrame) -> DataFrame:
        """The same windows as a query of Spark's own, the peer."""
        marked = bids.withWatermark("event_time", DELAY)
        if self.stateful:
            from tools.bench.stateful import tumbling_by_state

            return tumbling_by_state(marked)
        best, number = sf.max("price").alias("best"), sf.count("*").alias("bids")
        return marked.groupBy(self.native(), "key").agg(number, self.middle().alias("middle"), best)


def _bids(
    windows: Windows,
    *,
    middle: Aggregate | None = None,
    delay: str = DELAY,
    late: str = "0 seconds",
    decode: Decode | None = None,
) -> ts.Aggregation:
    bids = ts.stream(event_time="event_time", watermark_delay=delay, decode=decode)
    by_key = bids.group_by("key").window(windows)
    results = {"bids": agg.count(), "middle": middle or agg.mean("price"), "best": agg.max("price")}
    return by_key.aggregate(**results).allowed_lateness(late).named("bids")


def _sessions(gap: str, native: str) -> Workload:
    return Workload(_bids(ts.sessions(gap)), lambda: sf.session_window("event_time", native))


OF_TEXTS = ts.json("value", {"event_time": "timestamp[us, tz=UTC]", "key": "int64", "price": "int64"})
TUMBLING = _bids(ts.tumbling("10 seconds"))
WORKLOADS = {
    "tumbling": Workload(TUMBLING),
    "tumbling, decoded": Workload(_bids(ts.tumbling("10 seconds"), decode=OF_TEXTS), decodes=True),
    "sliding": Workload(
        _bids(ts.sliding("60 seconds", "15 seconds")),
        lambda: sf.window("event_time", "60 seconds", "15 seconds"),
    ),
    "day by the minute": Workload(
        _bids(ts.sliding("1 day", "1 minute")),
        lambda: sf.window("event_time", "1 day", "1 minute"),
    ),
    "hour by the minute": Workload(
        _bids(ts.sliding("1 hour", "1 minute")),
        lambda: sf.window("event_time", "1 hour", "1 minute"),
    ),
    "sessions": _sessions("2 seconds 1 microsecond", "2 seconds"),
    "long sessions": _sessions("30 minutes 1 microsecond", "30 minutes"),
    "gap column": Workload(
        _bids(ts.sessions(gap_column="gap")),
        lambda: sf.session_window("event_time", sf.expr(GAPS)),
    ),
    "late sessions": Workload(
        _bids(ts.sessions("30 minutes 1 microsecond"), delay="0 seconds", late="1 minute").accumulation("retracting"),
        lambda: sf.session_window("event_time", "30 minutes"),
    ),
    "by hand": Workload(TUMBLING, stateful=True),
    "early": Workload(TUMBLING.trigger(early=trigger.each_batch(), on_time="non_empty"), output="update"),
    "held": Workload(_bids(ts.tumbling("1 day")), lambda: sf.window("event_time", "1 day")),
    "median": Workload(
        _bids(ts.tumbling("10 seconds"), middle=agg.median("price")),
        middle=lambda: sf.percentile("price", 0.5),
    ),
}
"""By name. The panes of all have the columns ``bids``, ``middle`` and ``best``."""


def parsed(messages: DataFrame) -> DataFrame:
    """The columns of bids in the values of messages, by Spark."""
    row = sf.from_json(sf.col("value").cast("string"), "event_time timestamp, key long, price long")
    return messages.select(row.alias("row")).select("row.*")


def check_panes(panes: DataFrame, until_us: int | None) -> Check:
    """The number of panes less retracted ones, and sums over them; only of windows that end by ``until_us``."""
    if until_us is not None:
        named = next((name for name in ("window", "session_window") if name in panes.columns), None)
        end = sf.col(f"{named}.end" if named else "window_end")
        panes = panes.where(sf.unix_micros(end.cast("timestamp")) <= until_us)
    sign = sf.expr("CASE WHEN kind = 'retract' THEN -1 ELSE 1 END") if "kind" in panes.columns else sf.lit(1)
    found = panes.agg(sf.sum(sign), *(sf.sum(sign * sf.col(name)) for name in ("bids", "best", "middle"))).collect()[
        0
    ]
    return [value or 0 for value in found]


def two_streams() -> tuple[ts.Stream, ts.Stream]:
    """The bids on the left and those on the right."""
    left, right = (ts.stream(event_time="event_time", watermark_delay=JOIN_DELAY) for _ in SIDES)
    return left, right


def interval_join(late: str = "0 seconds") -> ts.OperatorStream:
    """Bids of one key on the right at most two seconds after those on the left."""
    left, right = two_streams()
    return left.join(right, on="key", within=WITHIN, allowed_lateness=late, name="interval")


def native_join(streams: Sequence[DataFrame]) -> DataFrame:
    """The same as Spark's stream-stream join."""
    lefts, rights = (
        stream.withWatermark("event_time", JOIN_DELAY).select(
            sf.col("key").alias("key" if side == "left" else "right_key"),
            sf.col("event_time").alias(f"{side}_event_time"),
            sf.col("price").alias(f"{side}_price"),
        )
        for side, stream in zip(SIDES, streams, strict=True)
    )
    lower, upper = (f"left_event_time + INTERVAL {span}" for span in WITHIN)
    met = f"key = right_key AND right_event_time >= {lower} AND right_event_time <= {upper}"
    return lefts.join(rights, sf.expr(met)).select(*PAIR)


def check_pairs(pairs: DataFrame) -> Check:
    """How many, and sums over the columns; the hashes of whole rows tell which left row met which right one."""
    apart = sf.unix_micros("right_event_time") - sf.unix_micros("left_event_time")
    sums = [sf.sum("left_price"), sf.sum("right_price"), sf.sum(apart), sf.bit_xor(sf.xxhash64(*PAIR))]
    return [value or 0 for value in pairs.agg(sf.count("*"), *sums).collect()[0]]


def same(mine: Check, theirs: Check) -> bool:
    """Equal and not empty; sums of doubles may differ in their last bits."""
    close = all(abs(a - b) <= 1e-9 * max(abs(a), abs(b)) for a, b in zip(mine, theirs, strict=True))
    return close and mine[0] > 0
