"""A round as it runs: one fault after the other, then starts without one until the job is done."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from tidestate.operators.chaos import upsets
from tidestate.operators.chaos.faults import Injected, RoundPlan
from tidestate.operators.chaos.process import Ended, Running, child_of
from tidestate.operators.chaos.start import ChildStart, RoundFolders
from tidestate.operators.engine.recorded_steps import batch_count
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError

LAST_STARTS = 3
"""After its faults a round has so many starts without one to get to its end."""


@dataclass(frozen=True)
class Put:
    """A fault as it was put in, or that its place was not reached."""

    at: float
    kind: str
    where: str
    outcome: str
    reached: bool = True


@dataclass(frozen=True)
class Usual:
    """The size of the undisturbed run: batches, calls of the operating system, seconds; and when a start hangs."""

    batches: int
    calls: int
    seconds: float
    patience_s: float


class RoundRun:
    """A round that goes on; all its faults are for the standalone runner."""

    def __init__(self, usual: Usual, plan: RoundPlan, start: ChildStart, chance: random.Random) -> None:
        self.usual, self.plan, self.start, self.chance = usual, plan, start, chance
        self.put: list[Put] = []
        self.starts = 0

    @property
    def folders(self) -> RoundFolders:
        """The folders of the round: of its root, of the sink's target, and of what the sink was offered."""
        return self.start.folders

    def go(self) -> str | None:
        """All faults, then starts without one until the job is done; why it is not, otherwise."""
        is_done = False
        for fault in self.plan.faults:
            is_done = self._upset(fault)
        for _ in range(LAST_STARTS):
            if is_done:
                return None
            end = self._run(self._plain())
            if end.hung:
                return "it does not end"
            is_done = end.done
        return None if is_done else error_text(end)

    def _plain(self) -> ChildStart:
        return replace(self.start, fault=None)

    def _upset(self, fault: Injected) -> bool:
        """Put a fault in; whether the job is done after it."""
        act: Callable[[Injected], bool] | None = getattr(self, f"_{fault.kind.replace('-', '_')}", None)
        if act is not None:
            return act(fault)
        end = self._run(self._at_call(fault))
        self.note(fault, end)
        if end.notes.last("cut") is not None:
            self.folders.disk.rename(self.folders.folder / f"disk-{self.starts}")
            (self.folders.folder / "left").rename(self.folders.disk)
        return end.done

    def _at_call(self, fault: Injected) -> ChildStart:
        """A start with this fault at a call of what is left to do."""
        calls_by_kind = {"sink": self.usual.batches, "sink-kill": self.usual.batches, "power": self.usual.calls / 4}
        calls = calls_by_kind.get(fault.kind, self.usual.calls) * self._left()
        return replace(self.start, fault=fault, at_call=1 + int(fault.share * max(2, calls)))

    def _left(self) -> float:
        """The share of the input that is left."""
        return 1 - self._done() / (self.usual.batches + 1)

    def _done(self) -> int:
        root = self.folders.root
        head = Checkpoint.open(root).head() if (root / "tidestate.json").exists() else None
        return batch_count(None if head is None else head.manifest)

    def _run(self, start: ChildStart, seed: int | None = None) -> Ended:
        with self.child(start, seed) as child:
            return child.ended(self.usual.patience_s)

    def child(self, start: ChildStart, seed: int | None = None) -> AbstractContextManager[Running]:
        """A process for a start of this round."""
        self.starts += 1
        return child_of(start, self.starts, seed=seed)

    def note(self, fault: Injected, end: Ended, where: str | None = None) -> None:
        """Record a fault, and how the start that had it ended."""
        location = where or end.injected
        outcome = "killed" if end.failure is None and not end.done else error_text(end)
        if end.done or end.notes.last("done") is not None:
            outcome = "ended"
        self.put.append(Put(time.time(), fault.kind, location or "not reached", outcome, location is not None))

    def _again(self, fault: Injected) -> bool:
        end = self._run(self._plain(), seed=1 + int(fault.share * 1000))
        self.note(fault, end, "from the beginning, in another process")
        return end.done

    def _recut(self, fault: Injected) -> bool:
        pieces = max(1, self.usual.batches + fault.number - 4)
        if pieces == self.usual.batches:
            pieces += 1
        end = self._run(replace(self._plain(), pieces=pieces))
        self.note(fault, end, f"in {pieces} batches")
        self.start = replace(self.start, pieces=pieces)
        return end.done

    def _restart(self, fault: Injected) -> bool:
        return self._advanced(fault)

    def _advanced(self, fault: Injected | None, share: float = 0.5) -> bool:
        """Take some batches of those that are left; whether nothing is left."""
        left = self.usual.batches - self._done()
        count = 1 + int((share if fault is None else fault.share) * max(0, left - 1))
        end = self._run(replace(self._plain(), batches=count))
        if fault is not None:
            self.note(fault, end)
        return end.done

    def _sudden(self, fault: Injected) -> bool:
        with self.child(self._plain()) as child:
            child.reached("begun", self.usual.patience_s)
            delay = fault.share * self.usual.seconds * self._left()
            time.sleep(delay)
            child.signal(signal.SIGKILL)
            end: Ended = child.ended(self.usual.patience_s)
        self.note(fault, end, f"{delay * 1000:.0f} ms after its begin")
        return end.done

    def _freeze(self, fault: Injected) -> bool:
        with self.child(self._at_call(fault)) as sleeper:
            if not sleeper.reached("injected", self.usual.patience_s):
                end: Ended = sleeper.ended(self.usual.patience_s)
                self.note(fault, end)
                return end.done
            rival = self._run(self._plain())
            sleeper.signal(signal.SIGCONT)
            end = sleeper.ended(self.usual.patience_s)
        self.note(fault, end)
        return rival.done

    def _race(self, fault: Injected) -> bool:
        with self.child(self._plain()) as first:
            time.sleep(fault.share * 0.1)
            with self.child(self._plain()) as second:
                children: list[Running] = [first, second]
                ends = [child.ended(self.usual.patience_s) for child in children]
        for child, name in zip(ends, ("the first of two", "the second"), strict=True):
            self.note(fault, child, f"{name}, {fault.share * 100:.0f} ms apart")
        return any(child.done for child in ends)

    def _gc(self, fault: Injected) -> bool:
        with self.child(replace(self._at_call(fault), fault=replace(fault, kind="kill"))) as child:
            runs, file_count = upsets.collect_meanwhile(self.folders.root, child)
            end: Ended = child.ended(self.usual.patience_s)
        self.note(fault, end, f"{runs} collections, {file_count} files; {end.injected or 'not killed'}")
        return end.done

    def _damage(self, fault: Injected) -> bool:
        if self._advanced(None):
            return True
        with upsets.damaged_meanwhile(self.folders.root, fault, self.chance) as damage:
            end = self._run(self._plain())
        self.note(fault, end, damage)
        return end.done

    def _rewind(self, fault: Injected) -> bool:
        return self._advanced(None, 0.7) or self._moved(fault, upsets.rewound)

    def _rescale(self, fault: Injected) -> bool:
        return self._advanced(None, 0.3) or self._moved(fault, upsets.rescaled)

    def _moved(self, fault: Injected, move: Callable[[Path, Injected], str]) -> bool:
        """Something that a verb does to a root; not every job can."""
        try:
            where, is_reached = move(self.folders.root, fault), True
        except UsageError as error:
            where, is_reached = str(error), False
        self.put.append(Put(time.time(), fault.kind, where, "ended" if is_reached else "refused", is_reached))
        return False


def error_text(end: Ended) -> str:
    """How a start ended, in words."""
    if end.hung:
        return "it did not end, and was killed"
    failure = end.failure
    if failure is None:
        return "it died without an error"
    return f"{failure['kind']}: {failure['text']} ({failure['place']})"
