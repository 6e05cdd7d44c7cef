"""The forms of sinks as queries of Spark: the same rows as those that pass through the driver."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.nets import NAMED, NET_JOBS, made
from tests.helpers.process import LONG, longer
from tests.helpers.spark_inputs import batch, job, write
from tests.helpers.spark_runs import stream
from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.partitions import PartitionField, TargetPartitions, day, hour
from tidestate.operators.sinks.spark_forms import GONE, formed_in_spark, has_null
from tidestate.operators.sinks.spark_tables import SparkDeltaTable
from tidestate.operators.sinks.table import TableSink
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import plain_table

pytestmark = pytest.mark.spark

DELIVERY = ts.DeliveryId("f" * 32, 7)


def as_texts(rows: pa.Table) -> list[str]:
    """Rows in any order, with times in UTC."""
    return sorted(json.dumps(json.loads(msgspec.json.encode(row)), sort_keys=True) for row in rows.to_pylist())


@pytest.mark.parametrize("form", ["append", "changelog", "upsert"])
@pytest.mark.parametrize(
    "what", ["retracting sessions", *longer(*(what for what in NET_JOBS if what != "retracting sessions"))]
)
def test_a_form_is_the_same_without_the_driver(what: str, form: Any, spark: SparkSession, tmp_path: Path) -> None:
    """Also with other names, and an upsert without rows; it says what is gone in a column."""
    (emitted, deliveries), whole = made(what), NET_JOBS[what][1]
    if form != "append" and not whole:
        pytest.skip("refused, as it would not hold the net")
    sink = TableSink("t", changes=form, key=NAMED.get(what), delivery_column="of")
    sink.fit(emitted)
    panes = plain_table(pa.concat_tables(deliveries))
    for number, rows in enumerate((panes, panes.slice(0, 0)) if LONG or form == "upsert" else (panes,)):
        path = str(tmp_path / f"{number}.parquet")
        pq.write_table(rows, path, row_group_size=2)
        by = sink.by(rows.schema)
        found = formed_in_spark(spark.read.parquet(path), form, by, sink.columns, str(DELIVERY)).toArrow()
        wanted = sink.formed(rows, DELIVERY)
        if form == "upsert":
            gone = found.filter(found[GONE])
            assert as_texts(gone.select(by)) == as_texts(wanted.gone if wanted.gone is not None else gone.slice(0, 0))
            found = found.filter(pa.compute.invert(found[GONE])).drop_columns([GONE])
        assert found.column_names == wanted.rows.column_names
        assert as_texts(found) == as_texts(wanted.rows)


@pytest.mark.parametrize("form", ["append", "changelog", "upsert"])
def test_rows_that_are_no_panes_have_a_kind_of_their_own(form: Any, spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 1], "pane": ["x", "y", "z"], "kind": ["retract", "emit", "retract"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    sink = TableSink("t", changes=form, key="id")
    sink.fit(Emitted("moved", rows.schema, None, withdraws=False, is_plain=True))
    read = spark.read.parquet(str(tmp_path / "rows.parquet"))
    of_spark = formed_in_spark(read, form, sink.by(rows.schema), sink.columns, str(DELIVERY), is_plain=True).toArrow()
    of_driver = sink.formed(rows, DELIVERY).rows
    assert "kind" in of_driver.column_names
    of_spark = of_spark.drop_columns([GONE] if form == "upsert" else [])
    assert as_texts(of_spark) == as_texts(of_driver)


def test_a_null_in_an_identity_is_refused(spark: SparkSession) -> None:
    rows = spark.sql("SELECT * FROM VALUES ('a', 1), (NULL, 2) AS v(`a``b`, n)")
    assert not has_null(rows, ["n"])
    assert not has_null(rows, [])
    sink = TableSink("t", changes="upsert")
    sink.key = ("a`b", "n")
    with pytest.raises(UsageError, match=r"null in some.*sink-key.*columns=\['a`b', 'n'\]"):
        sink(rows, DELIVERY)


def test_partitions_are_the_same_in_spark(spark: SparkSession) -> None:
    """In UTC, whatever the zone of the session is."""
    times = pa.array([-60_000_000, 1_767_225_540_000_000, None], pa.timestamp("us", "UTC"))
    rows = pa.table({"t": times, "d": times.cast(pa.date32(), safe=False), "k": ["x"] * 3})
    partitions = TargetPartitions((day("t"), hour("t"), day("d"), PartitionField("k")))
    clock = TargetPartitions((day("p"), hour("p")))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        frame = spark.createDataFrame(rows)
        found = frame.selectExpr(*partitions.expressions(frame.dtypes)).toArrow()
        frame = spark.sql("SELECT timestamp_ntz'1969-12-31 23:59:00' AS p")
        of_clock = frame.selectExpr(*clock.expressions(frame.dtypes)).toArrow().to_pylist()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    wanted = partitions.added(rows).select(partitions.names)
    assert found.select(partitions.names).to_pydict() == wanted.to_pydict()
    plain = pa.table({"p": times.cast(pa.timestamp("us")).slice(0, 1)})
    assert of_clock == clock.added(plain).to_pylist()


def test_an_empty_text_in_a_partition_is_an_error_of_the_query(spark: SparkSession) -> None:
    frame, partitions = spark.sql("SELECT '' AS k"), TargetPartitions((PartitionField("k"),))
    with pytest.raises(Exception, match="sink-partition"):
        frame.selectExpr(*partitions.expressions(frame.dtypes)).collect()


def test_a_frame_of_spark_is_stored_in_partitions(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, partition_by=[hour("t"), "k"])
    frame = spark.range(6).selectExpr("timestamp_micros(id * 1800000000) AS t", "id % 2 AS k", "id AS n")
    for _ in range(2):
        sink(frame, DELIVERY)
    read = spark.read.parquet(str(tmp_path)).select("n", "t_hour", "k").collect()
    assert sorted(map(tuple, read)) == [(n, f"1970-01-01-{n // 2:02d}", n % 2) for n in range(6)]


@pytest.mark.parametrize("what", ["nothing", "a table of files", "a view"])
def test_a_table_that_cannot_be_one_ends_the_start(what: str, spark: SparkSession, tmp_path: Path) -> None:
    """The error comes before anything is written."""
    name = f"t_{uuid.uuid4().hex}"
    if what == "a table of files":
        spark.sql(f"CREATE TABLE {name} (k string) USING parquet LOCATION '{tmp_path / 'files'}'").collect()
    if what == "a view":
        spark.range(1).createOrReplaceTempView(name)
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    started = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", sink=TableSink(name))
    with pytest.raises(
        UsageError, match="no such table" if what == "nothing" else "none of Delta Lake or Iceberg"
    ) as end:
        started.start()
    assert end.value.code == "sink-target"
    assert not (tmp_path / "root" / "manifests").exists()


def test_rows_get_the_columns_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """In its order, whatever their case is; what they lack is null, and what it lacks is added by choice."""
    name = f"t_{uuid.uuid4().hex}"
    spark.sql(f"CREATE TABLE {name} (note string, N bigint, k string) USING parquet LOCATION '{tmp_path}'").collect()
    table, rows = SparkDeltaTable(spark, name, {}), spark.sql("SELECT 'a' AS k, 1L AS n")
    assert [row.asDict() for row in TableSink(name)._as_stored(table, rows, ["k"]).collect()] == [
        {"note": None, "N": 1, "k": "a"}
    ]
    more = rows.selectExpr("*", "2 AS m")
    with pytest.raises(UsageError, match=r"different columns.*sink-target.*missing=\['m'\]"):
        TableSink(name)._as_stored(table, more, ["k"])
    with pytest.raises(UsageError, match=r"identify rows.*sink-target"):
        TableSink(name, schema="merge")._as_stored(table, more, ["m"])
    with pytest.raises(UsageError, match=r"would change these values.*sink-target"):
        TableSink(name)._as_stored(table, rows.selectExpr("k", "1.5D AS n"), ["k"])
    stored = TableSink(name, schema="merge")._as_stored(table, more, ["k"]).collect()
    assert [row.asDict() for row in stored] == [{"note": None, "N": 1, "k": "a", "m": 2}]
    assert spark.table(name).columns == ["note", "N", "k", "m"]


@pytest.mark.parametrize(("stored", "made"), [("timestamp_ntz", "timestamp"), ("timestamp", "timestamp_ntz")])
def test_times_with_and_without_a_zone_are_not_stored_in_each_other(
    spark: SparkSession, tmp_path: Path, stored: str, made: str
) -> None:
    """Spark would store what the clock of its session shows: two instants of an autumn night are one there."""
    name = f"t_{uuid.uuid4().hex}"
    spark.sql(f"CREATE TABLE {name} (k string, at {stored}) USING parquet LOCATION '{tmp_path}'").collect()
    rows = spark.sql(f"SELECT 'a' AS k, CAST('2025-10-26 02:30:00' AS {made}) AS at")
    with pytest.raises(UsageError, match=r"without a zone.*sink-target.*columns=\['at'\]"):
        TableSink(name)._as_stored(SparkDeltaTable(spark, name, {}), rows, ["k"])
