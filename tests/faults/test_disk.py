"""A real disk that becomes read-only, and one that is full: errors that name the reason, then exact output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.children.disk import BATCHES
from tests.helpers.checkout import ROOT
from tests.helpers.namespaces import MOUNTING, WHY_NOT, may_mount
from tests.helpers.spark_inputs import job
from tests.helpers.spark_runs import output
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import Child

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not may_mount(), reason=WHY_NOT)]


def ended(runner: str, folder: Path) -> list[Any]:
    """How each try ended, after which the output is that of a disk without faults."""
    command = [*MOUNTING, sys.executable, "-m", "tests.children.disk", str(folder), runner]
    child = Child(command, folder / "log", cwd=ROOT)
    events = [tuple(event.values()) for event in child.events()]
    child.finish()
    _ = job().standalone(checkpoint=folder / "alone").run(BATCHES, drain=False)
    for kind in ("panes", "late"):
        assert output(folder / "root", kind) == output(folder / "alone", kind) != {}
    assert verify(Checkpoint.open(folder / "root"), read_percent=100).findings == ()
    return events


def test_standalone(tmp_path: Path) -> None:
    read_only, full = ("failed", "storage", "EROFS"), ("failed", "storage", "ENOSPC")
    assert ended("standalone", tmp_path) == [("ran",), read_only, ("ran",), full, full, ("ran",)]


@pytest.mark.long
@pytest.mark.spark
def test_on_spark(tmp_path: Path) -> None:
    """Its own log lies on the same disk: what a full one leaves of that is mended in every run, by
    `tests.spark.test_mended`.
    """
    assert [event[0] for event in ended("spark", tmp_path)] == ["ran", "failed", "ran", "failed", "failed", "ran"]


@pytest.mark.long
@pytest.mark.spark
def test_on_spark_connect(tmp_path: Path) -> None:
    """Each worker has another look at the root: the same disk that takes no file is no other folder."""
    events = ended("connect", tmp_path)
    assert [event[0] for event in events] == ["ran", "failed", "ran", "failed", "failed", "ran"]
    assert {event[1] for event in events if event[0] == "failed"} == {"storage"}
