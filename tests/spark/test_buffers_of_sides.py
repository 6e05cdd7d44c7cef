"""Joins on Spark whose sides have numbered buffers: as standalone, and as the twin shows it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.buffers_of_sides import arrivals, joined, observed, sent, tables
from tests.helpers.spark_inputs import write
from tests.helpers.spark_runs import output
from tests.twins.buffered_join import BufferedTwin
from tests.twins.join import SIDES, Asked, Pane
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState

SPARK_COLUMNS = (
    "key string, t timestamp, value long, off long, origin long, sequence long, chunk long, last boolean, "
    "mark timestamp, empty boolean, final boolean"
)


def operators(root: Path) -> list[OperatorState]:
    return [one.operators["job"] for one in Checkpoint.open(root).history() if one.kind != "fence"]


def buffers(operator: OperatorState) -> dict[str, Any]:
    """Those of each side, without since when they are waited for: each run has a clock of its own."""
    return {side: {**saved, "waiting": []} for side, saved in operator.buffers_by_side.items()}


def test_pairs_ledger_and_watermarks_are_those_of_the_standalone_runner_and_the_twin(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance, declared = random.Random(54), {"left": [1]}
    asked = Asked("full", -4, 4)
    batches = arrivals(chance, sent(chance, ends=True))
    for number, batch in enumerate(batches):
        for side, rows in tables(batch).items():
            write(tmp_path / side, number, rows)
    job, twin = joined(asked, declared), BufferedTwin(asked, declared)
    frames = {
        side: spark.readStream.schema(SPARK_COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / side))
        for side in SIDES
    }
    query = job.on_spark(frames, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    assert all(source.partition("/")[0] in SIDES for source in query.metrics().sources)
    assert {gap.source.partition("/")[0] for gap in query.gaps()} <= {*SIDES}
    query.stop(drain=True)
    alone = job.standalone(checkpoint=tmp_path / "alone")
    shown_panes = observed(alone.run([tables(batch) for batch in batches], drain=True))
    expected_panes, marks = Counter[Pane](), list[float | None]()
    for batch in batches:
        expected_panes += twin.came(batch, 0)
        marks.append(twin.watermark)
    assert shown_panes == expected_panes + twin.finish()
    assert observed(ts.Root(tmp_path / "root").panes().to_table()) == shown_panes
    assert sum(shown_panes.values()) > 5
    assert output(tmp_path / "root", "late").keys() == output(tmp_path / "alone", "late").keys()
    assert query.manifest.totals == alone.head.totals
    histories = operators(tmp_path / "root"), operators(tmp_path / "alone")
    for shown in (lambda operator: operator.watermark_us, buffers):
        one, other = ([shown(operator) for operator in history] for history in histories)
        assert one == other
    assert [one.watermark_us and one.watermark_us / 1e6 for one in histories[0]][: len(marks)] == marks
    assert len({mark for mark in marks if mark is not None}) > 2
