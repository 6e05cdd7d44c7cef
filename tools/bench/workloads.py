"""What the two sides compute: a description of ours, and the same as a query of Spark's own. Equal panes by design.

Spark merges sessions that only touch, ours do not: a gap that is a microsecond longer is the same in whole
microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

import tidestate as ts
from tidestate import agg, trigger
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe.stages import Decode
from tidestate.operators.describe.windows import Windows
from tools.bench.bids import SCHEMA

DELAY = "60 seconds"
JOIN_DELAY, WITHIN = "5 seconds", ("0 seconds", "2 seconds")
SIDES = ("left", "right")
PAIR = ("key", "left_event_time", "left_price", "right_event_time", "right_price")
GAPS = "CASE WHEN key % 2 = 0 THEN '15 minutes' ELSE '30 minutes' END"
Check: TypeAlias = list[int | float]


Streams: TypeAlias = Sequence[DataFrame]
CheckPanes: TypeAlias = Callable[[DataFrame, int | None], Check]


@dataclass(frozen=True)
class Workload:
    """``ours``: our description; ``query``: the same as a query of Spark's own over the same streams, the peer.

    ``schemas``: of each stream, by the name under which it is written and read. ``output`` is the output mode of the
    peer. ``check``: the panes of either side as figures, those of windows that end by a time if one is passed.
    ``clock_s``: windows go by the clock, and this many seconds after the last row all are over.
    ``decodes``: ours reads JSON texts, Spark's what its ``from_json`` makes of them.
    """

    ours: ts.OperatorStream
    query: Callable[[Streams], DataFrame]
    check: CheckPanes
    schemas: Mapping[str, str] = field(default_factory=lambda: {"input": SCHEMA})
    output: str = "append"
    clock_s: float = 0
    decodes: bool = False


def summed(*columns: str) -> CheckPanes:
    """A check: the number of panes less retracted ones, and sums over ``columns``, which are SQL."""

    def check(panes: DataFrame, until_us: int | None) -> Check:
        if until_us is not None:
            named = next((name for name in ("window", "session_window") if name in panes.columns), None)
            end = sf.col(f"{named}.end" if named else "window_end")
            panes = panes.where(sf.unix_micros(end.cast("timestamp")) <= until_us)
        sign = sf.expr("CASE WHEN kind = 'retract' THEN -1 ELSE 1 END") if "kind" in panes.columns else sf.lit(1)
        sums = panes.agg(sf.sum(sign), *(sf.sum(sign * sf.expr(column)) for column in columns))
        return [value or 0 for value in sums.collect()[0]]

    return check


@dataclass(frozen=True)
class _Grouped:
    """Spark's query of bids by key: the window, the aggregate of the column ``middle``."""

    native: Callable[[], Column]
    middle: Callable[[], Column]

    def __call__(self, streams: Streams) -> DataFrame:
        (bids,) = streams
        best, number = sf.max("price").alias("best"), sf.count("*").alias("bids")
        return (
            bids.withWatermark("event_time", DELAY)
            .groupBy(self.native(), "key")
            .agg(number, self.middle().alias("middle"), best)
        )


def _windowed(
    ours: ts.Aggregation,
    native: Callable[[], Column] = lambda: sf.window("event_time", "10 seconds"),
    middle: Callable[[], Column] = lambda: sf.avg("price"),
    output: str = "append",
) -> Workload:
    """Windows of bids by key: the panes of both sides have the columns ``bids``, ``middle`` and ``best``."""
    return Workload(ours, _Grouped(native, middle), summed("bids", "best", "middle"), output=output)


def _by_hand(streams: Streams) -> DataFrame:
    """Tumbling windows by a stateful processor of Spark's."""
    from tools.bench.stateful import tumbling_by_state

    return tumbling_by_state(streams[0].withWatermark("event_time", DELAY))


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
    return _windowed(_bids(ts.sessions(gap)), lambda: sf.session_window("event_time", native))


def two_streams() -> tuple[ts.Stream, ts.Stream]:
    """The bids on the left and those on the right."""
    left, right = (ts.stream(event_time="event_time", watermark_delay=JOIN_DELAY) for _ in SIDES)
    return left, right


def interval_join(late: str = "0 seconds") -> ts.OperatorStream:
    """Bids of one key on the right at most two seconds after those on the left."""
    left, right = two_streams()
    return left.join(right, on="key", within=WITHIN, allowed_lateness=late, name="interval")


def native_join(streams: Streams) -> DataFrame:
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


def check_pairs(pairs: DataFrame, _until_us: int | None) -> Check:
    """How many, and sums over the columns; the hashes of whole rows tell which left row met which right one."""
    apart = sf.unix_micros("right_event_time") - sf.unix_micros("left_event_time")
    sums = [sf.sum("left_price"), sf.sum("right_price"), sf.sum(apart), sf.bit_xor(sf.xxhash64(*PAIR))]
    return [value or 0 for value in pairs.agg(sf.count("*"), *sums).collect()[0]]


def parsed(messages: DataFrame) -> DataFrame:
    """The columns of bids in the values of messages, by Spark."""
    row = sf.from_json(sf.col("value").cast("string"), "event_time timestamp, key long, price long")
    return messages.select(row.alias("row")).select("row.*")


OF_TEXTS = ts.json("value", {"event_time": "timestamp[us, tz=UTC]", "key": "int64", "price": "int64"})
TUMBLING = _bids(ts.tumbling("10 seconds"))
WORKLOADS = {
    "tumbling": _windowed(TUMBLING),
    "tumbling, decoded": replace(_windowed(_bids(ts.tumbling("10 seconds"), decode=OF_TEXTS)), decodes=True),
    "sliding": _windowed(
        _bids(ts.sliding("60 seconds", "15 seconds")),
        lambda: sf.window("event_time", "60 seconds", "15 seconds"),
    ),
    "day by the minute": _windowed(
        _bids(ts.sliding("1 day", "1 minute")),
        lambda: sf.window("event_time", "1 day", "1 minute"),
    ),
    "hour by the minute": _windowed(
        _bids(ts.sliding("1 hour", "1 minute")),
        lambda: sf.window("event_time", "1 hour", "1 minute"),
    ),
    "sessions": _sessions("2 seconds 1 microsecond", "2 seconds"),
    "long sessions": _sessions("30 minutes 1 microsecond", "30 minutes"),
    "gap column": _windowed(
        _bids(ts.sessions(gap_column="gap")),
        lambda: sf.session_window("event_time", sf.expr(GAPS)),
    ),
    "late sessions": _windowed(
        _bids(ts.sessions("30 minutes 1 microsecond"), delay="0 seconds", late="1 minute").accumulation("retracting"),
        lambda: sf.session_window("event_time", "30 minutes"),
    ),
    "by hand": Workload(TUMBLING, _by_hand, summed("bids", "best", "middle")),
    "early": _windowed(TUMBLING.trigger(early=trigger.each_batch(), on_time="non_empty"), output="update"),
    "held": _windowed(_bids(ts.tumbling("1 day")), lambda: sf.window("event_time", "1 day")),
    "median": _windowed(
        _bids(ts.tumbling("10 seconds"), middle=agg.median("price")),
        middle=lambda: sf.percentile("price", 0.5),
    ),
    "sketches": replace(
        _windowed(
            _bids(ts.tumbling("10 seconds"), middle=agg.theta("price")),
            middle=lambda: sf.theta_sketch_agg("price"),
        ),
        check=summed("bids", "best", "theta_sketch_estimate(middle)"),
    ),
    "join": Workload(interval_join(), native_join, check_pairs, dict.fromkeys(SIDES, SCHEMA)),
}
"""By name."""


def same(mine: Check, theirs: Check) -> bool:
    """Equal and not empty; sums of doubles may differ in their last bits."""
    close = all(abs(a - b) <= 1e-9 * max(abs(a), abs(b)) for a, b in zip(mine, theirs, strict=True))
    return close and mine[0] > 0
