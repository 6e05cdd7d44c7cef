"""Message files are lost for good: the job gives up on them, and goes on with what is there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.internals import operator_of
from tests.helpers.lost_messages import FORGET, REBUILD, lose, noted
from tests.helpers.operator_messages import SCHEMA, WINDOWS, Message, description, stream, table
from tidestate import agg
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.manifest import Rebuilding
from tidestate.recovery.start.policy import Policy

JOB = description(WINDOWS["tumbling"], "retracting", "k", 200).messages(identity=("part", "at"))


def _rebuilding(harness: Harness) -> Rebuilding | None:
    operator = operator_of(harness)
    return operator.rebuilding


def test_messages_that_are_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Windows go on with what is there, and lack nothing for the job."""
    made = JOB.harness(SCHEMA, folder=tmp_path)
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


@pytest.mark.parametrize("policy", [REBUILD, FORGET], ids=["rebuild", "forget"])
def test_lists_of_windows_whose_messages_are_all_gone_are_empty(tmp_path: Path, policy: Policy) -> None:
    job = (
        ts.stream(event_time="t")
        .group_by()
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), all=agg.list("v"))
    )
    job = job.messages(identity=("part", "at"))
    rows = table([Message("x", 0, 1, "a", 1), Message("x", 1, 2, "a", 2)])
    later = table([Message("x", 2, 12, "a", 3)])
    made = job.harness(SCHEMA, folder=tmp_path)
    made.feed(rows)
    assert lose(tmp_path)
    made.restart(policy)
    panes = pa.concat_tables([made.feed(later), made.finish()])
    assert [(row["n"], row["all"]) for row in panes.to_pylist()] == [(2, []), (1, [3])]
