"""A Delta table as the source of a job, on a Spark that has its connector: the tasks read its files where they are
plain, and the checkpoints are the same as through Spark. By hand: ``python -m tools.spark_matrix --sparks 4.1.4
tests/spark/test_delta_source.py`` with ``TIDESTATE_LONG=1``. In every run: `tests.operators.spark.test_scan_delta`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.checkout import ROOT
from tests.servers.kafka import UnavailableError
from tests.servers.spark_tables import BOTH, VERSION, connectors
from tools.demo.child import Child

pytestmark = pytest.mark.long

REASONS = {
    "deleted": "a file of the table has deletionVector",
    "mapped": "the table's columns are mapped by name",
    "changes": "the option readchangefeed of the source",
}


def compared(folder: Path) -> dict[str, dict[str, Any]]:
    """What the program says of each kind of table."""
    if VERSION not in BOTH:
        pytest.skip(f"Delta has no connector for Spark {VERSION}")
    try:
        jars = ",".join(connectors(folder))
    except UnavailableError as error:
        pytest.skip(f"the connector could not be had from Maven Central: {error}")
    command, found = [sys.executable, "-m", "tests.children.delta_source", jars, str(folder)], list[dict[str, Any]]()
    child = Child(command, folder / "log", cwd=ROOT)
    child.wait_for(lambda event: found.append(event) or event["event"] == "done")  # type: ignore[func-returns-value]
    child.finish()
    return {event["kind"]: event for event in found if event["event"] == "compared"}


def test_the_checkpoints_are_the_same_however_the_files_are_read(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert [kind for kind, event in found.items() if not event["same"]] == []
    assert {kind: event["why"] for kind, event in found.items() if event["why"]} == REASONS
    direct = {kind: event["direct"] for kind, event in found.items()}
    assert {kind for kind, ways in direct.items() if all(ways)} == {"plain", "partitioned", "wider", "later", "two"}
    assert len(direct["plain"]) > 2
    assert len(direct["two"]) > 2, "with batches in which one of both has nothing"
