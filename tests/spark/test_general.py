"""Every kind of window and trigger on real Spark: the panes and ledger of the standalone runner, row for row."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.process import LONG
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import finish, output, stream
from tidestate.agg import count, median
from tidestate.agg import list as list_
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import global_window, sliding, tumbling
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import DISCARDING, RETRACTING, Windowed, windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.statestore.spec.store import StoreConfig
from tidestate.stores import Memory, Parquet, RocksDB
from tidestate.trigger import after_count, after_watermark, any_of, every_event_time, or_finally, repeatedly

pytestmark = pytest.mark.spark


def job() -> Windowed:
    return windowed(event_time="t", key="k", watermark_delay="5 seconds").aggregate(n=count(), s=sum_("v"))


DESCRIPTIONS: dict[str, tuple[Runnable, StoreConfig]] = {
    "sessions, retracting": (
        job().window(session("3 seconds")).late("20 seconds").accumulation(RETRACTING).trigger(early=after_count(2)),
        Parquet(),
    ),
    "sliding by window, early by event time": (
        job()
        .window(sliding("20 seconds", "10 seconds"))
        .late("10 seconds", rule="window")
        .trigger(early=every_event_time("5 seconds"), late=after_count(2), only_updated=True),
        RocksDB(),
    ),
    "counted, discarding": (job().window(count_window(7, 5)).accumulation(DISCARDING), Memory()),
    "global, composite": (
        windowed(event_time="t")
        .window(global_window())
        .aggregate(n=count(), most=max_("v"), middle=median("v"))
        .trigger(when=repeatedly(after_count(100))),
        Parquet(max_levels=2, snapshot_bytes=1),
    ),
    "composite that finishes": (
        job()
        .window(tumbling("10 seconds"))
        .aggregate(all=list_("id"))
        .trigger(when=or_finally(repeatedly(after_count(9)), any_of(after_watermark(), after_count(30)))),
        Parquet(),
    ),
    "offsets, a pane at each third": (
        windowed(key="k", offset="id")
        .window(count_window(40, 20, by="offset"))
        .aggregate(n=count(), all=list_("id"))
        .trigger(early=after_count(3), per_element=True)
        .accumulation(RETRACTING),
        Parquet(),
    ),
    "sessions of offsets": (
        windowed(key="k", offset="id").window(session(offsets=6)).aggregate(n=count()).accumulation(RETRACTING),
        Memory(),
    ),
    "deduplicated": (
        deduplicated(event_time="t", on=["k", "v"], within="10 seconds", watermark_delay="20 seconds").late(
            "10 seconds"
        ),
        Parquet(),
    ),
}


BOUNDED = ["global, composite", "offsets, a pane at each third"]
"""In CI one of each runner, with the sessions below and the deduplication of `tests.spark.test_chains`; Spark runs
in a partition what the standalone runner runs, and that has them all.
"""


@pytest.mark.parametrize("name", DESCRIPTIONS if LONG else BOUNDED)
def test_panes_and_ledger_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    description, store = DESCRIPTIONS[name]
    tables = sample(4, 150)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    finish(description, spark, tmp_path, store, tmp_path / "spark")
    description.standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert len(panes) > 1
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")


FED: dict[str, Windowed] = {
    "tumbling, retained": job().window(tumbling("10 seconds")).late("5 seconds").retain("30 seconds"),
    "overlapping, only two kept": job()
    .window(sliding("20 seconds", "10 seconds"))
    .late("0 seconds")
    .retain(windows=3),
    "sessions": job().window(session("3 seconds")).late("5 seconds").retain("1 minute").trigger(late=after_count(2)),
}


@pytest.mark.parametrize("name", FED if LONG else ["sessions"])
def test_feeding_the_ledger_back_equals_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    description = FED[name].accumulation(RETRACTING)
    tables = sample(4, 150)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    query = description.on_spark(
        stream(spark, tmp_path / "input"), checkpoint=tmp_path / "spark", partitions=3
    ).start()
    query.processAllAvailable()
    fed = query.reprocess_late()
    assert query.reprocess_late() == 0
    query.stop(drain=True)
    alone = description.standalone(checkpoint=tmp_path / "alone")
    alone.run(tables)
    again = alone.reprocess_late()
    assert again.num_rows
    alone.drain()
    assert output(tmp_path / "spark", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")
    totals = query.manifest.totals
    assert totals["fed"] == fed
    assert 0 < totals["fed_accepted"] < fed
    assert totals["purged"] == fed - totals["fed_accepted"]
