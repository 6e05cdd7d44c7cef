"""Real SIGKILL: a window operator dies in a flush or before it acknowledges, and the receiver has every pane once."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.children.operator import JOB
from tests.helpers.checkout import ROOT
from tests.helpers.operator_messages import STORES, expected, stream
from tests.helpers.process import LONG
from tidestate.statestore.spec.store import StoreName

MOMENTS = ("before-manifest", "after-manifest", "received")
BOUNDED: list[tuple[StoreName, str]] = list(zip(("rocksdb", "parquet", "memory"), MOMENTS, strict=True))
"""In CI each moment and each store has its turn; every store is killed anywhere and around the manifest in
`tests.operators.local.test_standalone_killed`.
"""


def child(folder: Path, name: StoreName, *death: str) -> subprocess.Popen[str]:
    places = [str(folder / "root"), name, str(folder / "cache"), str(folder / "out")]
    command = [sys.executable, "-m", "tests.children.operator", *places, *death]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def check_exact(folder: Path) -> None:
    """Every line under one id is the same; one line of each are the panes of an undisturbed run."""
    taken: dict[int, list[list[object]]] = {}
    for line in (folder / "out").read_text().splitlines():
        checkpoint_id, rows = json.loads(line)
        assert taken.setdefault(checkpoint_id, rows) == rows
    panes, _ = expected(JOB, stream(9), folder / "harness")
    wanted = json.loads(json.dumps(panes, default=str))
    assert sorted(map(repr, (row for rows in taken.values() for row in rows))) == sorted(map(repr, wanted))


@pytest.mark.parametrize(("name", "moment"), list(itertools.product(STORES, MOMENTS)) if LONG else BOUNDED)
def test_killed_at_a_moment(tmp_path: Path, name: StoreName, moment: str) -> None:
    for death in (f"{moment}:6", f"{moment}:12"):
        process = child(tmp_path, name, death)
        output, _ = process.communicate()
        died = process.returncode == -signal.SIGKILL
        assert died or (death.endswith(":12") and output.endswith("done\n"))
    output, _ = child(tmp_path, name).communicate()
    assert output.endswith("done\n")
    check_exact(tmp_path)


@pytest.mark.parametrize("name", STORES if LONG else ["rocksdb"])
def test_killed_anywhere_again_and_again(tmp_path: Path, name: StoreName) -> None:
    chance = random.Random(STORES.index(name))
    for _ in range(4):
        process = child(tmp_path, name)
        assert process.stdout is not None
        for _ in range(chance.randint(1, 14)):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        process.kill()
        process.stdout.read()
        process.wait()
        process.stdout.close()
    output, _ = child(tmp_path, name).communicate()
    assert output.endswith("done\n")
    check_exact(tmp_path)
