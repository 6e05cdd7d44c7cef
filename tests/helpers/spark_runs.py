"""A Spark job over files, run to its end, and what it put out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.spark_inputs import SCHEMA, job, rows
from tidestate import OperatorStream
from tidestate.operators import Policy
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.statestore.spec.store import StoreConfig


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def output(root: Path | str, kind: str, operator: str | None = None) -> dict[int, list[tuple[object, ...]]]:
    """Rows of the pane or ledger files that manifests name, per checkpoint with any, numbered from 0; those of one
    ``operator`` of a chain.
    """
    checkpoint = Checkpoint.open(root)
    found = []
    for one in checkpoint.outputs():
        of_operator = one.late_of if kind == "late" else one.panes_of
        refs = of_operator(operator) if operator else getattr(one, kind)
        tables = [pq.read_table(pa.BufferReader(checkpoint.objects.map(ref.path))) for ref in refs]
        if tables:
            found.append(rows(pa.concat_tables(tables)))
    return dict(enumerate(found))


def same(one: Path, other: Path) -> None:
    """Assert that two roots have the same panes, ledgers and positions, batch by batch."""
    assert output(one, "panes") == output(other, "panes")
    for operator in Checkpoint.open(one).head().manifest.operators:
        assert output(one, "late", operator) == output(other, "late", operator)
    both = [[m for m in Checkpoint.open(root).history() if m.kind == "batch"] for root in (one, other)]
    for mine, theirs in zip(*both, strict=True):
        assert mine.counters == theirs.counters
        assert mine.spark is not None
        assert theirs.spark is not None
        assert (mine.spark.files, mine.spark.read, mine.spark.end) == (
            theirs.spark.files,
            theirs.spark.read,
            theirs.spark.end,
        )


def finish(description: OperatorStream, spark: SparkSession, tmp: Path, store: StoreConfig, root: Path) -> None:
    query = description.on_spark(stream(spark, tmp / "input"), checkpoint=root, store=store, partitions=3).start()
    query.processAllAvailable()
    newest = query.checkpoint_id
    assert (
        repr(query)
        == f"DurableQuery({description.graph.description.name!r}, checkpoint={str(root)!r}, checkpoint_id={newest})"
    )
    query.stop(drain=True)


def run(
    spark: SparkSession, folder: Path, root: Path, *, drain: bool, policy: Policy | None = None, partitions: int = 2
) -> Manifest:
    """The job of `spark_inputs` over all files there are, stopped after them: its last manifest."""
    started = job().on_spark(stream(spark, folder), checkpoint=root, partitions=partitions, policy=policy)
    query = started.start()
    query.processAllAvailable()
    query.stop(drain=drain)
    return query.manifest
