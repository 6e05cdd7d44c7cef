"""A job on Spark that is changed between two runs: the same panes as without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.apis import Notes, raises_foreign
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import Aggregation, agg, trigger
from tidestate.operators import DeliveryId
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError

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


@pytest.mark.long  # in every run: tests.operators.bind.test_evolution_recovered
def test_a_changed_job_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(4, 60)
    for number, table in enumerate(tables[:2]):
        write(tmp_path / "input", number, table)
    root = tmp_path / "spark"
    query = first().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, partitions=2).start()
    query.processAllAvailable()
    query.stop()
    for number, table in enumerate(tables[2:], 2):
        write(tmp_path / "input", number, table)
    rows = stream(spark, tmp_path / "input")
    rows = rows.withColumn("v", rows["v"].cast("decimal(19, 0)"))
    for stops in (False, True):
        query = changed().on_spark(rows, checkpoint=root).start()
        query.processAllAvailable()
        query.stop(drain=stops)
    first().standalone(checkpoint=tmp_path / "alone").run(tables[:2])
    changed().standalone(checkpoint=tmp_path / "alone").run([widened(table) for table in tables], drain=True)
    assert output(root, "panes") == output(tmp_path / "alone", "panes")
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.operators["job"].types["v"] == "decimal128(19, 0)"
    observed = CliRunner().invoke(app, ["show", str(root)])
    assert f"checkpoint {head.manifest.operators['job'].since}" in observed.stdout
    printed = CliRunner().invoke(app, ["panes", str(root), "--limit", "1000"])
    assert printed.exit_code == 0


@pytest.mark.long
def test_a_source_more_or_fewer_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's log has a line for each source: with another number of them Spark ends in an assertion of its own."""
    for number, table in enumerate(sample(2, 20)):
        write(tmp_path / "input", number, table)
        write(tmp_path / "new", number, table)
    one = stream(spark, tmp_path / "input")
    two = one.union(stream(spark, tmp_path / "new"))
    for name, before, after in (("one", one, two), ("two", two, one)):
        root = tmp_path / name
        job = first().on_spark(before, checkpoint=root, partitions=1)
        query = job.start()
        query.processAllAvailable()
        query.stop()
        newest = query.checkpoint_id
        changed_job = first().on_spark(after, checkpoint=root)
        with pytest.raises(IncompatibleError, match="another number of sources") as caught:
            changed_job.start()
        assert caught.value.code == "configuration-changed"
        assert (caught.value.context["sources_before"], caught.value.context["sources_now"]) in [(1, 2), (2, 1)]
        assert [refusal.code for refusal in changed_job.plan().refusals] == ["configuration-changed"]
        head = Checkpoint.open(root).head()
        assert head is not None
        assert head.manifest.id == newest  # nothing was written, and nobody fenced
        assert job.plan().refusals == ()
        job.start().stop()


def test_a_source_more_before_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark had planned, and no checkpoint has, is planned again."""
    write(tmp_path / "input", 0, sample(1, 20)[0])
    write(tmp_path / "new", 0, sample(1, 20)[0])
    one, root = stream(spark, tmp_path / "input"), tmp_path / "root"

    def dies(point: str, _number: int) -> None:
        if point == "published":
            return
        if (root / "spark" / "offsets" / "0").exists():
            raise RuntimeError(point)

    query = first().on_spark(one, checkpoint=root, partitions=1).with_hook(dies).start()
    with raises_foreign(RuntimeError):
        query.processAllAvailable()
    assert (root / "spark" / "offsets" / "0").exists()
    query = first().on_spark(one.union(stream(spark, tmp_path / "new")), checkpoint=root).start()
    query.processAllAvailable()
    query.stop()
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.spark is not None
    assert len(head.manifest.spark.end) == 2


def test_arrears_have_the_names_of_today(spark: SparkSession, tmp_path: Path) -> None:
    """Panes that were committed before a result was renamed; names with dots and quotes too."""
    write(tmp_path / "input", 0, sample(1, 50)[0])

    def counted(name: str) -> Aggregation:
        began = ts.stream("s", event_time="t").group_by("k").window(ts.tumbling("1 second"))
        return began.aggregate(**{name: agg.count(), "b`": agg.count()})

    def broken(_panes: DataFrame, _delivery: DeliveryId) -> None:
        raise RuntimeError("for good")

    rows, root, took = stream(spark, tmp_path / "input"), tmp_path / "root", Notes[list[str]](tmp_path / "took")
    with raises_foreign(RuntimeError, match="for good"):
        counted("a.n").on_spark(rows, checkpoint=root, sink=broken).start().processAllAvailable()

    def taken(panes: DataFrame, _delivery: DeliveryId) -> None:
        assert panes.count() > 0
        took.append(panes.columns)

    renamed = counted("c.n").renamed(aggregates={"a.n": "c.n"})
    query = renamed.on_spark(rows, checkpoint=root, sink=taken).start()
    query.processAllAvailable()
    query.stop()
    assert [{"a.n", "c.n", "b`"} & set(columns) for columns in took] == [{"c.n", "b`"}]
