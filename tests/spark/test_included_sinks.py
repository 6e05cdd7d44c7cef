"""The sinks that are included, on Spark: DataFrames through their door, several of them on one query, Delta's own
connector where there is one for this Spark, and the block of the documents that a new user copies.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers.apis import Switch
from tests.helpers.checkout import ROOT
from tests.helpers.moves import rewind
from tests.helpers.process import longer
from tests.helpers.requests import until
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output, stream
from tests.helpers.targets import Target, holds_all_once, target_of
from tests.servers.kafka import UnavailableError, fetched
from tests.servers.postgres import Postgres
from tests.servers.postgres import postgres as postgres
from tidestate.operators import DeliveryId
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.rows import tables_of
from tidestate.operators.sinks.stored_columns import stored_columns
from tidestate.operators.sinks.withdrawal import execute_withdrawal, plan_withdrawal
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import Child

pytestmark = pytest.mark.spark

DELTA = "4.4.0"
CONNECTORS = {"4.0": "4.0_2.13", "4.1": "4.1_2.13", "4.2": "4.2_2.13"}
"""Of Delta, by the Spark that they are for: there is none for 4.3 yet."""


@pytest.mark.parametrize("server", [False, *longer(True)])
def test_each_kind_of_sink_of_one_query_has_every_pane_once(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, server: bool
) -> None:
    """With PostgreSQL without Spark in every run: `tests.operators.sinks`."""
    for number, table in enumerate(sample(3, 90)):
        write(tmp_path / "input", number, table)
    targets: list[tuple[Target, Form]] = [
        (target_of(f"parquet:{tmp_path / 'parquet'}"), "append"),
        (target_of(f"delta:{tmp_path / 'delta'}"), "upsert"),
        (target_of(f"iceberg:{tmp_path / 'iceberg'}"), "changelog"),
    ]
    if server:
        postgres: Postgres = request.getfixturevalue("postgres")
        targets.append((target_of(f"postgres:{postgres.uri}#panes"), "upsert"))
    root, late = tmp_path / "root", ParquetSink(tmp_path / "late")
    sinks = [target.sink(form, delivery_column="delivery") for target, form in targets]
    started = job().on_spark(
        stream(spark, tmp_path / "input"), checkpoint=root, sink=sinks, late_sink=late, partitions=2
    )
    query = started.start()
    query.processAllAvailable()
    text = query.prometheus()
    query.stop(drain=True)
    for target, form in targets:
        holds_all_once(target, form, root, "delivery")
    files = [pq.read_table(path).num_rows for path in (tmp_path / "late").glob("*.parquet")]
    assert sum(files) == sum(map(len, output(root, "late").values())) > 0
    assert f'tidestate_sink_behind_checkpoints{{query="job",rows="panes",sink="{sinks[0]}"}} 0.0\n' in text


def test_sparks_connector_gets_the_same_columns(spark: SparkSession) -> None:
    columns, delivery = stored_columns({"k": "x`y", "a.b": "it's"}, "delivery"), "f-it's \\n-3"
    rows = spark.createDataFrame([(1, "u")], "`a.b` long, k string").selectExpr(*columns.expressions(delivery))
    assert rows.toArrow().to_pylist() == columns.chosen(pa.table({"a.b": [1], "k": ["u"]}), delivery).to_pylist()


@pytest.mark.long  # in every run: tests.operators.sinks
def test_what_was_abandoned_is_withdrawn(spark: SparkSession, tmp_path: Path) -> None:
    """From a table that Spark's rows have filled, and a folder; the query goes on with both."""
    for number, table in enumerate(sample(3, 90)):
        write(tmp_path / "input", number, table)
    targets = [target_of(f"parquet:{tmp_path / 'parquet'}"), target_of(f"delta:{tmp_path / 'delta'}")]
    root, sinks = tmp_path / "root", [target.sink(delivery_column="delivery") for target in targets]
    started = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, sink=sinks, partitions=2)
    for goes_on in (False, True):
        query = started.start()
        query.processAllAvailable()
        query.stop(drain=goes_on)
        if not goes_on:
            rewind(Checkpoint.open(root), 3)
            for sink in sinks:
                planned = plan_withdrawal(Checkpoint.open(root), sink)
                assert [one.checkpoint for one in planned.deliveries] == [4]
                execute_withdrawal(Checkpoint.open(root), sink, planned)
    for target in targets:
        holds_all_once(target, "append", root, "delivery")


@pytest.mark.long  # in every run: tests.operators.sinks, and back pressure in test_sinks
def test_one_that_is_behind_catches_up_without_input(spark: SparkSession, tmp_path: Path) -> None:
    for number, table in enumerate(sample(4, 90)):
        write(tmp_path / "input", number, table)
    target, up = target_of(f"parquet:{tmp_path / 'parquet'}"), Switch(tmp_path / "up")
    sink = target.sink()

    def lagging(panes: DataFrame, delivery: DeliveryId) -> bool:
        if is_up := bool(up):
            sink(panes, delivery)
        return is_up

    lagging.behind = 100  # type: ignore[attr-defined]
    source = stream(spark, tmp_path / "input")
    query = job().on_spark(source, checkpoint=tmp_path / "root", sink=lagging, partitions=2, tick="100 ms").start()
    query.processAllAvailable()
    assert query.waits.checkpoints > 2
    assert query.waiting_since_us is None
    assert not (tmp_path / "parquet").exists()
    up.turn(on=True)
    # As the driver has it: what a client knows of a sink is as of the newest checkpoint.
    until(lambda: "tidestate_undelivered_checkpoints 0" in re.sub(r"\{.*?\}", "", query.prometheus()))
    query.stop(drain=True)
    holds_all_once(target, "append", tmp_path / "root")


def test_a_dataframe_passes_in_parts(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 7).selectExpr("id", "timestamp_micros(id) AS at", "CAST(id AS string) AS text")
    tables = tables_of(frame)
    parts = list(tables.each)
    assert len(parts) == 7
    assert pa.concat_tables(parts)["id"].to_pylist() == list(range(1000)), "in order"
    assert {part.schema for part in parts} == {tables.schema}
    assert tables.schema.field("at").type == pa.timestamp("us", "UTC")
    empty = tables_of(frame.limit(0))
    assert (empty.schema, list(empty.each)) == (tables.schema, [])


def test_a_dataframe_can_be_stored_again(spark: SparkSession, tmp_path: Path) -> None:
    sink, frame = ParquetSink(tmp_path), spark.range(3)
    for checkpoint in (1, 2, 1, 2):
        sink(frame, ts.DeliveryId("f" * 32, checkpoint))
    assert [pq.read_table(path).num_rows for path in sorted(tmp_path.glob("*"))] == [3, 3]


@pytest.mark.kill
def test_killed_in_a_job_by_the_connector_of_delta(tmp_path: Path) -> None:
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in CONNECTORS:
        pytest.skip(f"Delta has no connector for Spark {version}")
    names = (f"delta-spark_{CONNECTORS[version]}", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")
    try:
        jars = fetched([f"io.delta:{name}:{DELTA}" for name in (*names, "delta-kernel-unitycatalog")], tmp_path)
    except UnavailableError as error:
        pytest.skip(f"Delta's connector could not be had from Maven Central: {error}")
    for number, table in enumerate(sample(4, 90)):
        write(tmp_path / "input", number, table)
    table = tmp_path / "table"
    command = [sys.executable, "-m", "tests.children.delta_connector", ",".join(jars), str(tmp_path), str(table)]
    child = Child([*command, "2"], tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    child = Child(command, tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    holds_all_once(target_of(f"delta:{table}"), "append", tmp_path / "root")
    (newest,) = (json.loads(path.read_text().splitlines()[0]) for path in [max(table.glob("_delta_log/*.json"))])
    assert "Spark" in newest["commitInfo"]["engineInfo"]


def test_the_block_that_a_new_user_copies_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/write-to-a-sink.md").read_text()
    (block,) = re.findall(r"^```py\n(# pip install.*?)^```", page, re.S | re.M)
    folder = tmp_path / "flights"
    folder.mkdir()
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(3):
        at = [begin + timedelta(hours=number, minutes=minute) for minute in range(60)]
        rows = {"scheduled": at, "origin": ["EWR", "JFK"] * 30, "dep_delay": [float(number)] * 60}
        pq.write_table(pa.table(rows), folder / f"{number}.parquet")
    block = block.replace("/data/", f"{tmp_path}/")
    for _ in range(2):  # the second time it has nothing to do
        names: dict[str, Any] = {}
        exec(block, names)  # its session is the one that there is
        assert names["spark"] is spark
    found = target_of(f"delta:{tmp_path / 'flights_per_hour'}").table().to_pylist()
    assert sorted((row["window_start"].hour, row["origin"], row["flights"]) for row in found) == [
        (hour, origin, 30) for hour in (0, 1) for origin in ("EWR", "JFK")
    ], "the last hour is open"
