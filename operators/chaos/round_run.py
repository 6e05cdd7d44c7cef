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
    def place(self) -> RoundFolders:
        """The folders of the round: of its root, of the sink's target, and of what the sink was offered."""
        return self.start.place

    def go(self) -> str | None:
        """All faults, then starts without one until the job is done; why it is not, otherwise."""
        done = False
        for fault in self.plan.faults:
            done = self._upset(fault)
        for _ in range(LAST_STARTS):
            if done:
                return None
            ended = self._run(self._plain())
            if ended.hung:
                return "it does not end"
            done = ended.done
        return None if done else error_text(ended)

    def _plain(self) -> ChildStart:
        return replace(self.start, fault=None)

    def _upset(self, fault: Injected) -> bool:
        """Put a fault in; whether the job is done after it."""
        act: Callable[[Injected], bool] | None = getattr(self, f"_{fault.kind.replace('-', '_')}", None)
        if act is not None:
            return act(fault)
        ended = self._run(self._at_call(fault))
        self.note(fault, ended)
        if ended.notes.last("cut") is not None:
            self.place.disk.rename(self.place.folder / f"disk-{self.starts}")
            (self.place.folder / "left").rename(self.place.disk)
        return ended.done

    def _at_call(self, fault: Injected) -> ChildStart:
        """A start with this fault at a call of what is left to do."""
        there = {"sink": self.usual.batches, "sink-kill": self.usual.batches, "power": self.usual.calls / 4}
        calls = there.get(fault.kind, self.usual.calls) * self._left()
        return replace(self.start, fault=fault, at=1 + int(fault.share * max(2, calls)))

    def _left(self) -> float:
        """The share of the input that is left."""
        return 1 - self._done() / (self.usual.batches + 1)

    def _done(self) -> int:
        root = self.place.root
        head = Checkpoint.open(root).head() if (root / "tidestate.json").exists() else None
        taken = None if head is None else head.manifest.input
        return 0 if taken is None else taken.batches

    def _run(self, start: ChildStart, seed: int | None = None) -> Ended:
        with self.child(start, seed) as child:
            return child.ended(self.usual.patience_s)

    def child(self, start: ChildStart, seed: int | None = None) -> AbstractContextManager[Running]:
        """A process for a start of this round."""
        self.starts += 1
        return child_of(start, self.starts, seed=seed)

    def note(self, fault: Injected, ended: Ended, where: str | None = None) -> None:
        """Record a fault, and how the start that had it ended."""
        found = where or ended.injected
        outcome = "killed" if ended.failure is None and not ended.done else error_text(ended)
        if ended.done or ended.notes.last("done") is not None:
            outcome = "ended"
        self.put.append(Put(time.time(), fault.kind, found or "not reached", outcome, found is not None))

    def _again(self, fault: Injected) -> bool:
        ended = self._run(self._plain(), seed=1 + int(fault.share * 1000))
        self.note(fault, ended, "from the beginning, in another process")
        return ended.done

    def _recut(self, fault: Injected) -> bool:
        pieces = max(1, self.usual.batches + fault.number - 4)
        if pieces == self.usual.batches:
            pieces += 1
        ended = self._run(replace(self._plain(), pieces=pieces))
        self.note(fault, ended, f"in {pieces} batches")
        self.start = replace(self.start, pieces=pieces)
        return ended.done

    def _restart(self, fault: Injected) -> bool:
        return self._advanced(fault)

    def _advanced(self, fault: Injected | None, share: float = 0.5) -> bool:
        """Take some batches of those that are left; whether nothing is left."""
        left = self.usual.batches - self._done()
        wanted = 1 + int((share if fault is None else fault.share) * max(0, left - 1))
        ended = self._run(replace(self._plain(), batches=wanted))
        if fault is not None:
            self.note(fault, ended)
        return ended.done

    def _sudden(self, fault: Injected) -> bool:
        with self.child(self._plain()) as child:
            child.reached("begun", self.usual.patience_s)
            delay = fault.share * self.usual.seconds * self._left()
            time.sleep(delay)
            child.signal(signal.SIGKILL)
            ended: Ended = child.ended(self.usual.patience_s)
        self.note(fault, ended, f"{delay * 1000:.0f} ms after its begin")
        return ended.done

    def _freeze(self, fault: Injected) -> bool:
        with self.child(self._at_call(fault)) as sleeper:
            if not sleeper.reached("injected", self.usual.patience_s):
                ended: Ended = sleeper.ended(self.usual.patience_s)
                self.note(fault, ended)
                return ended.done
            other = self._run(self._plain())
            sleeper.signal(signal.SIGCONT)
            ended = sleeper.ended(self.usual.patience_s)
        self.note(fault, ended)
        return other.done

    def _race(self, fault: Injected) -> bool:
        with self.child(self._plain()) as one:
            time.sleep(fault.share * 0.1)
            with self.child(self._plain()) as other:
                both: list[Running] = [one, other]
                ended = [child.ended(self.usual.patience_s) for child in both]
        for child, which in zip(ended, ("the first of two", "the second"), strict=True):
            self.note(fault, child, f"{which}, {fault.share * 100:.0f} ms apart")
        return any(child.done for child in ended)

    def _gc(self, fault: Injected) -> bool:
        with self.child(replace(self._at_call(fault), fault=replace(fault, kind="kill"))) as child:
            runs, deleted = upsets.collect_meanwhile(self.place.root, child)
            ended: Ended = child.ended(self.usual.patience_s)
        self.note(fault, ended, f"{runs} collections, {deleted} files; {ended.injected or 'not killed'}")
        return ended.done

    def _damage(self, fault: Injected) -> bool:
        if self._advanced(None):
            return True
        with upsets.damaged_meanwhile(self.place.root, fault, self.chance) as what:
            ended = self._run(self._plain())
        self.note(fault, ended, what)
        return ended.done

    def _rewind(self, fault: Injected) -> bool:
        return self._advanced(None, 0.7) or self._moved(fault, upsets.rewound)

    def _rescale(self, fault: Injected) -> bool:
        return self._advanced(None, 0.3) or self._moved(fault, upsets.rescaled)

    def _moved(self, fault: Injected, move: Callable[[Path, Injected], str]) -> bool:
        """Something that a verb does to a root; not every job can."""
        try:
            where, reached = move(self.place.root, fault), True
        except UsageError as error:
            where, reached = str(error), False
        self.put.append(Put(time.time(), fault.kind, where, "ended" if reached else "refused", reached))
        return False


def error_text(ended: Ended) -> str:
    """How a start ended, in words."""
    if ended.hung:
        return "it did not end, and was killed"
    failure = ended.failure
    if failure is None:
        return "it died without an error"
    return f"{failure['kind']}: {failure['text']} ({failure['place']})"
