"""The script that times a step: what it counts, not how long it takes."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tools import step_times


def test_steps_and_reads_with_rows_and_without() -> None:
    with patch.object(step_times, "PARTITIONS", 2):
        measured = step_times.figures("tumbling", rounds=1)
    with_rows, without = measured[f"{step_times.ROWS} rows"], measured["0 rows"]
    assert (with_rows["steps"], without["steps"]) == (2, 2)
    assert without["scan"] >= 1
    assert with_rows["median_us"] > 0


def test_a_table_of_all_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"200 rows": {"steps": 1, "median_us": 2, "scan": 3.0}, "0 rows": {"steps": 0, "median_us": 0}}
    with patch.object(step_times, "figures", return_value=figures):
        assert step_times.main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * len(step_times.JOBS)
