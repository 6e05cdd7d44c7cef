"""Expectations on Spark: rows of the ledger come back, and a batch that fails stops the query."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.children.expected import MENDED, STRICT, STRICT_BATCHES, batches, sales
from tests.helpers.spark_inputs import write
from tidestate.operators.streams.running import SHORTCUTS
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest

pytestmark = pytest.mark.spark
COLUMNS = "at timestamp, shop string, price long, kind string"


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))


def head_of(root: Path) -> Manifest:
    head = Checkpoint.open(root).newest()
    assert head is not None
    return head.manifest


def net(root: Path) -> list[str]:
    rows = ts.Root(root).panes(net=True).to_table().select(["window_start", "shop", "n", "total"])
    return sorted(map(repr, rows.to_pylist()))


def ledger(root: Path) -> Counter[Any]:
    rows = ts.Root(root).late().to_table().to_pylist()
    return Counter((row["at"], row["shop"], row["price"], *row["expectations"]) for row in rows)


@pytest.mark.parametrize("shortcuts", [("direct_scan",), SHORTCUTS])
def test_rows_that_miss_them_come_back_on_spark(spark: SparkSession, tmp_path: Path, shortcuts: Any) -> None:
    """As they do in one process, whoever reads the rows."""
    tables = batches()
    for number, rows in enumerate(tables[:STRICT_BATCHES]):
        write(tmp_path / "in", number, rows)
    root, alone = tmp_path / "root", tmp_path / "alone"
    frame = stream(spark, tmp_path / "in")
    for condition, first in ((STRICT, 0), (MENDED, STRICT_BATCHES)):
        for number, rows in enumerate(tables[first:] if first else [], first):
            write(tmp_path / "in", number, rows)
        job = sales(condition).on_spark(frame, checkpoint=root, partitions=2, paths=shortcuts)
        query = job.start()
        query.processAllAvailable()
        if first:
            query.reprocess_late(reason="expectation")
        query.stop(drain=bool(first))
    sales(STRICT).standalone(checkpoint=alone, partitions=2).run(tables[:STRICT_BATCHES])
    runner = sales(MENDED).standalone(checkpoint=alone, partitions=2)
    runner.run(tables)
    runner.reprocess_late(reason="expectation")
    runner.run(tables, drain=True)
    assert net(root) == net(alone) != []
    assert ledger(root) == ledger(alone)
    assert ledger(root)
    wanted = {name: count for name, count in head_of(alone).totals.items() if name.startswith("expectation")}
    assert {name: head_of(root).totals[name] for name in wanted} == wanted


@pytest.mark.parametrize("more", [{"otherwise": "fail"}, {"otherwise": "count", "at_most": 0.2}])
def test_a_batch_that_fails_stops_the_query(spark: SparkSession, tmp_path: Path, more: dict[str, Any]) -> None:
    """Nothing of the batch is published, and after a change it is read again."""
    good, bad = batches()[0].slice(2, 3), batches()[1]
    write(tmp_path / "in", 0, good)
    write(tmp_path / "in", 1, bad.take([row % bad.num_rows for row in range(400)]))
    frame, root = stream(spark, tmp_path / "in"), tmp_path / "root"

    def job(**expecting: Any) -> Any:
        rows = ts.stream(event_time="at").expect("price", "price > 0", **expecting)
        return (
            rows.group_by("shop")
            .window(ts.tumbling("4 seconds"))
            .aggregate(n=ts.agg.count())
            .allowed_lateness("1 hour")
        )

    for _ in range(2):
        query = job(**more).on_spark(frame, checkpoint=root, partitions=2).start()
        with pytest.raises(Exception, match="fails an expectation, and nothing of it was published"):
            query.processAllAvailable()
        assert head_of(root).totals["events"] == good.num_rows
        assert not ts.Root(root).late().to_table().num_rows
    query = job().on_spark(frame, checkpoint=root, partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    assert head_of(root).totals["events"] == good.num_rows + 400
    reasons = Counter(ts.Root(root).late().to_table()["reason"].to_pylist())
    assert reasons["expectation"] == head_of(root).totals["expectation:price"] > 100
