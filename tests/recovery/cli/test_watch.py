"""A job that is watched: its screen in 80 columns, live in a terminal, once in a pipe."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console, Group

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.collected import TABLES
from tests.helpers.command import tidestate
from tests.helpers.forks import JOB, job
from tidestate import watermark
from tidestate.recovery.cli.watch import Watched
from tidestate.recovery.log.checkpoint import Checkpoint

PATIENCE_S = 60.0


def screen(watched: Watched) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(Group(*watched.lines()))
    return captured.get()


def test_it_follows_a_job_in_80_columns(tmp_path: Path) -> None:
    by_key = job(ts.stream(event_time="t").watermark(watermark.bounded("5 seconds"), by="k"))
    running = by_key.standalone(checkpoint=tmp_path / "root")
    watched: Watched | None = None
    for number, _panes in enumerate(running.stream(TABLES)):
        watched = watched or Watched(Checkpoint.open(tmp_path / "root"), 5)
        seen = screen(watched)
        assert f"checkpoint  {number + 2}, made" in seen
        assert f"process {os.getpid()} on" in seen
        assert max(map(len, seen.splitlines())) <= 80
    assert watched is not None
    seen = screen(watched)
    assert "no driver" in seen
    assert "standing" in seen, "its sources have a table"
    rows = [line.split() for line in seen.splitlines() if " batch " in line]
    assert [row[0] for row in rows] == [str(one) for one in range(11, 16)]
    assert all(row[-2] != "-" for row in rows), "each says how long it took"


def test_a_pipe_gets_it_once(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run(TABLES[:2])
    done = tidestate("watch", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("watermark") == 1


@pytest.mark.slow
def test_a_terminal_is_renewed_until_ctrl_c(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run(TABLES[:2])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tidestate.recovery.cli.main", "watch", str(tmp_path), "--every", "10 ms"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    watching = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment, preexec_fn=_hears_ctrl_c
    )
    os.close(theirs)
    try:
        _read_until(ours, "3, made")
        JOB.standalone(checkpoint=tmp_path).run(TABLES[:3])
        _read_until(ours, "5, made")
        watching.send_signal(signal.SIGINT)
        _read_to_the_end(ours)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)


def _hears_ctrl_c() -> None:
    """Tests that a shell runs in the background ignore it, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read_to_the_end(terminal: int) -> None:
    """Read until the other side is closed: a terminal that nobody reads is full, and its program waits for room."""
    with suppress(OSError):  # closed
        while os.read(terminal, 1 << 16):
            pass


def _read_until(terminal: int, text: str) -> None:
    found, end = "", time.monotonic() + PATIENCE_S
    while text not in found:
        assert time.monotonic() < end, found[-2000:]
        found += os.read(terminal, 1 << 16).decode(errors="replace")
