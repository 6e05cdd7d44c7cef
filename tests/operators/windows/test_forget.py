"""Message files are lost for good: the job gives up on them, and goes on with what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.lost_messages import FORGET, REBUILD, lose, noted
from tests.helpers.operator_messages import SCHEMA, WINDOWS, description, stream, table
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.manifest import Rebuilding

JOB = description(WINDOWS["tumbling"], "retracting", "k", 200).messages(identity=("part", "at"))


def _rebuilding(harness: Harness) -> Rebuilding | None:
    (operator,) = harness._job.head.operators.values()
    return operator.rebuilding


def test_messages_that_are_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Windows go on with what is there, and lack nothing for the job."""
    made = Harness(JOB, SCHEMA, folder=tmp_path)
    batches = stream(5, batches=4, size=8)
    made.feed(table(batches[0]))
    assert lose(tmp_path)
    made.restart(REBUILD)
    made.feed(table(batches[1]))
    made.rebuild([])
    lacking = noted(_rebuilding(made))
    made.restart(FORGET)
    assert lacking is not None
    assert f"gives up on {lacking[1]} windows that lack messages" in caplog.text
    assert _rebuilding(made) is None
    before = made.counters().get("incomplete_panes", 0)
    made.feed(table(batches[2]))
    assert made.counters().get("incomplete_panes", 0) == before
    assert lose(tmp_path)
    made.restart(FORGET)
    made.feed(table(batches[3]))
    assert _rebuilding(made) is None
    assert made.finish().num_rows
