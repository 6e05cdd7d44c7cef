"""Real SIGKILL: a join operator dies in a flush or before it acknowledges, and the receiver has every pane once."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.children.join_operator import BATCHES, JOBS
from tests.helpers.forked import Forked
from tests.helpers.join_operator_messages import expected
from tests.helpers.operator_messages import STORES
from tests.helpers.process import LONG, few
from tidestate.statestore.spec.store import StoreName

MOMENTS = ("before-manifest", "after-manifest", "received")
CASES = [("join", name, moment) for name in STORES for moment in MOMENTS]
CASES += [("held", name, moment) for name in STORES for moment in MOMENTS]
CASES += [
    (kind, name, moment) for kind in ("sessions", "offsets") for name in ("parquet", "rocksdb") for moment in MOMENTS
]
BOUNDED = [("sessions", "parquet", "after-manifest"), ("held", "memory", "received")]
"""With few examples. The last is of every run: after results were received, which a job by hand alone does. Around
the manifest a job is killed in `tests.operators.local.test_standalone_killed`, and one by hand anywhere in
`tests.operators.embedded.test_window_operator_killed`.
"""


def child(folder: Path, name: StoreName, kind: str, *death: str) -> Forked:
    places = [folder / "root", name, folder / "cache", folder / "out", kind]
    return Forked("tests.children.join_operator", *places, *death)


def check_exact(folder: Path, kind: str) -> None:
    """Every line under one id is the same; one line of each are the panes of an undisturbed run."""
    taken: dict[int, list[list[object]]] = {}
    for line in (folder / "out").read_text().splitlines():
        checkpoint_id, rows = json.loads(line)
        assert taken.setdefault(checkpoint_id, rows) == rows
    wanted = json.loads(json.dumps(expected(JOBS[kind], BATCHES[kind], folder / "harness"), default=str))
    assert {row[-1] for row in wanted} == ({"emit"} if kind == "held" else {"emit", "retract"})
    assert sorted(map(repr, (row for rows in taken.values() for row in rows))) == sorted(map(repr, wanted))


@pytest.mark.parametrize(("kind", "name", "moment"), CASES if LONG else few(BOUNDED, 1))
def test_killed_at_a_moment(tmp_path: Path, kind: str, name: StoreName, moment: str) -> None:
    for least in (5, 12) if LONG else (5,):  # again and again, below
        process = child(tmp_path, name, kind, f"{moment}:{least}")
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, output
    output, _ = child(tmp_path, name, kind).communicate()
    assert output.endswith("done\n")
    check_exact(tmp_path, kind)


@pytest.mark.long
@pytest.mark.parametrize("name", STORES if LONG else ["parquet"])
def test_killed_anywhere_again_and_again(tmp_path: Path, name: StoreName) -> None:
    chance = random.Random(STORES.index(name))
    for _ in range(3):
        process = child(tmp_path, name, "join")
        for _ in range(chance.randint(1, 10)):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        process.kill()
        process.stdout.read()
        process.wait()
        process.stdout.close()
    output, _ = child(tmp_path, name, "join").communicate()
    assert output.endswith("done\n")
    check_exact(tmp_path, "join")
