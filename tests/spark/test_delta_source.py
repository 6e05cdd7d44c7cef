"""A Delta table as the source of a job, on a Spark that has its connector: the tasks read its files where they are
plain, and the checkpoints are the same as through Spark. By hand: ``python -m tools.spark_matrix --sparks 4.1.4
tests/spark/test_delta_source.py`` with ``TIDESTATE_LONG=1``. In every run: `tests.operators.spark.test_scan_delta`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.test_tables import answers, jars  # noqa: F401  (a fixture)

pytestmark = pytest.mark.long

REASONS = {
    "deleted": "a file of the table has deletionVector",
    "mapped": "the table's columns are mapped by name",
    "changes": "the option readchangefeed of the source",
}


def test_the_checkpoints_are_the_same_however_the_files_are_read(jars: str, tmp_path: Path) -> None:  # noqa: F811
    found = {event["kind"]: event for event in answers(tmp_path, "tests.children.delta_source", jars, str(tmp_path))}
    assert [kind for kind, event in found.items() if not event["same"]] == []
    assert {kind: event["why"] for kind, event in found.items() if event["why"]} == REASONS
    direct = {kind: event["direct"] for kind, event in found.items()}
    assert {kind for kind, ways in direct.items() if all(ways)} == {"plain", "partitioned", "wider", "later", "two"}
    assert len(direct["plain"]) > 2
    assert len(direct["two"]) > 2, "with batches in which one of both has nothing"
