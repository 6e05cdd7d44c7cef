"""Faults inside of the process that runs the job."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias
from unittest import mock

from tidestate.operators.chaos.start import ChildStart, Notes
from tidestate.operators.describe.sinks import Refused
from tidestate.recovery.log.lease import LEASE_FOLDER
from tidestate.recovery.log.traces import REACHED
from tidestate.statestore.testing.calls import Call, Calls
from tidestate.statestore.testing.faults import Crash, When
from tidestate.statestore.testing.power import Disk

LONGEST_IN_A_SINK_S = 0.03
"""A kill within a call of the sink comes so long after its begin at the latest."""

BY_CLOCK = (LEASE_FOLDER, REACHED)
"""Folders in which a job writes every few seconds: a slow run has more such calls than the undisturbed one."""

_MOMENTS = {"before": "before the sink took", "during": "while the sink took", "after": "after the sink took"}


_Hook: TypeAlias = Callable[[Call, When, ChildStart, Notes], None]


def killed_now() -> NoReturn:
    """End this process by SIGKILL, so that nothing of it is cleaned up. Does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(9)


@contextmanager
def injected(start: ChildStart, notes: Notes) -> Iterator[None]:
    """The fault of this start, where that is at a call of the operating system; and a count of these calls."""
    kind = start.fault.kind if start.fault is not None else ""
    if kind == "power":
        with _power_cut(start, notes):
            yield
        return
    hooks: dict[str, _Hook] = {
        "kill": _Signalled(signal.SIGKILL),
        "storage": _Failing(),
        "freeze": _Signalled(signal.SIGSTOP),
    }
    hook = hooks.get(kind, _nothing)
    with Calls(start.folders.root, lambda call, phase: hook(call, phase, start, notes), BY_CLOCK) as calls:
        try:
            yield
        finally:
            notes.write("calls", count=calls.count)


def _place(call: Call, phase: When) -> str:
    return f"{phase} {call.name} {call.path or 'of the root'}, call {call.number}"


def _nothing(call: Call, phase: When, start: ChildStart, notes: Notes) -> None:
    """No fault at a call."""


class _Signalled:
    """Sends this process a signal, once: at the first call from the one meant on that reaches its moment.

    A call that fails by itself, such as a folder that another thread has just made, has no end.
    """

    def __init__(self, number: int) -> None:
        self._number, self._is_sent = number, False

    def __call__(self, call: Call, phase: When, start: ChildStart, notes: Notes) -> None:
        moment = start.fault.moment if start.fault is not None else "before"
        if moment == "during" and call.name != "write":  # only a write has a middle
            moment = "after"
        if self._is_sent or call.number < start.at_call or phase != moment:
            return
        self._is_sent = True
        notes.write("injected", where=_place(call, phase))
        os.kill(os.getpid(), self._number)


class _Failing:
    """Fails so many calls, from the first one that reaches its moment: one that fails by itself has no end."""

    def __init__(self) -> None:
        self._failures = 0

    def __call__(self, call: Call, phase: When, start: ChildStart, notes: Notes) -> None:
        fault = start.fault
        if fault is None or call.number < start.at_call or self._failures == fault.number:
            return
        if phase == ("after" if fault.moment == "after" else "before"):
            if not self._failures:
                repeats = f" and {fault.number - 1} more" if fault.number > 1 else ""
                notes.write("injected", where=f"{fault.detail} {_place(call, phase)}{repeats}")
            self._failures += 1
            number = getattr(errno, fault.detail)
            raise OSError(number, os.strerror(number), call.path)


@contextmanager
def _power_cut(start: ChildStart, notes: Notes) -> Iterator[None]:
    disk = Disk(start.folders.disk, start.at_call)
    disk.keep_all()
    with mock.patch.object(os, "fsync", disk.fsync):
        try:
            yield
        except Crash:
            notes.write("injected", where=f"at fsync {start.at_call}")
    if disk.crashed:
        disk.cut(start.folders.folder / "left")
        notes.write("cut")
        killed_now()


class FaultySink:
    """The user's sink, or one that takes everything; with the fault of this start at call ``at``, of the calls that
    all sinks of the job count together.
    """

    def __init__(self, sink: Any, start: ChildStart, notes: Notes, calls: Iterator[int]) -> None:
        self._sink, self._start, self._notes = sink, start, notes
        self._calls = calls

    def __call__(self, rows: Any, delivery: Any) -> Any:
        call, fault = next(self._calls), self._start.fault
        due = fault is not None and fault.kind in ("sink", "sink-kill") and call == self._start.at_call
        if due and fault is not None:
            outcome = {"raise": "raised", "refuse": "refused"}.get(fault.detail, "killed")
            self._notes.write("injected", where=f"{outcome} {_MOMENTS[fault.moment]} {delivery}")
            return self._raising(rows, delivery) if fault.kind == "sink" else self._killed(rows, delivery)
        return self._sink(rows, delivery)

    def _raising(self, rows: Any, delivery: Any) -> Any:
        fault = self._start.fault
        if fault is not None and fault.detail == "refuse":
            raise Refused("on purpose")
        if fault is not None and fault.moment == "after":
            self._sink(rows, delivery)
        raise ConnectionError("the sink broke, on purpose")

    def _killed(self, rows: Any, delivery: Any) -> NoReturn:
        fault = self._start.fault
        if fault is not None and fault.moment != "before":
            if fault.moment == "during":
                delay = fault.share * LONGEST_IN_A_SINK_S
                threading.Thread(target=_killed_after, args=(delay,), daemon=True).start()
            self._sink(rows, delivery)
        killed_now()

    def __getattr__(self, name: str) -> Any:
        """``ready``, ``behind`` and so on are the user's."""
        return getattr(self._sink, name)


def _killed_after(seconds: float) -> None:
    threading.Event().wait(seconds)
    killed_now()
