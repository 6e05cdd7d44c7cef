"""Real SIGKILL: who edits a root dies before its manifest, or after. The edit is whole or not there."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.children.edit import EDIT_MOMENTS, RETIRED_UNTIL_US
from tests.helpers.forked import Forked
from tests.helpers.join_operator_messages import Row, near, sided
from tests.helpers.operator_messages import Message, description, table
from tidestate import Root
from tidestate.recovery.log.checkpoint import Checkpoint

OFFSETS_BEFORE = range(1, 21)
ROWS_AFTER = [(21, 9), (22, 5), (23, 40)]
"""Offsets and times of what comes after the edit: late ones too."""


def windows(upto: int) -> tuple[Any, list[Any]]:
    job = description(ts.tumbling("6 seconds"), allowed=1000).messages(identity=("part", "at"))
    batches = [table([Message("x", n, n, "abc"[n % 3], n) for n in OFFSETS_BEFORE])]
    batches += [table([Message("x", n, t, "abc"[n % 3], n) for n, t in ROWS_AFTER])]
    return job.standalone, batches[:upto]


def joined(upto: int) -> tuple[Any, list[Any]]:
    both = ("left", "right")
    batches = [sided([Row(side, "x", n, n, "abc"[n % 3], n) for n in OFFSETS_BEFORE for side in both])]
    batches += [sided([Row(side, "x", n, t, "abc"[n % 3], n) for n, t in ROWS_AFTER for side in both])]
    return near(late="1 hour").standalone, batches[:upto]


RUNS_OF = {"": windows, "left": joined}


def run(root: Path, side: str, upto: int) -> None:
    runner, batches = RUNS_OF[side](upto)
    runner(checkpoint=root, partitions=3).run(batches)


def stored(root: Path, side: str) -> list[str]:
    rows = Root(root).messages(**({"side": side} if side else {})).to_table().to_pylist()
    return sorted(map(str, rows))


def panes(root: Path) -> list[str]:
    found: pa.Table = Root(root).panes().to_table().drop_columns("checkpoint")
    return sorted(map(str, found.to_pylist()))


@pytest.mark.parametrize("side", sorted(RUNS_OF))
def test_an_edit_is_whole_or_not_there(tmp_path: Path, side: str) -> None:
    run(tmp_path / "begun", side, 1)
    shutil.copytree(tmp_path / "begun", tmp_path / "edited")
    plan = Root(tmp_path / "edited").retire(0, RETIRED_UNTIL_US, side=side or None).execute()
    assert plan.messages
    before, after = (stored(tmp_path / name, side) for name in ("begun", "edited"))
    assert before != after
    run(tmp_path / "edited", side, 2)
    for moment in EDIT_MOMENTS:
        root = tmp_path / moment
        shutil.copytree(tmp_path / "begun", root)
        newest = Checkpoint.open(root).ids()[-1]
        process = Forked("tests.children.edit", root, side, moment)
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, output
        done = moment == "after-manifest"
        assert Checkpoint.open(root).ids()[-1] == newest + done
        assert stored(root, side) == (after if done else before)
        assert not Root(root).verify(read_data=100.0).findings
        again = Root(root).retire(0, RETIRED_UNTIL_US, side=side or None).execute()
        assert again.messages == (0 if done else plan.messages)
        assert stored(root, side) == after
        run(root, side, 2)
        assert panes(root) == panes(tmp_path / "edited")
        assert stored(root, side) == stored(tmp_path / "edited", side)
