"""Merges, unions and session joins on Spark: two streams in one query, with the panes of the standalone runner."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.process import some
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import OperatorStream, agg
from tidestate.statestore.spec.store import Memory, Parquet, StoreConfig

pytestmark = pytest.mark.spark


def difference() -> Any:
    """Left values less right ones; its functions travel to Spark's workers."""
    return agg.accumulate(
        name="difference",
        columns={"left": ["left_v"], "right": ["right_v"]},
        state={"sum": pa.int64()},
        lift={
            "left": lambda rows: pa.table({"sum": pc.fill_null(rows["left_v"], 0)}),
            "right": lambda rows: pa.table({"sum": pc.negate(pc.fill_null(rows["right_v"], 0))}),
        },
        merge=lambda older, newer: pa.table({"sum": pc.add(older["sum"], newer["sum"])}),
        result=lambda states: states["sum"],
        result_type=pa.int64(),
    )


def merged() -> OperatorStream:
    begun = ts.merge(
        left=ts.stream(event_time="t", watermark_delay="5 seconds"),
        right=ts.stream(event_time="t", watermark_delay="2 seconds"),
    ).group_by("k")
    begun = begun.window(ts.tumbling("10 seconds"))
    return (
        begun.aggregate(
            n=agg.count(),
            total=agg.sum("right_v"),
            difference=difference(),
            left=agg.list("left_id"),
            right=agg.list("right_id"),
        )
        .named("both")
        .allowed_lateness("30 seconds")
    )


JOBS: dict[str, tuple[OperatorStream, StoreConfig]] = {
    "merge": (merged(), Parquet(max_levels=2, snapshot_bytes=1)),
    "union": (ts.union(here=ts.stream(event_time="t"), there=ts.stream(event_time="t")), Memory()),
    "session join": (
        ts.stream(event_time="t").join_sessions(
            ts.stream(event_time="t"), on="k", gap="1 second", how="full", allowed_lateness="20 seconds"
        ),
        Parquet(),
    ),
    "session join of offsets": (
        ts.stream(offset="id").join_sessions(
            ts.stream(offset="id"), on="k", offsets=4, how="full", allowed_lateness=9
        ),
        Parquet(),
    ),
}


def with_ids_out_of_order(tables: list[pa.Table], seed: int) -> list[pa.Table]:
    """Each id once, most of them near their place, some far behind it."""
    chance, rows = Random(seed), pa.concat_tables(tables)
    places = sorted(range(rows.num_rows), key=lambda place: place - chance.choice([0, 0, 2, 5, 30]))
    numbers = {place: number for number, place in enumerate(places)}
    ids = pa.array([numbers[place] for place in range(rows.num_rows)], pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("id"), "id", ids)
    size = tables[0].num_rows
    return [rows.slice(number * size, size) for number in range(len(tables))]


@pytest.mark.parametrize("name", some(JOBS, 1))
def test_panes_and_ledger_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    description, store = JOBS[name]
    names = description.graph.streams
    inputs = dict(zip(names, (sample(2, 40, seed=1), sample(2, 40, seed=2)), strict=True))
    if name == "session join of offsets":
        inputs = {side: with_ids_out_of_order(tables, seed) for seed, (side, tables) in enumerate(inputs.items())}
    for side, tables in inputs.items():
        for number, table in enumerate(tables):
            write(tmp_path / side, number, table)

    def run(drain: bool) -> None:
        sides = {side: stream(spark, tmp_path / side) for side in names}
        query = description.on_spark(sides, checkpoint=tmp_path / "spark", store=store, partitions=3).start()
        query.processAllAvailable()
        query.stop(drain=drain)

    run(False)  # a restart brings both sides back
    run(True)
    both = [dict(zip(names, pair, strict=True)) for pair in zip(*inputs.values(), strict=True)]
    description.standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 20
    assert output(tmp_path / "alone", "late")
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")
