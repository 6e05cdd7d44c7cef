"""Merges, unions and session joins on Spark: two streams in one query, with the panes of the standalone runner."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from tests.helpers.process import some
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, stream
from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.merge_accumulation import merge_accumulate
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.statestore.spec.store import StoreConfig
from tidestate.stores import Memory, Parquet

pytestmark = pytest.mark.spark


def difference() -> Any:
    """Left values less right ones; its functions travel to Spark's workers."""
    return merge_accumulate(
        name="difference",
        left=["left_v"],
        right=["right_v"],
        state={"sum": pa.int64()},
        lift_left=lambda rows: pa.table({"sum": pc.fill_null(rows["left_v"], 0)}),
        lift_right=lambda rows: pa.table({"sum": pc.negate(pc.fill_null(rows["right_v"], 0))}),
        merge=lambda older, newer: pa.table({"sum": pc.add(older["sum"], newer["sum"])}),
        result=lambda states: states["sum"],
        result_type=pa.int64(),
    )


def merged() -> Sided:
    begun = merge(event_time="t", key="k", watermark_delay=("5 seconds", "2 seconds"), name="both")
    begun = begun.window(tumbling("10 seconds")).late("30 seconds")
    return begun.aggregate(n=count(), total=sum_("right_v"), difference=difference()).cogroup(left="id", right="id")


JOBS: dict[str, tuple[Sided, StoreConfig]] = {
    "merge": (merged(), Parquet(max_levels=2, snapshot_bytes=1)),
    "union": (union(event_time="t", sides=("here", "there")), Memory()),
    "session join": (session_join(event_time="t", on="k", gap="1 second", how="full", late="20 seconds"), Parquet()),
    "session join of offsets": (session_join(on="k", offset="id", offsets=4, how="full", late=9), Parquet()),
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
    names = description.sides.names
    inputs = dict(zip(names, (sample(4, 40, seed=1), sample(4, 40, seed=2)), strict=True))
    if name == "session join of offsets":
        inputs = {side: with_ids_out_of_order(tables, seed) for seed, (side, tables) in enumerate(inputs.items())}
    for side, tables in inputs.items():
        for number, table in enumerate(tables):
            write(tmp_path / side, number, table)

    def run(drain: bool) -> None:
        sides = [stream(spark, tmp_path / side) for side in names]
        query = description.on_spark(*sides, checkpoint=tmp_path / "spark", store=store, partitions=3).start()
        query.processAllAvailable()
        query.stop(drain=drain)

    run(False)  # a restart brings both sides back
    run(True)
    schema = description.schema(*(tables[0].schema for tables in inputs.values()))
    both = [
        description.rows(schema, **dict(zip(names, pair, strict=True))) for pair in zip(*inputs.values(), strict=True)
    ]
    description.standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 40
    assert output(tmp_path / "alone", "late")
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")
