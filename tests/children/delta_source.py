"""A job over a Delta table in both ways: ``python -m tests.children.delta_source JARS FOLDER`` says for each kind of
table how its batches were read, and whether both roots have the same; see `tests.spark.test_delta_source`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.helpers.spark_inputs import SCHEMA, job, sample, two_streams
from tests.helpers.spark_runs import output
from tests.servers.spark_tables import session_with_tables
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.job import say

Kind = Callable[[SparkSession, str], dict[str, str]]


def append(spark: SparkSession, path: str, number: int, *partitions: str, **options: str) -> None:
    """Batch ``number`` of the input, as a commit of some files."""
    (rows,) = sample(1, 60, number)
    frame = spark.createDataFrame(rows.to_pylist(), SCHEMA).repartition(2, "id")
    frame.write.format("delta").mode("append").options(**options).partitionBy(*partitions).save(path)


def plain(spark: SparkSession, path: str) -> dict[str, str]:
    for number in range(4):
        append(spark, path, number)
    return {"maxFilesPerTrigger": "3"}


def partitioned(spark: SparkSession, path: str) -> dict[str, str]:
    for number in range(3):
        append(spark, path, number, "k")
    return {"maxFilesPerTrigger": "5"}


def wider(spark: SparkSession, path: str) -> dict[str, str]:
    """A column that older files lack, and a checkpoint of the log."""
    append(spark, path, 0)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN (w INT)")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.checkpointInterval = 2)")
    for number in range(1, 4):
        append(spark, path, number)
    return {"maxFilesPerTrigger": "1"}


def later(spark: SparkSession, path: str) -> dict[str, str]:
    """From a version on, past a commit that rewrites files."""
    for number in range(3):
        append(spark, path, number)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE v < 0")
    append(spark, path, 3)
    return {"startingVersion": "1", "skipChangeCommits": "true"}


def deleted(spark: SparkSession, path: str) -> dict[str, str]:
    """Rows that only vectors leave out."""
    append(spark, path, 0)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE v < 0")
    return {}


def mapped(spark: SparkSession, path: str) -> dict[str, str]:
    append(spark, path, 0, **{"delta.columnMapping.mode": "name"})
    return {}


def changes(spark: SparkSession, path: str) -> dict[str, str]:
    append(spark, path, 0, **{"delta.enableChangeDataFeed": "true"})
    return {"readChangeFeed": "true", "startingVersion": "0"}


TABLE_KINDS: dict[str, Kind] = {
    kind.__name__: kind for kind in (plain, partitioned, wider, later, deleted, mapped, changes)
}


def main(jars: str, folder: str) -> None:
    """All of them, in one session."""
    spark = session_with_tables(jars, Path(folder) / "tables")
    for name, kind in TABLE_KINDS.items():
        path = str(Path(folder) / f"{name} of delta")
        options = kind(spark, path)
        run_both(name, Path(folder), lambda: spark.readStream.format("delta").options(**options).load(path))  # noqa: B023
    reader, path = spark.readStream.format("delta"), f"{folder}/plain of delta"
    sides = {"orders": 1, "prices": 8}
    load = lambda: {side: reader.option("maxFilesPerTrigger", count).load(path) for side, count in sides.items()}  # noqa: E731
    run_both("two", Path(folder), load)
    say("done")


def run_both(name: str, folder: Path, stream: Callable[[], DataFrame | dict[str, DataFrame]]) -> None:
    """Run the job with the direct scan and without."""
    roots = [folder / f"{name}-{way}" for way in ("direct", "other")]
    for root, paths in zip(roots, ({"direct_scan"}, set[str]()), strict=True):
        description = two_streams() if name == "two" else job()
        query = description.on_spark(stream(), checkpoint=root, partitions=2, paths=paths).start()
        query.processAllAvailable()
        query.stop(drain=True)
    both = [[output(root, kind) for kind in ("panes", "late")] for root in roots]
    totals = [Checkpoint.open(root).head().manifest.totals for root in roots]
    scans = [made.scan for made in Checkpoint.open(roots[0]).history() if made.scan is not None]
    same = both[0] == both[1] and totals[0] == totals[1] != {}
    say("compared", kind=name, same=same, direct=[scan.direct for scan in scans], why=scans[-1].reason)


if __name__ == "__main__":
    main(*sys.argv[1:])
