"""Several outputs of one graph on Spark: each as the standalone runner has it, and each pane once at its sinks."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.apis import Notes
from tests.helpers.checkout import ROOT
from tests.helpers.outputs import OUTPUT_NAMES, several
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, stream
from tests.helpers.targets import holds_once, target_of
from tidestate import DeliveryId, register_format
from tidestate.operators.spark.compat import SPARK_4
from tidestate.operators.streams.running import SHORTCUTS, Shortcut
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import Child

pytestmark = pytest.mark.spark

TABLES = sample(5, 60)


class Noting:
    """Notes the identity of each delivery, and how many rows it has."""

    def __init__(self, folder: Path) -> None:
        self.notes: Notes[tuple[str, int]] = Notes(folder)

    def __call__(self, rows: DataFrame, delivery: DeliveryId) -> None:
        self.notes.append((str(delivery), rows.count()))


@pytest.mark.parametrize("paths", [SHORTCUTS, ()] if LONG else [SHORTCUTS], ids=["driver", "tasks"][: 1 + LONG])
def test_each_output_is_that_of_the_standalone_runner(
    spark: SparkSession, tmp_path: Path, paths: Collection[Shortcut]
) -> None:
    """Half of the batches by the driver and half by tasks, with a start in between."""
    sinks = {name: Noting(tmp_path / name) for name in ("by_key", "of_all")}

    def run(drain: bool, paths: Collection[Shortcut]) -> None:
        frame = stream(spark, tmp_path / "input")
        job = several().on_spark(frame, checkpoint=tmp_path / "spark", partitions=3, sink=sinks, paths=paths)
        query = job.start()
        query.processAllAvailable()
        query.stop(drain=drain)

    for number, table in enumerate(TABLES[:3]):
        write(tmp_path / "input", number, table)
    run(drain=False, paths=paths)
    for number, table in enumerate(TABLES[3:], 3):
        write(tmp_path / "input", number, table)
    run(drain=True, paths=())
    several().standalone(checkpoint=tmp_path / "alone", partitions=2).run(TABLES, drain=True)
    for name in OUTPUT_NAMES:
        panes = output(tmp_path / "spark", "panes", name)
        assert panes == output(tmp_path / "alone", "panes", name)
        assert sum(map(len, panes.values())) > 3
    files = {id_: refs for one in Checkpoint.open(tmp_path / "spark").outputs() for id_, refs in one.emitted.items()}
    due = {str(id_): sum(ref.rows for ref in refs) for id_, refs in files.items()}
    noted = [note for sink in sinks.values() for note in sink.notes]
    assert dict(noted) == {id_: count for id_, count in due.items() if "by_minute" not in id_}
    assert len(noted) == len(dict(noted))
    if SPARK_4:
        register_format(spark)
        for name in (None, *OUTPUT_NAMES):
            reader = spark.read.format("tidestate")
            reader = reader if name is None else reader.option("operator", name)
            wanted = output(tmp_path / "spark", "panes", name or "of_all")
            assert reader.load(str(tmp_path / "spark")).count() == sum(map(len, wanted.values()))


@pytest.mark.slow
def test_killed_with_three_sinks_and_each_pane_is_there_once(tmp_path: Path) -> None:
    chance = random.Random(5)
    targets = [f"delta:{tmp_path / 'a'}", f"parquet:{tmp_path / 'b'}", f"iceberg:{tmp_path / 'c'}"]
    for number, table in enumerate(sample(12, 40)):
        write(tmp_path / "input", number, table)
    module = [sys.executable, "-m", "tests.children.outputs_on_spark"]
    command = [*module, str(tmp_path / "root"), str(tmp_path / "input"), *targets]
    for _ in range(8 if LONG else 1):
        child = Child(command, tmp_path / "log", cwd=ROOT)
        child.wait_for(lambda event: event["event"] in ("taken", "done"))
        time.sleep(chance.uniform(0, 1.5))
        with suppress(ProcessLookupError):  # it was done
            child.kill()
    child = Child(command, tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    for name, target in zip(OUTPUT_NAMES, targets, strict=True):
        assert holds_once(target_of(target), "append", tmp_path / "root", operator=name) > 5
