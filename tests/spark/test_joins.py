"""A join on Spark: two streams in one query, with the pairs of the standalone runner."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.spark_inputs import SCHEMA, Event, batch, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate.operators import Memory, Parquet, sliding, tumbling
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.join import Join
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreConfig

pytestmark = pytest.mark.spark

JOINS: dict[str, tuple[Join, StoreConfig]] = {
    "near in time, all rows": (
        join(event_time="t", on="k", within=("-1 second", "2 seconds"), how="full", late="5 seconds"),
        Parquet(max_levels=2, snapshot_bytes=1),
    ),
    "in windows, all of the left": (
        join(event_time="t", on="k", window=sliding("4 seconds", "2 seconds"), how="left"),
        Memory(),
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_pairs_and_ledger_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    description, store = JOINS[name]
    lefts, rights = sample(4, 40, seed=1), sample(4, 40, seed=2)
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        write(tmp_path / "left", number, left)
        write(tmp_path / "right", number, right)

    def run(batches: int) -> None:
        sides = [stream(spark, tmp_path / side) for side in ("left", "right")]
        query = description.on_spark(*sides, checkpoint=tmp_path / "spark", store=store, partitions=3).start()
        query.process_all_available()
        query.stop(drain=batches == 4)

    run(3)  # a restart brings both sides back
    run(4)
    schema = description.schema(lefts[0].schema, rights[0].schema)
    both = [description.rows(schema, left=left, right=right) for left, right in zip(lefts, rights, strict=True)]
    description.standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 100
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")


EACH_SIDE = join(
    event_time="t",
    on="k",
    window=(tumbling("8 seconds"), sliding("6 seconds", "2 seconds")),
    how="full",
    watermark_delay="5 seconds",
)


def test_windows_of_each_side_give_the_same_pairs_however_files_come_in_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Where a job was down, its whole backlog is one batch."""
    chance, tables = random.Random(4), {}
    for side in ("left", "right"):
        for number in range(4):
            events: list[Event] = [
                (number * 10 + chance.uniform(0, 10) - chance.uniform(0, 5), chance.choice("abc"), place)
                for place in range(15)
            ]
            tables[side, number] = batch(sorted(events, key=lambda e: e[2] or 0), number * 100)
            write(tmp_path / side, number, tables[side, number])

    def run(files: int) -> list[tuple[object, ...]]:
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files)
        sides = [reader.parquet(str(tmp_path / side)) for side in ("left", "right")]
        root = tmp_path / f"by-{files}"
        query = EACH_SIDE.on_spark(*sides, checkpoint=root, store=Parquet(max_levels=2), partitions=2).start()
        query.process_all_available()
        query.stop(drain=True)
        assert not output(root, "late")
        return sorted(map(str, (row for rows in output(root, "panes").values() for row in rows)))

    found = run(1)
    assert len(found) > 60
    assert run(4) == found
    schema = EACH_SIDE.schema(tables["left", 0].schema, tables["right", 0].schema)
    both = [
        EACH_SIDE.rows(schema, **{side: tables[side, number]}) for number in range(4) for side in ("right", "left")
    ]
    EACH_SIDE.standalone(checkpoint=tmp_path / "alone", partitions=3).run(both, drain=True)
    alone = (row for rows in output(tmp_path / "alone", "panes").values() for row in rows)
    assert sorted(map(str, alone)) == found


def test_sides_that_are_no_streams_or_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "left", 0, sample(1, 5)[0])
    description, _ = JOINS["near in time, all rows"]
    streaming = stream(spark, tmp_path / "left")
    with pytest.raises(UsageError, match="not-a-stream"):
        description.on_spark(streaming, spark.range(3), checkpoint=tmp_path / "root")
    with pytest.raises(UsageError, match="side-types"):
        description.on_spark(streaming, streaming.selectExpr("v AS k", "t"), checkpoint=tmp_path / "root")
    with pytest.raises(UsageError, match="column-missing"):
        description.on_spark(streaming, streaming.select("t"), checkpoint=tmp_path / "root")
