"""A Spark job that is rescaled between its runs, with a kill before and after: the panes it always had."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.command import tidestate
from tests.helpers.forked import ForkedChild
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

pytestmark = pytest.mark.spark


def run(spark: SparkSession, folder: Path, store: StoreConfig, *, drain: bool = False) -> int:
    """What the input has now; how many state partitions there were."""
    made = job().on_spark(stream(spark, folder / "input"), checkpoint=folder / "root", store=store)
    query = made.start()
    query.processAllAvailable()
    query.stop(drain=drain)
    return query.manifest.partitions


def killed(folder: Path, partitions: int, moment: str) -> None:
    log = folder / "rescale.log"
    child = ForkedChild("tests.children.rescale", folder / "root", partitions, moment, log=log)
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()


def test_from_two_to_five_to_three_partitions(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(3, 100)
    parts = []
    for number, store in enumerate((Memory(), RocksDB(max_levels=3), Parquet(max_levels=3))):
        write(tmp_path / "input", number, tables[number])
        if number == 0:
            made = job().on_spark(
                stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", store=store, partitions=2
            )
            query = made.start()
            query.processAllAvailable()
            query.stop()
            parts.append(query.manifest.partitions)
            killed(tmp_path, 5, "before")
            assert Checkpoint.open(tmp_path / "root").ids()[-1] == query.checkpoint_id
            killed(tmp_path, 5, "after")
        else:
            parts.append(run(spark, tmp_path, store, drain=number == 2))
            if number == 1:
                done = tidestate("rescale", tmp_path / "root", "--partitions", 3, "--confirm")
                assert (done.returncode, done.stderr) == (0, "")
    assert parts == [2, 5, 3]
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")
    done = tidestate("verify", tmp_path / "root", "--read-data", 100, "--spark-checkpoint")
    assert (done.returncode, done.stderr) == (0, "")
