"""Processes that run the job, so that they can be killed, stopped and woken up.

A start of Python with all imports takes half a second; so a server that has them forks each, but for those that are
to have another seed of hashes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from tidestate.operators.chaos.start import ChildStart, Notes

POLL_S = 0.005
_FORKS = multiprocessing.get_context("forkserver")
# Everything of ours and nothing of the user's.
_FORKS.set_forkserver_preload([f"tidestate.operators.{name}" for name in ("chaos.child", "local.standalone")])
_FRESH = multiprocessing.get_context("spawn")
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Ended:
    """How one start of the job ended: what its process noted, and whether it had to be killed because it hung."""

    start: ChildStart
    notes: Notes
    seconds: float
    hung: bool = False

    @property
    def done(self) -> bool:
        """Whether the job is at its end: nothing is left to do."""
        return self.notes.last("drained") is not None and self.failure is None

    @property
    def failure(self) -> dict[str, Any] | None:
        """The error that it ended with."""
        return self.notes.last("failed")

    @property
    def injected(self) -> str | None:
        """Where the fault was put in; None if it was never reached."""
        note = self.notes.last("injected")
        return None if note is None else str(note["where"])

    @property
    def calls(self) -> int:
        """Calls of the operating system, where they were counted."""
        note = self.notes.last("calls")
        return 0 if note is None else int(note["count"])


class JobProcess(Protocol):
    """A process that can be waited for and gets signals."""

    @property
    def pid(self) -> int:
        """The id of the process, which a kill is sent to."""

    def is_alive(self) -> bool:
        """Whether the process is still running."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, at most ``timeout`` seconds; None waits for ever."""

    def send(self, number: int) -> None:
        """Send the process the signal of this ``number``."""


class Running:
    """A start that goes on."""

    def __init__(self, start: ChildStart, process: JobProcess) -> None:
        self.start, self.notes = start, Notes(start.notes)
        self._process, self._began = process, time.monotonic()

    @property
    def pid(self) -> int:
        """The id of the process, which a kill is sent to."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        """To the process, if there still is one."""
        if self.alive:
            self._process.send(number)

    def reached(self, event: str, patience_s: float) -> bool:
        """Whether the process writes this down before it ends."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            alive = self._process.is_alive()
            if self.notes.last(event) is not None:
                return True
            if not alive:
                return False
            time.sleep(POLL_S)
        return False

    def ended(self, patience_s: float) -> Ended:
        """Wait for its end; a process that does not end is killed."""
        self._process.join(patience_s)
        hung = self._process.is_alive()
        if hung:
            self.signal(signal.SIGKILL)
            self._process.join()
        return Ended(self.start, self.notes, time.monotonic() - self._began, hung)


@contextmanager
def child_of(start: ChildStart, number: int, *, seed: int | None = None) -> Iterator[Running]:
    """A process for ``start``, its notes numbered; at the end of the block it is gone. ``seed`` of its hashes."""
    start = replace(start, notes=start.folders.folder / f"notes-{number:03d}.jsonl")
    with _gone_at_the_end(ForkedProcess("run_start", start, seed)) as process:
        yield Running(start, process)


@contextmanager
def _gone_at_the_end(process: ForkedProcess) -> Iterator[ForkedProcess]:
    """Start it; an interrupt may come as soon as it runs."""
    try:
        process.start()
        yield process
    finally:
        if process.is_alive():
            process.send(signal.SIGKILL)
            process.join()


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """A process of which a half was started reports the other half as missing: signals wait until it is.

    A mask would not do: another thread, and Arrow has some, would get the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _hash_seed(seed: int | None) -> Iterator[None]:
    """What starts inside hashes with this seed; None: as this process does."""
    before = os.environ.get("PYTHONHASHSEED")
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = str(seed)
    try:
        yield
    finally:
        os.environ.pop("PYTHONHASHSEED", None)
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before


class ForkedProcess:
    """A process that calls a function with a start, once it is started."""

    def __init__(self, function: str, start: ChildStart, seed: int | None = None) -> None:
        kind = _FORKS if seed is None else _FRESH
        self._process: BaseProcess = kind.Process(target=_called, args=(function, start))
        self._seed = seed

    def start(self) -> None:
        """Start the process; signals to this one wait until it has been started whole."""
        with _not_interrupted(), _hash_seed(self._seed):
            self._process.start()

    @property
    def pid(self) -> int:
        """The id of the process, which a kill is sent to."""
        return self._process.pid or 0

    def is_alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, at most ``timeout`` seconds; None waits for ever."""
        self._process.join(timeout)

    def send(self, number: int) -> None:
        """Send the process the signal of this ``number``."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def left_by(start: ChildStart, patience_s: float) -> Ended:
    """Let a process read what a run has left."""
    start = replace(start, notes=start.folders.folder / "notes-read.jsonl")
    start.notes.unlink(missing_ok=True)
    with _gone_at_the_end(ForkedProcess("read_left", start)) as process:
        return Running(start, process).ended(patience_s)


def _called(function: str, start: ChildStart) -> None:
    """In the process. What runs jobs is found by its name: the process that starts others has no job."""
    getattr(import_module("tidestate.operators.chaos.child"), function)(start)
