"""What a job takes over of a query whose watermark has not moved: Spark's begins in 1970."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg
from tidestate.operators.adopt.adopted import adopted
from tidestate.operators.adopt.spark_state import SparkState, column_of
from tidestate.operators.bind.graph import bind_graph
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

DELAY = 5_000_000
WINDOW = pa.struct([("start", TIME), ("end", TIME)])


def test_windows_before_1970_are_gone_where_spark_has_dropped_them() -> None:
    job = (
        ts.stream(event_time="t", watermark_delay="5 seconds")
        .group_by()
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
    )
    key, value = (
        pa.field("window", WINDOW, metadata={"spark.watermarkDelayMs": "5000"}),
        pa.field("count", pa.int64()),
    )
    rows = pa.table(
        [pa.array([], WINDOW), pa.array([], pa.int64())], names=[column_of("key", 0), column_of("value", 0)]
    )
    state = SparkState("stateStoreSave", (key,), (value,), DELAY, rows)
    graph = bind_graph(job.allowed_lateness("0 seconds", rule="window").graph.description, pa.schema([("t", TIME)]))
    taken = adopted(graph, state, (0, 0), {})
    assert (taken.watermark_us, taken.reached_us, taken.gone_us, taken.max_event_us) == (0, 0, 0, None)
    later = adopted(graph, state, (95_000_000, 125_000_000), {})
    assert (later.watermark_us, later.gone_us, later.max_event_us) == (95_000_000, 95_000_000, 130_000_000)


def test_identities_at_the_watermark_of_1970_are_late_as_in_spark() -> None:
    job = ts.stream(event_time="t", watermark_delay="5 seconds").deduplicate("k", within="5 seconds")
    key, value = pa.field("k", pa.int64()), pa.field("expiresAtMicros", pa.int64())
    rows = pa.table({column_of("key", 0): pa.array([1]), column_of("value", 0): pa.array([-95_000_000])})
    state = SparkState("dedupeWithinWatermark", (key,), (value,), DELAY, rows)
    taken = adopted(bind_graph(job.graph.description, pa.schema([("t", TIME), ("k", pa.int64())])), state, (0, 0), {})
    assert (taken.watermark_us, taken.rows.num_rows, taken.max_event_us) == (1, 1, None)


def test_a_key_that_is_computed_is_not_taken_over_and_a_filter_is_no_matter() -> None:
    events = ts.stream(event_time="t", watermark_delay="5 seconds")
    key, value = pa.field("k", pa.int64()), pa.field("expiresAtMicros", pa.int64())
    rows = pa.table({column_of("key", 0): pa.array([1]), column_of("value", 0): pa.array([-95_000_000])})
    state = SparkState("dedupeWithinWatermark", (key,), (value,), DELAY, rows)

    def taken(stream: ts.Stream) -> int:
        job = stream.deduplicate("k", within="5 seconds")
        schema = pa.schema([("t", TIME), ("k", pa.int64())])
        return adopted(bind_graph(job.graph.description, schema), state, (0, 0), {}).rows.num_rows

    assert taken(events.where("k > 0").with_columns(v="k + 1")) == 1
    with pytest.raises(UsageError) as error:
        taken(events.with_columns(k="k + 1"))
    assert error.value.code == "adopt-job"
