"""Real SIGKILL on the real job over real flights: in a commit, after it, at random moments. Then exact output.
All of it is of the long form: what holds it in every run is at `STORES`.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers.checkout import ROOT
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.check import check
from tools.demo.child import Child
from tools.demo.flights import departed_flights, disorder, write_files

pytestmark = pytest.mark.spark

FILES = 7
STORES = ["parquet", "memory", "rocksdb"]
"""In every run `tests.spark.test_jobs_killed` has two jobs killed on either side of a manifest; without Spark
`tests.operators.local.test_standalone_killed` kills with the third.
"""
KILLS = 12
"""How often the job of the demo is killed at a random moment."""


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return departed_flights()


@pytest.fixture
def folder(tmp_path: Path, flights: pa.Table) -> Path:
    write_files(flights.slice(0, 21_000), tmp_path / "input", FILES)
    return tmp_path


def start(folder: Path, store: str, *options: str) -> Child:
    command = [sys.executable, "-m", "tools.demo.job", "--input", str(folder / "input")]
    command += ["--checkpoint", str(folder / "checkpoint"), "--store", store, *options]
    return Child(command, folder / "job.log", cwd=ROOT)


def finish(folder: Path, store: str) -> None:
    child = start(folder, store, "--drain")
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    findings = check(folder / "checkpoint", folder / "input")
    assert [f.what for f in findings if not f.right] == [], [f"{f.what}: {f.found}" for f in findings]


@pytest.mark.long
def test_the_flights_are_as_out_of_order_as_described(flights: pa.Table) -> None:
    assert disorder(flights) == {
        "events": 328_521,
        "behind_a_later_one": 194_327,
        "behind_by_over_an_hour": 25_634,
        "behind_by_over_six_hours": 181,
        "worst_minutes": 1_300,
    }


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_killed_between_segments_and_manifest(folder: Path, store: str) -> None:
    child = start(folder, store, "--pause", "before-manifest:5")
    child.wait_for(lambda event: event["event"] == "paused")
    written = [path.name for path in (folder / "checkpoint" / "data").rglob("5-*")]
    child.kill()
    assert written, "the segments of checkpoint 5 are there"
    assert Checkpoint.open(folder / "checkpoint").ids()[-1] == 4
    chance = random.Random(store)
    for _ in range(KILLS):
        child = start(folder, store)
        child.wait_for(lambda event: event["event"] == "started")
        time.sleep(chance.uniform(0.0, 4.0))
        child.kill()
    finish(folder, store)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_killed_after_the_manifest(folder: Path, store: str) -> None:
    child = start(folder, store, "--pause", "after-manifest:4")
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    assert Checkpoint.open(folder / "checkpoint").ids()[-1] == 4
    commits = {p.name for p in (folder / "checkpoint" / "spark" / "commits").iterdir() if p.name.isdigit()}
    assert "2" not in commits, "Spark had not finished batch 2, which checkpoint 4 holds"
    finish(folder, store)
    batches = [one for one in Checkpoint.open(folder / "checkpoint").history() if one.kind == "batch"]
    assert [one.spark.batch_id for one in batches if one.spark] == list(range(FILES))
    assert {one.scan.in_driver for one in batches if one.scan} == {store == "parquet"}


@pytest.mark.long
def test_killed_between_the_drained_manifest_and_its_delivery(folder: Path) -> None:
    drained = FILES + 2
    child = start(folder, "memory", "--drain", "--pause", f"after-manifest:{drained}")
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    manifest = Checkpoint.open(folder / "checkpoint").read(drained).manifest
    assert manifest.drained
    findings = check(folder / "checkpoint", folder / "input")
    assert all(finding.right for finding in findings)
