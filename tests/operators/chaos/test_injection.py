"""A fault at a call is put in even where that call fails by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidestate.operators.chaos.start import Notes

pytestmark = pytest.mark.kill

PROGRAM = """
import contextlib, sys
from pathlib import Path
from tidestate.operators.chaos.faults import Injected
from tidestate.operators.chaos.injection import injected
from tidestate.operators.chaos.start import ChildStart, Notes, RoundFolders

folder, kind = Path(sys.argv[1]), sys.argv[2]
place = RoundFolders(folder).made()
start = ChildStart(None, place, folder / "notes", fault=Injected(kind, 0.5, "after"), at_call=2)
with injected(start, Notes(start.notes)):
    for name in ("", "", "a", "b"):
        with contextlib.suppress(FileExistsError):
            (place.root / name).mkdir()
"""


def started(folder: Path, kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), kind])


def test_a_kill_comes_after_the_next_call_that_succeeds(tmp_path: Path) -> None:
    assert started(tmp_path, "kill").wait() == -signal.SIGKILL
    assert os.listdir(tmp_path / "disk" / "root") == ["a"]
    injected = Notes(tmp_path / "notes").last("injected")
    assert injected is not None
    assert injected["where"] == "after mkdir a, call 3"


def test_a_process_is_stopped_only_once(tmp_path: Path) -> None:
    process = started(tmp_path, "freeze")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert os.listdir(tmp_path / "disk" / "root") == ["a"]
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    assert sorted(os.listdir(tmp_path / "disk" / "root")) == ["a", "b"]
