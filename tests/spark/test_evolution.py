"""A job on Spark that is changed between two runs: the same panes as without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, stream
from tidestate.agg import max as max_
from tidestate.agg import mean
from tidestate.agg import min as min_
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.triggers import every_element
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark


def first() -> Windowed:
    began = windowed(event_time="t", key="k", name="job", watermark_delay="2 seconds").window(tumbling("10 seconds"))
    return began.late("30 seconds").accumulation("retracting").aggregate(total=sum_("v"), low=min_("v"))


def changed() -> Windowed:
    began = windowed(event_time="t", key="k", name="job", watermark_delay="5 seconds").window(tumbling("10 seconds"))
    described = began.late("40 seconds").accumulation("retracting").trigger(early=every_element())
    described = described.aggregate(amount=sum_("v"), high=max_("v"), average=mean("v"))
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
