"""Random jobs of the general twin on Spark, in tasks or the driver: windows, triggers, lateness, cuts, restarts. In
every run the standalone runner has them (`tests.operators`), and `test_general` compares it with Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.helpers.every_store import STORES, store_config
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import write
from tests.twins.on_runners import Job, check, jobs
from tidestate.operators.spark import in_driver
from tidestate.statestore.spec.store import StoreName

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.timeout(24 * 3600 if LONG else 600),
]
RUNS = run_settings(
    max_examples=300 if LONG else 2, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
SCHEMA = "time timestamp, k string, j long, v long, x double"


@pytest.mark.long
@RUNS
@given(job=jobs(), store=st.sampled_from(STORES), small=st.booleans())
def test_random_jobs_equal_the_twins(spark: SparkSession, job: Job, store: StoreName, small: bool) -> None:
    def run(job: Job, batches: Sequence[pa.Table], folder: Path) -> None:
        for number, batch in enumerate(batches):
            write(folder / "made", number, batch)
        (folder / "input").mkdir()
        config, begin = store_config(store, folder, (2, 1)), 0
        for end in [*sorted(job.restarts), len(batches)]:
            for number in range(begin, end):
                (folder / "made" / f"{number:04d}.parquet").rename(folder / "input" / f"{number:04d}.parquet")
            stream = (
                spark.readStream.schema(SCHEMA if job.known == "not" else f"{SCHEMA}, at long")
                .option("maxFilesPerTrigger", 1)
                .parquet(str(folder / "input"))
            )
            query = job.described.on_spark(
                stream, checkpoint=folder / "root", store=config, partitions=job.partitions
            ).start()
            query.processAllAvailable()
            query.stop(drain=end == len(batches))
            begin = end

    limits = in_driver.Limits() if small else in_driver.LIMITS
    with patch.object(in_driver, "LIMITS", limits):
        check(job, run)
