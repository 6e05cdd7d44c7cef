"""Random jobs of the general twin on the standalone runner: any window, triggers, lateness, cuts and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from tests.helpers.every_store import STORES, store_config
from tests.helpers.process import LONG
from tests.twins.on_runners import Job, check, jobs
from tidestate.statestore.spec.store import StoreName

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.timeout(7200 if LONG else 600)]
RUNS = run_settings(max_examples=run_settings.default.max_examples * 3 if LONG else 2)


@RUNS
@given(job=jobs(), store=st.sampled_from(STORES))
def test_random_jobs_equal_the_twins(job: Job, store: StoreName) -> None:
    def run(job: Job, batches: Sequence[pa.Table], folder: Path) -> None:
        config = store_config(store, folder, (2, 1))
        for end in [*sorted(job.restarts), len(batches)]:
            runner = job.described.standalone(checkpoint=folder / "root", store=config, partitions=job.partitions)
            runner.run(batches[:end], drain=end == len(batches))

    check(job, run)
