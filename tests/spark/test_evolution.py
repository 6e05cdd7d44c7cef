"""A job on Spark that is changed between two runs: the same panes as without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import Aggregation, agg, trigger
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark


def first() -> Aggregation:
    began = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    return (
        began.aggregate(total=agg.sum("v"), low=agg.min("v"))
        .named("job")
        .allowed_lateness("30 seconds")
        .accumulation("retracting")
    )


def changed() -> Aggregation:
    began = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    described = began
    described = (
        described.aggregate(amount=agg.sum("v"), high=agg.max("v"), average=agg.mean("v"))
        .named("job")
        .allowed_lateness("40 seconds")
        .accumulation("retracting")
        .trigger(early=trigger.each_batch())
    )
    return described.renamed(aggregates={"total": "amount"})


def widened(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("v"), "v", table["v"].cast(pa.decimal128(19, 0)))


def test_a_changed_job_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(6, 100)
    for number, table in enumerate(tables[:3]):
        write(tmp_path / "input", number, table)
    root = tmp_path / "spark"
    query = first().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, partitions=2).start()
    query.processAllAvailable()
    query.stop()
    for number, table in enumerate(tables[3:], 3):
        write(tmp_path / "input", number, table)
    rows = stream(spark, tmp_path / "input")
    rows = rows.withColumn("v", rows["v"].cast("decimal(19, 0)"))
    for stops in (False, True):
        query = changed().on_spark(rows, checkpoint=root).start()
        query.processAllAvailable()
        query.stop(drain=stops)
    first().standalone(checkpoint=tmp_path / "alone").run(tables[:3])
    changed().standalone(checkpoint=tmp_path / "alone").run([widened(table) for table in tables], drain=True)
    assert output(root, "panes") == output(tmp_path / "alone", "panes")
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.operators["job"].types["v"] == "decimal128(19, 0)"
    observed = CliRunner().invoke(app, ["show", str(root)])
    assert f"checkpoint {head.manifest.operators['job'].since}" in observed.stdout
    printed = CliRunner().invoke(app, ["panes", str(root), "--limit", "1000"])
    assert printed.exit_code == 0
