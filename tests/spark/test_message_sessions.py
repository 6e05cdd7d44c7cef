"""Sessions by messages on real Spark: files of a batch in any order, on many tasks, and a restart between batches."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.twins.message_sessions import Sent, Twin, arrow, job, panes_of
from tidestate import Root
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.store import Parquet

pytestmark = pytest.mark.spark
FILES_OF_A_BATCH = 3
"""The files of a batch."""


def batches() -> list[list[Sent]]:
    """Offsets with holes; some of the first batch come again in the second, and a new one behind."""
    chance = random.Random(7)
    offsets = sorted(chance.sample(range(2_000), 90))
    sent = [Sent(at, chance.choice("aabcde"), value) for value, at in enumerate(offsets)]
    behind = next(at for at in range(offsets[0], offsets[50]) if at not in offsets)
    again = [*chance.sample(sent[:50], 9), Sent(behind, "a", 1)]
    return [sent[:50], [*sent[50:70], *again], sent[70:]]


def test_the_sessions_of_the_twin(spark: SparkSession, tmp_path: Path) -> None:
    made, chance, twin, wanted = job(2), random.Random(3), Twin(2), list[tuple[object, ...]]()
    folder, root = tmp_path / "input", tmp_path / "root"
    folder.mkdir()
    for number, batch in enumerate(batches()):
        shuffled = chance.sample(batch, len(batch))
        for part in range(FILES_OF_A_BATCH):
            path, stamp = folder / f"{number}-{part}.parquet", 1_000_000_000 + number * FILES_OF_A_BATCH + part
            pq.write_table(arrow(shuffled[part::FILES_OF_A_BATCH]), tmp_path / "new")
            os.utime(tmp_path / "new", (stamp, stamp))
            (tmp_path / "new").rename(path)
        wanted += twin.take(batch)
        rows = spark.readStream.schema("part string, at long, k string, v long")
        rows = rows.option("maxFilesPerTrigger", FILES_OF_A_BATCH).parquet(str(folder))
        query = made.on_spark(rows, checkpoint=root, store=Parquet(), partitions=5).start()
        query.processAllAvailable()
        query.stop(drain=number == 2)
    wanted += twin.end()
    checkpoint = Checkpoint.open(root)
    tables = [
        pq.read_table(pa.BufferReader(checkpoint.objects.map(ref.path)))
        for output in checkpoint.outputs()
        for ref in output.panes
    ]
    assert panes_of(pa.concat_tables(tables)) == sorted(wanted)
    late = Root(root).late().to_table()
    assert sorted(zip(late["at"].to_pylist(), late["reason"].to_pylist(), strict=True)) == sorted(twin.refused)
    assert len(twin.refused) == 10
