"""Real SIGKILL: a window operator dies in a flush or before it acknowledges, and the receiver has every pane once."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.children.window_operator import JOBS, batches
from tests.helpers.forked import Forked
from tests.helpers.join_operator_messages import LEFT, RIGHT
from tests.helpers.operator_messages import SCHEMA, STORES, plain
from tests.helpers.process import LONG
from tidestate.statestore.spec.store import StoreName

MOMENTS = ("before-manifest", "after-manifest", "received")
BOUNDED: list[tuple[str, StoreName, str]] = [("windows", "memory", "received")]
"""After results were received: in every run that is a join, in `test_join_operator_killed`. Around the manifest a job
is killed in `tests.operators.local.test_standalone_killed`; a merge on RocksDB is killed anywhere, below.
"""


def child(folder: Path, name: StoreName, kind: str, *death: str) -> Forked:
    places = [folder / "root", name, folder / "cache", folder / "out", kind]
    return Forked("tests.children.window_operator", *places, *death)


def undisturbed(kind: str, folder: Path) -> list[tuple[object, ...]]:
    """The panes of a harness; each of its batches is in the order of offsets."""
    job = JOBS[kind]
    schema = {"left": LEFT, "right": RIGHT} if kind == "merge" else SCHEMA
    harness, panes = job.harness(schema, folder=folder), []
    for batch in batches(kind):
        rows = batch if isinstance(batch, dict) else batch.sort_by([("part", "ascending"), ("at", "ascending")])
        panes += plain(harness.feed(rows))
    return panes + plain(harness.finish())


def check_exact(folder: Path, kind: str) -> None:
    """Every line under one id is the same; one line of each are the panes of an undisturbed run."""
    taken: dict[int, list[list[object]]] = {}
    for line in (folder / "out").read_text().splitlines():
        checkpoint_id, rows = json.loads(line)
        assert taken.setdefault(checkpoint_id, rows) == rows
    wanted = json.loads(json.dumps(undisturbed(kind, folder / "harness"), default=str))
    assert any("retract" in row for row in wanted)
    assert sorted(map(repr, (row for rows in taken.values() for row in rows))) == sorted(map(repr, wanted))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "name", "moment"), list(itertools.product(JOBS, STORES, MOMENTS)) if LONG else BOUNDED
)
def test_killed_at_a_moment(tmp_path: Path, kind: str, name: StoreName, moment: str) -> None:
    for last in (6, 12) if LONG else (6,):  # again and again, below
        process = child(tmp_path, name, kind, f"{moment}:{last}")
        output, _ = process.communicate()
        died = process.returncode == -signal.SIGKILL
        assert died or (last == 12 and output.endswith("done\n"))
    output, _ = child(tmp_path, name, kind).communicate()
    assert output.endswith("done\n")
    check_exact(tmp_path, kind)


@pytest.mark.parametrize(("kind", "name"), list(itertools.product(JOBS, STORES)) if LONG else [("merge", "rocksdb")])
def test_killed_anywhere_again_and_again(tmp_path: Path, kind: str, name: StoreName) -> None:
    chance = random.Random(STORES.index(name))
    for _ in range(4 if LONG else 2):
        process = child(tmp_path, name, kind)
        for _ in range(chance.randint(1, 10)):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        process.kill()
        process.stdout.read()
        process.wait()
        process.stdout.close()
    output, _ = child(tmp_path, name, kind).communicate()
    assert output.endswith("done\n")
    check_exact(tmp_path, kind)
