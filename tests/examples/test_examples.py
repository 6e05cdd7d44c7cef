"""The examples give what a reader computes by hand, in this process and on Spark."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.process import longer
from tidestate.operators.local.bootstrap import load_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = ROOT / "examples"
JOBS: dict[str, list[str]] = {
    "corrected_windows": [
        "EWR, 10:00: 2 flights, 3.0 late on average, 4 at worst (emit, on_time)",
        "EWR, 10:00: 2 flights, 3.0 late on average, 4 at worst (retract, late)",
        "EWR, 10:00: 3 flights, 5.0 late on average, 9 at worst (emit, late)",
        "EWR, 12:00: 1 flights, 0.0 late on average, 0 at worst (emit, on_time)",
        "JFK, 12:00: 1 flights, 7.0 late on average, 7 at worst (emit, on_time)",
    ],
    "sessions": [
        "ada came at 09:00 and looked at 3 pages: home, search, buy",
        "bob came at 09:05 and looked at 1 pages: home",
        "bob came at 11:00 and looked at 1 pages: help",
    ],
    "joined_again": [
        "09:00: 83% of sales in centre",
        "09:00: 17% of sales in station",
        "10:00: 100% of sales in station",
        "11:00: 100% of sales in centre",
    ],
    "union_of_three": [
        "09:00: ada spent 17 (app, web)",
        "09:00: bob spent 5 (web)",
        "10:00: ada spent 3 (shop)",
        "11:00: bob spent 2 (app)",
        "12:00: cleo spent 1 (web)",
    ],
    "merged_state": [
        "01 January: shop a sold for 120 and paid 50 back, in 3 orders and refunds",
        "01 January: shop b sold for 20 and paid 0 back, in 1 orders and refunds",
        "02 January: shop b sold for 5 and paid 20 back, in 2 orders and refunds",
    ],
    "deduplicated_sessions": [
        "ada clicked 3 times between 09:00 and 09:50",
        "bob clicked 1 times between 12:00 and 12:30",
    ],
    "interval_ctis": [
        "north, from 09:00 to 09:30: 3 cars, up to 50 kW",
        "south, from 09:00 to 09:30: 1 cars, up to 11 kW",
        "north, from 09:30 to 10:00: 2 cars, up to 22 kW",
        "south, from 09:30 to 10:00: 1 cars, up to 11 kW",
        "north, from 10:00 to 10:30: 1 cars, up to 22 kW",
        "south, from 10:00 to 10:30: 2 cars, up to 11 kW",
    ],
    "origin_buffers": [
        "from 09:00 to 09:10: 4 readings, 24 degrees at most",
        "from 09:10 to 09:20: 1 readings, 25 degrees at most",
    ],
}
"""What each of them prints: of its input, by the rules of its docstring."""
BY_HAND = [
    "x, 09:00: 3 trades, from 10 to 14",
    "y, 09:00: 1 trades, from 5 to 5",
]
"""The last trade, of 09:01:30, has completed the minute of 09:00 and is in the next one."""


ON_SPARK = ("interval_ctis",)
"""On Spark in every run; operators behind a join: `tests/spark/test_chains.py`."""
IN_TUTORIALS = ("click_sessions", "join_and_daily_totals", "orders_into_delta")
"""Run by `tests/examples/test_start_pages.py`, with the pages that quote them."""


def example(name: str) -> ModuleType:
    """The module of an example, which finds its neighbours as when it is run."""
    load_object(f"{FOLDER / name}.py:__doc__")
    return sys.modules[name]


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """The lines of a run from the command line, in this process."""

    def lines(name: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", str(tmp_path)])
        example(name).main()
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize("name", JOBS)
def test_an_example_prints_what_follows_from_its_input(
    name: str, printed: Callable[[str], list[str]], tmp_path: Path
) -> None:
    assert sorted(printed(name)) == sorted(JOBS[name])
    planned = load_object(f"{FOLDER / name}.py:job").plan(tmp_path / "checkpoint")
    assert (planned.changes, planned.dropped) == ((), ())


def test_the_example_by_hand_prints_each_result_once(printed: Callable[[str], list[str]]) -> None:
    assert sorted(printed("by_hand")) == BY_HAND


@pytest.mark.parametrize("name", [*ON_SPARK, *longer(*(name for name in JOBS if name not in ON_SPARK))])
def test_an_example_has_the_same_panes_on_spark(name: str, tmp_path: Path, spark: SparkSession) -> None:
    made, runner = example(name), example("runner")
    alone = runner.run_alone(made.job, made.batches(), tmp_path / "alone")
    on_spark = runner.run_on_spark(made.job, made.batches(), tmp_path / "spark", spark)
    assert rows(on_spark.select(alone.column_names)) == rows(alone)
    assert sorted(map(made.words, on_spark.to_pylist())) == sorted(JOBS[name])


def rows(panes: pa.Table) -> list[str]:
    """Its rows, in whatever order they came."""
    return sorted(map(str, panes.to_pylist()))


def test_examples_use_public_names_alone() -> None:
    modules = {
        node.module
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("tidestate")
    }
    assert modules == {"tidestate"}


def test_every_example_is_here_and_checked_for_types() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == {*JOBS, "by_hand", "chaos_job", "runner", *IN_TUTORIALS}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(settings["tool"]["mypy"]["modules"]) == files
