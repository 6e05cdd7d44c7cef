"""Spark publishes, delivers and warns as the standalone runner does, and asks a sink that says no again.

Of the other runners: tests/operators/engine/test_driver.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers.process import REMOTE
from tests.helpers.same_checkpoints import (
    IDENTITIES,
    OF_BYTES,
    OF_THE_CLOCK,
    OF_THE_RUNNER,
    Run,
    by_standalone,
    check_asked_again,
    warnings,  # noqa: F401  (a fixture)
    what_came,
)
from tests.helpers.spark_inputs import job, sample, write
from tidestate import OperatorStream

pytestmark = pytest.mark.spark


@pytest.fixture
def by_spark(spark: SparkSession) -> Run:
    def run(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
        folder = root.with_name(f"{root.name}-input")
        for number, one in enumerate(batches):
            write(folder, number, one)
        stream = spark.readStream.schema("t timestamp, k string, v long, id long").option("maxFilesPerTrigger", 1)
        query = described.on_spark(stream.parquet(str(folder)), checkpoint=root, sink=sink, partitions=2).start()
        query.processAllAvailable()
        query.reprocess_late()
        query.stop(drain=True)

    return run


def test_spark_publishes_delivers_and_warns_as_standalone_does(
    tmp_path: Path,
    by_spark: Run,
    warnings: Callable[[Path], list[str]],  # noqa: F811
) -> None:
    dropped = IDENTITIES, OF_THE_CLOCK, OF_THE_RUNNER, OF_BYTES
    came, warned = what_came(by_spark, job(), tmp_path / "a", sample(4, 60), *dropped), warnings(tmp_path / "a")
    assert came == what_came(by_standalone, job(), tmp_path / "b", sample(4, 60), *dropped)
    if not REMOTE:  # there the server logs it
        assert warned == warnings(tmp_path / "b")


@pytest.mark.long
def test_a_sink_that_says_no_is_asked_again_and_nothing_is_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spark: Run
) -> None:
    check_asked_again(by_spark, tmp_path / "root", monkeypatch)
