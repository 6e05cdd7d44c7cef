"""Chaos on a real Spark: its driver is killed, and the job is the same; what a job gets from the clock is found. In
every run drivers are killed by `tests.spark.test_jobs_killed`, jobs of rounds by `tests.operators.chaos`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.worked_example import STREAM
from tidestate.operators.chaos.faults import Injected, RoundPlan
from tidestate.operators.chaos.inputs import copied_input
from tidestate.operators.chaos.rounds import ChaosRounds
from tidestate.operators.chaos.start import UserJob
from tidestate.operators.local.bootstrap import load_job
from tools.java import brief_options, java_home

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "starts"), [("spark", 1), ("driver", 2)])
def test_the_job_is_the_same(kind: str, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home())
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", brief_options())  # half the time
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.python.daemon.module=tools.python_daemon pyspark-shell")
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "in").mkdir()
    for number, table in enumerate(STREAM):
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    name = "tests.helpers.worked_example:example"
    given = copied_input(load_job(name).graph.streams, {"input": [str(tmp_path / "in")]}, None, tmp_path / "copies")
    rounds = ChaosRounds(UserJob(name, given), tmp_path / "rounds", 1, [kind])
    found = rounds.run(RoundPlan(2, "parquet", (Injected(kind, 0.2),)))
    assert (found.verdict, found.starts) == ("same", starts), found
    (put,) = found.faults
    assert put.reached
    assert kind == "spark" or put.outcome == "killed"
