"""Memory of the server's process of a query: batches are its tasks', what a drain fires is its own."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.process import REMOTE
from tests.helpers.requests import until
from tidestate import agg
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import Lease
from tidestate.stores import Parquet
from tools.bench.memory import ALLOWED_MB

pytestmark = pytest.mark.skipif(not REMOTE, reason="of the form on Spark Connect: make connect")

BEGUN_MB = 78
BUDGET_MB, ROWS, BATCHES = 4, 200_000, 4


class PeakOfProcess(threading.Thread):
    """Reads the most memory that a process has had, in MB, until it has ended."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self.begun_mb = self.peak_mb = self._read_mb()

    def _read_mb(self) -> float:
        """0 once it has ended."""
        try:
            lines = self._status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)

    def run(self) -> None:
        while peak_mb := self._read_mb():
            self.peak_mb = peak_mb
            time.sleep(0.02)


@pytest.mark.long
def test_a_state_of_many_times_the_budget(spark: SparkSession, tmp_path: Path) -> None:
    """Almost a million keys, each in a window that stays open until the drain, in which all of them fire."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 4)
    read = source.option("advanceMillisPerBatch", 1000).load()
    keyed = read.selectExpr("timestamp as t", "cast(value as string) as k", "value as v")
    counted = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 day")).aggregate(total=agg.sum("v"))
    store = Parquet(budget_bytes=BUDGET_MB * 1_000_000)
    query = counted.on_spark(keyed, checkpoint=tmp_path, partitions=4, store=store).start()
    (lease,) = (tmp_path / "alive").iterdir()
    peak = PeakOfProcess(msgspec.json.decode(lease.read_bytes(), type=Lease).process.pid)
    peak.start()
    checkpoint = Checkpoint.open(tmp_path)
    until(lambda: checkpoint.chosen(None).manifest.id > BATCHES)
    batches_mb = peak.peak_mb
    query.stop(drain=True, timeout_s=None)
    peak.join()
    state_mb = sum(path.stat().st_size for path in (tmp_path / "data").rglob("*") if path.is_file()) / 1e6
    head = checkpoint.chosen(None).manifest
    assert head.drained
    assert head.totals["accepted"] >= ROWS * (BATCHES - 1)
    assert state_mb > 5 * BUDGET_MB
    measured = f"{peak.begun_mb:.0f} MB, with batches {batches_mb:.0f}, in the end {peak.peak_mb:.0f}"
    assert 0 < batches_mb < peak.begun_mb + BUDGET_MB, measured
    # What a process may have next to its budget, less what one without Spark has at its beginning.
    assert 0 < peak.peak_mb < peak.begun_mb + BUDGET_MB + ALLOWED_MB - BEGUN_MB, measured
