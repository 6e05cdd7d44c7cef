"""Events that are held until the watermark passes them, on Spark: the same panes however files come in batches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers.apis import Notes
from tests.helpers.process import some
from tests.helpers.spark_inputs import SCHEMA, Event, batch, write
from tests.helpers.spark_runs import output
from tidestate import OperatorStream, agg
from tidestate.statestore.spec.store import Parquet

pytestmark = pytest.mark.spark

JOBS: dict[str, OperatorStream] = {
    "count windows": ts.stream(event_time="t", watermark_delay="5 seconds", offset="id")
    .group_by("k")
    .window(ts.count_windows(4))
    .aggregate(ids=agg.list("id"))
    .in_order(),
    "deduplicated": ts.stream(event_time="t", watermark_delay="5 seconds").deduplicate(
        "k", within="3 seconds", in_order=True
    ),
}


@pytest.mark.parametrize("name", some(JOBS, 1))
def test_events_in_order_are_the_same_by_any_cut(spark: SparkSession, tmp_path: Path, name: str) -> None:
    chance, tables = random.Random(6), []
    for number in range(2):
        events: list[Event] = [
            (number * 10 + chance.randint(0, 9) - chance.randint(0, 4), chance.choice("abc"), place)
            for place in range(40)
        ]
        tables.append(batch(events, number * 100))
        write(tmp_path / "input", number, tables[-1])

    def rows(root: Path) -> list[str]:
        assert not output(root, "late")
        return sorted(str(row) for observed in output(root, "panes").values() for row in observed)

    def run(files: int) -> list[str]:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(tmp_path / "input"))
        root = tmp_path / f"by-{files}"
        query = JOBS[name].on_spark(stream, checkpoint=root, store=Parquet(max_levels=2), partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=True)
        return rows(root)

    JOBS[name].standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    expected = rows(tmp_path / "alone")
    assert len(expected) > 15
    assert run(1) == expected
    if name == "count windows":
        assert run(2) == expected


def test_spark_gives_the_files_of_a_batch_by_size_not_as_they_came(spark: SparkSession, tmp_path: Path) -> None:
    """Why lateness cannot be judged by arrival within a batch: nothing in it says what came first."""
    for number, count in enumerate((1, 5_000, 50)):
        write(tmp_path / "input", number, batch([(number, "a", 0)] * count, number * 10_000))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "input"))
    came: Notes[list[int]] = Notes(tmp_path / "came")

    def take(rows: DataFrame, _: int) -> None:
        ids = [row.id // 10_000 for row in rows.coalesce(1).toLocalIterator()]
        came.append(list(dict.fromkeys(ids)))

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "log")).start()
    query.processAllAvailable()
    query.stop()
    assert list(came) == [[1, 2, 0]]
