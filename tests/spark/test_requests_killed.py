"""Real SIGKILL on a query on Spark after the checkpoint that a request has made, and before its answer.
Every moment without Spark: tests/recovery/control/test_killed.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.children.requested_on_spark import retained
from tests.helpers.checkout import ROOT
from tests.helpers.requests import asker, until
from tests.helpers.spark_inputs import batch, write
from tests.helpers.spark_runs import output
from tidestate.recovery.log.requests import ReprocessRequest
from tidestate.statestore.errors import UsageError
from tools.demo.child import Child

pytestmark = [pytest.mark.spark, pytest.mark.long]

TABLES = [
    batch([(1, "a", 1), (3, "b", 2)]),
    batch([(60, "a", 4)], 2),
    batch([(2, "a", 8), (5, "b", 16), (11, "a", 32)], 3),
]
GIVEN = batch([(4, "b", 64), (12, "c", 128)], 6)
FED = len(TABLES) + 2


def started(folder: Path, *pause: str) -> Child:
    command = [sys.executable, "-m", "tests.children.requested_on_spark", str(folder / "input")]
    child = Child(command, folder / "log", cwd=ROOT)
    child.tell("start", str(folder / "root"), *pause)
    child.tell("settle")
    child.wait_for(lambda event: event["event"] == "settled")
    return child


@pytest.mark.parametrize("moment", ["before-manifest", "after-manifest"])
def test_killed_around_the_manifest_of_a_request(tmp_path: Path, moment: str) -> None:
    root = tmp_path / "root"
    for number, table in enumerate(TABLES):
        write(tmp_path / "input", number, table)
    child = started(tmp_path, f"{moment}:{FED}")
    until((root / "control" / "1" / "begun.json").exists)
    ticket = asker(root).submit(ReprocessRequest(), GIVEN)
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    child = started(tmp_path)
    until((root / "control" / "2" / "begun.json").exists)
    if moment == "after-manifest":
        assert asker(root).answer(ticket).checkpoint == FED
    else:
        with pytest.raises(UsageError, match="run-ended"):
            asker(root).answer(ticket)
        assert asker(root).ask(ReprocessRequest(), GIVEN).rows == GIVEN.num_rows
    child.tell("drain")
    child.wait_for(lambda event: event["event"] == "stopped")
    child.finish()
    alone = retained().standalone(checkpoint=tmp_path / "alone")
    alone.run(TABLES)
    alone.reprocess_late(GIVEN)
    alone.drain()
    assert output(root, "panes") == output(tmp_path / "alone", "panes")
