"""What a job takes over of a query whose watermark has not moved: Spark's begins in 1970."""

from __future__ import annotations

import pyarrow as pa

from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.adopt.adopted import adopted
from tidestate.operators.adopt.spark_state import SparkState, column_of
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.windowed import windowed
from tidestate.statestore.spec.tables import TIME

DELAY = 5_000_000
WINDOW = pa.struct([("start", TIME), ("end", TIME)])


def test_windows_before_1970_are_gone_where_spark_has_dropped_them() -> None:
    job = windowed(event_time="t", watermark_delay="5 seconds").window(tumbling("10 seconds")).aggregate(n=count())
    key, value = (
        pa.field("window", WINDOW, metadata={"spark.watermarkDelayMs": "5000"}),
        pa.field("count", pa.int64()),
    )
    rows = pa.table(
        [pa.array([], WINDOW), pa.array([], pa.int64())], names=[column_of("key", 0), column_of("value", 0)]
    )
    state = SparkState("stateStoreSave", (key,), (value,), DELAY, rows)
    graph = bind_graph(job.late("0 seconds", rule="window"), pa.schema([("t", TIME)]))
    taken = adopted(graph, state, (0, 0), {})
    assert (taken.watermark_us, taken.reached_us, taken.gone_us, taken.max_event_us) == (0, 0, 0, None)
    later = adopted(graph, state, (95_000_000, 125_000_000), {})
    assert (later.watermark_us, later.gone_us, later.max_event_us) == (95_000_000, 95_000_000, 130_000_000)


def test_identities_at_the_watermark_of_1970_are_late_as_in_spark() -> None:
    job = deduplicated(event_time="t", on="k", within="5 seconds", watermark_delay="5 seconds")
    key, value = pa.field("k", pa.int64()), pa.field("expiresAtMicros", pa.int64())
    rows = pa.table({column_of("key", 0): pa.array([1]), column_of("value", 0): pa.array([-95_000_000])})
    state = SparkState("dedupeWithinWatermark", (key,), (value,), DELAY, rows)
    taken = adopted(bind_graph(job, pa.schema([("t", TIME), ("k", pa.int64())])), state, (0, 0), {})
    assert (taken.watermark_us, taken.rows.num_rows, taken.max_event_us) == (1, 1, None)
