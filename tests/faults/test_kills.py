"""The loop of real kills, bounded: of each process of a driver, and one that wakes up next to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children.spark_job import JOBS
from tests.faults.kills import (
    COLLECTED,
    EXECUTOR,
    JAVA,
    KINDS,
    PYTHON,
    SECOND,
    STOPPED,
    WHOLE,
    WORKER,
    Disturbance,
    Plan,
    planned,
    play,
    section,
)

pytestmark = [pytest.mark.spark, pytest.mark.kill]


def plan_of(job: str, store: str, *kinds: str) -> Plan:
    return Plan(job, job, store, False, tuple(Disturbance(kind, False, 0.6, 0.5) for kind in kinds), 8)


ROUNDS = [
    plan_of("chain", "rocksdb", WORKER, STOPPED),
    plan_of("again", "memory", COLLECTED, PYTHON, EXECUTOR),
    plan_of("join", "parquet", JAVA, SECOND),
    plan_of("prepared", "parquet", PYTHON, STOPPED),
    plan_of("outputs", "rocksdb", JAVA, WORKER),
]


@pytest.mark.long
@pytest.mark.parametrize("plan", ROUNDS, ids=lambda plan: plan.seed)
def test_disturbed_and_exact(plan: Plan, tmp_path: Path) -> None:
    """In every run `tests.spark.test_jobs_killed` kills whole drivers, `tests.spark.test_cluster` an executor and a
    Python worker, and stops one that wakes up after the commit; `tests.spark.test_job` has a query that is overtaken.
    """
    did: list[str] = []
    play(plan, tmp_path, did)
    assert did == [one.kind for one in plan.disturbances]


def test_a_seed_is_a_plan() -> None:
    plans = [planned(str(seed)) for seed in range(40)]
    assert plans == [planned(str(seed)) for seed in range(40)]
    assert {one.kind for plan in plans for one in plan.disturbances} == set(KINDS)
    assert {plan.job for plan in plans} == set(JOBS)


def test_the_figures_count_what_was_done() -> None:
    rounds = [
        {"commit": "a", "did": [WHOLE, COLLECTED], "kills": 1, "wrong": ""},
        {"commit": "a", "did": [WHOLE, STOPPED], "kills": 2, "wrong": "panes differ"},
    ]
    text = section(rounds)
    assert text.startswith("Commit a: 3 kills in 2 rounds, 1 wrong.\n")
    assert f"| {WHOLE} | 2 |" in text
