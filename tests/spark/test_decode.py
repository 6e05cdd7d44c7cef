"""Streams that are decoded, on Spark: whoever reads the rows; and what Spark's own ``from_json`` makes of values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.apis import REMOTE
from tests.helpers.json_texts import Drawing
from tests.helpers.spark_inputs import write
from tidestate import Aggregation, agg
from tidestate.operators import Policy
from tidestate.operators.stages.json_values import JsonReader
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark
TIME = pa.timestamp("us", "UTC")
FIELDS = pa.schema([("k", pa.string()), ("t", TIME), ("v", pa.int64())])
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32()), ("offset", pa.int64())])


def batches() -> list[pa.Table]:
    """As Kafka gives rows; every seventh value is no object of the schema."""
    found = []
    for number in range(3):
        rows = []
        for place in range(60):
            second = 20 * number + place % 30
            value = {"k": "abc"[place % 3], "t": f"2024-01-01T00:00:{second % 60:02d}Z", "v": place}
            # A fraction in a whole number, and no time.
            text = json.dumps(value).encode() if place % 7 else b'{"k": "a", "v": 1.5}'
            rows.append({"key": None, "value": text, "partition": place % 2, "offset": 60 * number + place})
        found.append(pa.Table.from_pylist(rows, SCHEMA))
    return found


def totals() -> Aggregation:
    events = ts.stream(event_time="t", decode=ts.json("value", FIELDS)).watermark(by="partition")
    windows = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count(), v=agg.sum("v"))
    return windows.allowed_lateness("0 seconds", ledger_columns=["offset"])


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    columns = "key binary, value binary, partition int, offset long"
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder))


READ: dict[str, Any] = {
    # Files by the tasks themselves, rows of the JVM, and values that are text.
    "direct": lambda frame: frame,
    "jvm": lambda frame: frame.withColumn("value", sf.concat(sf.col("value"), sf.lit(b" "))),
    "text": lambda frame: frame.withColumn("value", sf.concat(sf.col("value").cast("string"), sf.lit(""))),
}


@pytest.mark.parametrize("read", READ)
def test_whoever_reads_the_rows(spark: SparkSession, tmp_path: Path, read: str) -> None:
    for number, rows in enumerate(batches()):
        write(tmp_path / "in", number, rows)
    frame = READ[read](stream(spark, tmp_path / "in"))
    query = totals().on_spark(frame, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    assert query.manifest.scan is not None
    assert query.manifest.scan.direct == (read == "direct" and not REMOTE), query.manifest.scan.reason
    query.stop(drain=True)
    totals().standalone(checkpoint=tmp_path / "alone", partitions=2).run(batches(), drain=True)
    assert evidence.panes(tmp_path / "root") == evidence.panes(tmp_path / "alone")
    names = ["offset", "k", "v"]
    assert evidence.ledger(tmp_path / "root", names) == evidence.ledger(tmp_path / "alone", names)
    assert evidence.ledger(tmp_path / "root", names).total() >= 27
    head = Checkpoint.open(tmp_path / "root").newest()
    assert head is not None
    assert head.manifest.totals["undecodable"] == 27


def test_put_back_by_a_wider_schema(spark: SparkSession, tmp_path: Path) -> None:
    """A job whose producer sent fractions: after a change of the schema its rows come back, on Spark too."""
    folder, root = tmp_path / "in", tmp_path / "root"
    good, bad = (
        b'{"k":"a","t":"2024-01-01T00:00:01Z","v":1,"w":2}',
        b'{"k":"a","t":"2024-01-01T00:00:02Z","v":1,"w":2.5}',
    )

    def job(kind: str) -> Aggregation:
        events = ts.stream(
            event_time="t", decode=ts.json("value", {"k": "string", "t": TIME, "v": "int64", "w": kind})
        )
        return (
            events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(v=agg.sum("v")).retain_windows("1 day")
        )

    values = pa.Table.from_pylist([{"value": good, "offset": 0}, {"value": bad, "offset": 1}], SCHEMA)
    write(folder, 0, values)
    query = job("int64").on_spark(stream(spark, folder), checkpoint=root, partitions=1).start()
    query.processAllAvailable()
    query.stop()
    policy = Policy(dropped="accept")
    query = job("double").on_spark(stream(spark, folder), checkpoint=root, partitions=1, policy=policy).start()
    assert query.reprocess_late(reason="undecodable") == 1
    query.stop(drain=True)
    assert [row["v"] for row in ts.Root(root).panes(net=True).to_table().to_pylist()] == [2]


def spark_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{field.name}`: {spark_type(field.type)}' for field in kind)}>"
    return {"int64": "bigint", "int8": "tinyint", "double": "double", "string": "string", "bool": "boolean"}.get(
        str(kind), "timestamp"
    )


SAME = (pa.int64(), pa.int8(), pa.float64(), pa.string(), pa.bool_())
"""Types of which Spark takes the same values; of the others the page says what differs."""


class PlainDrawing(Drawing):
    """Without times, decimals and names that differ in case alone."""

    def kind(self, depth: int = 0) -> pa.DataType:
        kind = super().kind(depth)
        nested = pa.types.is_list(kind) or pa.types.is_struct(kind)
        return kind if nested else SAME[len(str(kind)) % len(SAME)] if kind not in SAME else kind


def test_from_json_reads_what_is_read_here(spark: SparkSession) -> None:
    """What is an object here is one for Spark, with the same fields. What else Spark takes is on the page."""
    for seed in range(12):
        drawing = PlainDrawing(seed)
        schema = pa.schema([field for field in drawing.schema() if field.name not in ("A", "c.d")])
        if not len(schema):
            continue
        values = [value for _ in range(10) for value in drawing.values(schema) if value is not None]
        if REMOTE:  # where a client gets texts as Arrow, which cannot be read if Spark has made them of other bytes
            values = [value for value in values if _is_text(value)]
        ours, found = JsonReader(schema).read(pa.chunked_array([pa.array(values, pa.binary())]))
        flags = [True] * len(values) if found is None else found.tolist()
        frame = spark.createDataFrame(
            [(place, bytearray(value)) for place, value in enumerate(values)], "n int, value binary"
        )
        ddl = ", ".join(f"`{field.name}` {spark_type(field.type)}" for field in schema) + ", _bad string"
        # A row that Spark cannot parse has its text there.
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
        parsed = frame.select("n", sf.from_json(sf.col("value").cast("string"), ddl, options).alias("row")).orderBy(
            "n"
        )
        theirs = [row["row"].asDict(recursive=True) if row["row"] else None for row in parsed.collect()]
        rows = iter(ours.to_pylist())
        for value, flag, other in zip(values, flags, theirs, strict=True):
            if flag:
                row = next(rows)
                assert other is not None, (value, schema)
                assert other.pop("_bad") is None, (value, schema)
                assert _plain(other) == _plain(row), (value, schema)


def _is_text(value: bytes) -> bool:
    try:
        return bool(value.decode()) or not value
    except UnicodeDecodeError:
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
