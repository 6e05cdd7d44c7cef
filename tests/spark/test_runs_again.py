"""A query whose messages depend on how they arrived runs recorded batches again, and is what it would have been."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.helpers.join_jobs import described
from tests.helpers.join_jobs import table as side_table
from tests.helpers.lost_joins import TABLES
from tests.helpers.lost_joins import stream as rows_of_sides
from tests.helpers.lost_messages import lose
from tests.helpers.operator_messages import plain, stream, table
from tests.helpers.process import longer
from tests.helpers.runs_again import REPLAYING, head_of, state_of, windows
from tests.helpers.spark_inputs import write
from tests.helpers.spark_runs import output
from tests.twins.join import SIDES, Asked, Window
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention

pytestmark = [pytest.mark.spark, pytest.mark.classic("engine replay")]

COLUMNS = "part string, at long, t timestamp, k string, v long"
SIDE_COLUMNS = "key string, t timestamp, value long, off int"


def ran(job: Any, streams: Any, root: Path) -> None:
    running = job.on_spark(streams, checkpoint=root, partitions=2, policy=REPLAYING).start()
    running.processAllAvailable()
    running.stop()


def panes_of(root: Path, operator: str | None = None) -> list[tuple[Any, ...]]:
    return sorted((row for rows in output(root, "panes", operator).values() for row in rows), key=repr)


def test_counted_windows_run_their_files_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of some files the manifests were collected; a file that is gone puts nothing back."""
    caplog.set_level("INFO", "tidestate")
    job, batches = windows("counted", 3).job, [table(batch) for batch in stream(3, batches=6, size=6)]
    folder, root = tmp_path / "in", tmp_path / "root"
    folder.mkdir()
    files = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder)).where("v > -100")
    for number, batch in enumerate(batches[:3]):
        write(folder, number, batch)
        ran(job, files, root)
    collect(Checkpoint.open(root), CheckpointRetention(newest=3, grace="0 seconds"))
    before = state_of(root)
    assert lose(root)
    first = folder / "0000.parquet"
    there, times = first.read_bytes(), first.stat()
    first.write_bytes(b"no parquet")
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    ran(job, files, root)
    assert "the source could not be read again" in caplog.text
    assert head_of(root).operators["windows"].rebuilding is not None
    first.unlink()
    ran(job, files, root)
    assert "the job has emitted other panes" in caplog.text
    assert head_of(root).operators["windows"].rebuilding is not None
    first.write_bytes(there)
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    ran(job, files, root)
    assert "all messages are back" in caplog.text
    assert state_of(root) == before
    for number, batch in enumerate(batches[3:], 3):
        write(folder, number, batch)
    ran(job, files, root)
    whole = plain(job.standalone(checkpoint=tmp_path / "whole", partitions=2).run(batches))
    assert panes_of(root) == sorted(whole, key=repr)
    assert [one.kind for one in Checkpoint.open(root).history()].count("feed") == 1
    assert not list(root.glob("side-run/*"))


@pytest.mark.parametrize("updates", [*longer(None), 2])
def test_a_join_in_hopping_windows_runs_both_sides_again(
    spark: SparkSession, tmp_path: Path, updates: int | None
) -> None:
    """With update periods too, which follow the clock: that of the batches, and of ticks in between."""
    asked = Asked(how="left", window=Window(9, 3), late=6, named=True, first=False, updates=(updates, updates))
    job = described(asked)
    rows = rows_of_sides(random.Random(11))
    batches = [{side: side_table([one for one in batch if one.side == side]) for side in SIDES} for batch in rows]
    root = tmp_path / "root"
    sources = {side: tmp_path / side for side in SIDES}
    for folder in sources.values():
        folder.mkdir()
    options = spark.readStream.schema(SIDE_COLUMNS).option("maxFilesPerTrigger", 1)
    streams = {side: options.parquet(str(folder)) for side, folder in sources.items()}

    def give(number: int) -> None:
        for side, folder in sources.items():
            write(folder, number, batches[number][side])
        ran(job, streams, root)

    for number in range(3):
        give(number)
    before = state_of(root)
    assert lose(root, tables=TABLES)
    ran(job, streams, root)
    if updates is not None:
        kinds = [one.kind for one in Checkpoint.open(root).history()]
        assert "feed" in kinds
        assert {name: rows for name, rows in state_of(root).items() if name[1] in TABLES} == {
            name: rows for name, rows in before.items() if name[1] in TABLES
        }
        return
    for number in range(3, len(batches)):
        give(number)
    whole = job.standalone(checkpoint=tmp_path / "whole", partitions=2)
    assert panes_of(root) == sorted(plain(whole.run(batches)), key=repr)
    assert state_of(root) == state_of(tmp_path / "whole")


def test_several_outputs_run_their_files_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One has messages of the stream, and another the panes of a third."""
    caplog.set_level("INFO", "tidestate")
    job, batches, *_ = windows("outputs", 3)
    folder, root = tmp_path / "in", tmp_path / "root"
    folder.mkdir()
    files = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))
    for first, end in ((0, 4), (4, len(batches))):
        for number in range(first, end):
            write(folder, number, batches[number])
        ran(job, files, root)
        before = state_of(root)
        if end == 4:
            assert lose(root)
            ran(job, files, root)
            assert "all messages are back" in caplog.text
            assert state_of(root) == before
    job.standalone(checkpoint=tmp_path / "whole", partitions=2).run(batches)
    assert before == state_of(tmp_path / "whole")
    for name in ("first", "beside", "last"):
        assert panes_of(root, name) == panes_of(tmp_path / "whole", name) != []
