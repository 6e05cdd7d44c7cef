"""Forks, pins and collection while a Spark query runs, and what Spark's own checkpoint needs of what went."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.helpers.command import json_lines, tidestate
from tests.helpers.forks import after
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention

pytestmark = pytest.mark.spark

TABLES = sample(7, 80)
GC = ("--newest", 2, "--grace", "0 seconds")


def answered(*arguments: object) -> Any:
    done = tidestate(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.long  # in every run: test_a_query_deletes_…, and recovery/moves, retention
def test_forked_and_collected_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    for number, table in enumerate(TABLES[:4]):
        write(folder, number, table)
    query = job().on_spark(stream(spark, folder), checkpoint=root, partitions=2).start()
    query.processAllAvailable()
    at = query.checkpoint_id - 1
    made = answered("fork", root, tmp_path / "fork", "--at", at)
    assert made["checkpoint_id"] == at
    assert not (tmp_path / "fork/data").exists() or not list((tmp_path / "fork/data").rglob("*.arrow"))
    answered("pin", root, 3, "--name", "mine", "--note", "a test")
    planned = answered("gc", root, *GC)
    done = answered("gc", root, *GC, "--confirm")
    assert (planned["checkpoints"], planned["done"], done["done"]) == (done["checkpoints"], False, True)
    assert done["checkpoints"] == [1, 2]
    listed = json_lines(tidestate("list", root, "--json"))
    assert (listed[0]["id"], listed[0]["pins"]) == (3, ["mine"])
    assert "3 as mine (a test)" in tidestate("list", root).stdout
    assert "pinned" in tidestate("show", root, 3).stdout
    gone = tidestate("show", root, 1)
    assert (gone.returncode, "collected" in gone.stderr) == (4, True)
    refused = tidestate("unpin", root, made["pin"])
    assert (refused.returncode, "pin-fork" in refused.stderr) == (5, True)
    answered("unpin", root, "mine")
    for number, table in enumerate(TABLES[4:], 4):
        write(tmp_path / "aside", number, table)
        next((tmp_path / "aside").iterdir()).rename(folder / f"{number:04d}.parquet")
    query.processAllAvailable()
    assert answered("gc", root, *GC, "--confirm")["checkpoints"]
    query.stop(drain=True)
    forked = job().on_spark(stream(spark, folder), checkpoint=tmp_path / "fork", partitions=2).start()
    forked.processAllAvailable()
    forked.stop(drain=True)
    job().standalone(checkpoint=tmp_path / "alone").run(TABLES, drain=True)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(tmp_path / "alone", kind)
    assert forked.manifest.totals == query.manifest.totals
    assert after(tmp_path / "fork", at) == after(root, at)
    for path in (root, tmp_path / "fork"):
        assert tidestate("verify", path, "--read-data", "--spark-checkpoint").returncode == 0


def test_a_query_deletes_its_old_checkpoints_itself(spark: SparkSession, tmp_path: Path) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"

    def run(**more: Any) -> str:
        """The metrics before the end."""
        query = job().on_spark(stream(spark, folder), checkpoint=root, partitions=2, **more).start()
        query.processAllAvailable()
        text = query.prometheus()
        query.stop()
        return text

    for number, table in enumerate(TABLES[:2]):
        write(folder, number, table)
    run()
    had = Checkpoint.open(root).stored_ids()
    for number, table in enumerate(TABLES[2:5], 2):
        write(folder, number, table)
    text = run(checkpoints=CheckpointRetention(newest=2, grace="0 seconds"))
    assert min(Checkpoint.open(root).stored_ids()) >= had[-1]
    assert "tidestate_collected_checkpoints_total" in text
    job().standalone(checkpoint=tmp_path / "alone").run(TABLES[:5])
    assert output(root, "panes") == output(tmp_path / "alone", "panes")
    assert tidestate("verify", root, "--read-data", "--spark-checkpoint").returncode == 0


@pytest.mark.long  # in every run: tests.recovery.spark, and test_reset
def test_spark_own_checkpoint_is_written_again_though_manifests_were_collected(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    for number, table in enumerate(TABLES[:2]):
        write(folder, number, table)

    def run() -> None:
        query = job().on_spark(stream(spark, folder), checkpoint=root, partitions=2).start()
        query.processAllAvailable()
        query.stop()

    run()
    collect(Checkpoint.open(root), CheckpointRetention(newest=1, grace="0 seconds"))
    shutil.rmtree(root / "spark")
    assert answered("repair", root, "--resync-spark", "--confirm")["done"]
    for number, table in enumerate(TABLES[2:4], 2):
        write(folder, number, table)
    run()
    job().standalone(checkpoint=tmp_path / "alone").run(TABLES[:4])
    assert output(root, "panes") == output(tmp_path / "alone", "panes")
