"""A root that is tried through a Spark session, classic or of Spark Connect: what its workers see."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.helpers.process import REMOTE
from tidestate.operators.spark import root_views
from tidestate.operators.spark.platform import Platform
from tidestate.operators.spark.root_views import try_through
from tidestate.recovery.inspect.root_trial import TrialCheck

pytestmark = pytest.mark.spark

NAMES = ["spark", "workers", "from a task", "between hosts", "hadoop"]


def test_a_folder_that_all_see(spark: SparkSession, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    checks = try_through(spark, str(tmp_path), lambda *progress: told.append(progress))
    assert [(check.name, check.holds) for check in checks] == [(name, True) for name in NAMES]
    found = {check.name: check.found for check in checks}
    assert found["spark"].startswith("connect" if REMOTE else "classic")
    assert f"python {sys.version.split()[0]}" in found["workers"]
    assert "created in" in found["from a task"]
    assert found["between hosts"].endswith("see one root")
    assert [number for _, number, _ in told] == [1, 2, 3, 4, 5]
    assert [name for path, _, names in os.walk(tmp_path) for name in names] == []


def test_workers_that_lack_a_package(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_views, "packages_of", lambda _root: ["a_package_that_nobody_has"])
    checks = try_through(spark, str(tmp_path))
    assert [check.name for check in checks] == ["spark", "workers"]
    assert not checks[-1].holds
    assert "a_package_that_nobody_has" in checks[-1].found


@pytest.mark.long
def test_a_root_that_only_the_driver_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    in_tasks = root_views._in_tasks

    def elsewhere(platform: Platform, root: str, order: Any, tasks: int) -> Any:
        """On Spark Connect a single task stands for the driver."""
        return in_tasks(platform, root if tasks == 1 else str(tmp_path / "there"), order, tasks)

    monkeypatch.setattr(root_views, "_in_tasks", elsewhere)
    checks = {check.name: check for check in try_through(spark, str(here))}
    assert checks["between hosts"].holds is False
    assert "another folder" in checks["between hosts"].found
    assert "all executors share" in checks["between hosts"].advice


def test_storage_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no folder")
    checks: dict[str, TrialCheck] = {check.name: check for check in try_through(spark, str(tmp_path / "file"))}
    assert [name for name, check in checks.items() if check.holds is False] == NAMES[2:]
    assert "[storage]" in checks["from a task"].found
