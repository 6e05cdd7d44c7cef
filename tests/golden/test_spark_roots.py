"""Roots that a job on Spark has left, as those of `test_roots`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.golden.continued import as_counted_then, log_lines, read_root, root_names
from tests.golden.jobs import job_of
from tests.golden.on_spark import continued_on_spark, continued_standalone
from tests.helpers.process import REMOTE, longer

LINES: dict[str, list[str]] = {
    "on_spark_chain_deduplicated": [
        "operator once has begun without an allowed lateness, so it rejects late rows that the operator behind it "
        'would accept: give it allowed_lateness="5 seconds" to accept these, or "0 seconds" to keep rejecting them'
    ],
}
"""By root: the lines of its start and continuation."""
IN_EVERY_RUN = ("on_spark_chain_deduplicated", "on_spark_join_full", "on_spark_tumbling_retracting")
"""Without Spark every run has all kinds: `test_roots`."""
OTHERS = [name for name in root_names("spark") if name not in IN_EVERY_RUN]
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.mark.parametrize("name", [*IN_EVERY_RUN, *longer(*OTHERS)])
def test_a_root_goes_on(spark: SparkSession, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = read_root(name)
    with caplog.at_level(logging.WARNING, "tidestate"):
        found = continued_on_spark(spark, stored, job_of(name), tmp_path)
    assert as_counted_then(found, stored.expected) == stored.expected
    # On Spark Connect the driver logs in another process.
    assert REMOTE or log_lines(caplog.records) == LINES.get(name, [])


@pytest.mark.parametrize("name", root_names("spark"))
def test_a_root_goes_on_standalone(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = read_root(name)
    with caplog.at_level(logging.WARNING, "tidestate"):
        found = continued_standalone(stored, job_of(name), tmp_path)
    assert as_counted_then(found, stored.expected) == stored.expected
    assert log_lines(caplog.records) == LINES.get(name, [])
