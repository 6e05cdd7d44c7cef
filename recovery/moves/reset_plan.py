"""A planned rewind or repair: back to an older checkpoint, and what that replays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from tidestate.recovery.inspect.verify import Finding
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.moments import checkpoint_at
from tidestate.recovery.log.ranges import ids_text
from tidestate.recovery.log.summary import pluralize, readable_time
from tidestate.recovery.moves.repair import plan_repair, plan_resync
from tidestate.recovery.moves.reset import Reset, execute_reset, plan_reset
from tidestate.recovery.moves.rewind import Replay, plan_replay
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.statestore.durations import Moment


@dataclass(frozen=True, repr=False, eq=False)
class ResetPlan(RootPlan):
    """Going back to an older checkpoint: ``reset``, with its effect, ``replay``; None where there is ``nothing`` to
    do. Of a repair with its ``findings``.
    """

    checkpoint: Checkpoint
    reset: Reset | None
    replay: Replay | None
    findings: tuple[Finding, ...] | None = None
    nothing: str = ""
    force: bool = False
    done: bool = False

    @classmethod
    def of_rewind(cls, checkpoint: Checkpoint, to: Moment, *, force: bool = False) -> Self:
        """Back to checkpoint ``to``, or the newest at that time. Raises as `plan_reset`."""
        number = checkpoint_at(checkpoint, to)
        reset = plan_reset(checkpoint, number)
        if reset.id == number + 1:
            reason = f"checkpoint {number} is the newest: there is nothing to undo"
            return cls(checkpoint, None, None, nothing=reason)
        return cls(checkpoint, reset, plan_replay(checkpoint, reset), force=force)

    @classmethod
    def of_repair(cls, checkpoint: Checkpoint, *, resync_spark: bool = False, force: bool = False) -> Self:
        """Back to the newest intact checkpoint; or with ``resync_spark`` to the newest, which rewrites Spark's own.
        Raises as `plan_repair` and `plan_resync`.
        """
        plan = plan_resync(checkpoint) if resync_spark else plan_repair(checkpoint)
        if plan.reset is None:
            return cls(checkpoint, None, None, (), nothing="nothing to repair")
        return cls(checkpoint, plan.reset, plan_replay(checkpoint, plan.reset), plan.findings, force=force)

    def execute(self) -> Self:
        """Go back. Raises as `execute_reset`; nothing was written then."""
        if self.reset is None:
            return self
        execute_reset(self.checkpoint, self.reset, force=self.force)
        return replace(self, done=True)

    def as_dict(self) -> dict[str, Any]:
        findings = {} if self.findings is None else {"findings": [asdict(finding) for finding in self.findings]}
        if self.reset is None or self.replay is None:
            return {"done": False, "reset": None, **findings}
        reset = {"reset": self.reset.id, "abandoned": self.reset.abandoned}
        return {"done": self.done, **reset, **asdict(self.replay), **findings}

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        if self.reset is not None and self.replay is not None:
            time = (readable_time(self.replay.created) or "-").partition(".")[0]
            yield "back to", f"checkpoint {self.replay.to}, created {time} UTC"
            yield "as checkpoint", f"{self.reset.id}; abandoned: {ids_text(self.reset.abandoned)}"
            yield from _replayed(self.replay)
            yield from _repeated(self.replay, limit)

    def lines(self) -> Iterator[str]:
        yield from map(str, self.findings or ())
        yield from super().lines()


def _replayed(replay: Replay) -> Iterator[Fact]:
    yield "watermark", readable_time(replay.watermark) or "-"
    yield "replayed", f"{pluralize(replay.events, 'event')} of {pluralize(replay.checkpoints, 'checkpoint')}"
    if replay.unreadable:
        yield "", f"and those of checkpoints that cannot be read: {', '.join(map(str, replay.unreadable))}"
    if replay.edits:
        yield "undone", f"edits of windows, which no replay brings back: {', '.join(map(str, replay.edits))}"
    if replay.batches:
        yield "input", pluralize(replay.batches, "batch", "batches")
    for span in replay.sources:
        files = "" if span.files is None else f" ({pluralize(len(span.files), 'file')})"
        yield f"source {span.source}", f"{span.begin or 'the beginning'} to {span.end}{files}"
        if span.starting_offsets is not None:
            yield "", f"startingOffsets {span.starting_offsets}"


def _repeated(replay: Replay, limit: int) -> Iterator[Fact]:
    for panes in replay.panes[:limit]:
        name = "repeats" if panes is replay.panes[0] else ""
        suffix = ", already delivered to the sink" if panes.delivered else ""
        yield name, f"{pluralize(panes.rows, 'pane')} of checkpoint {panes.checkpoint}{suffix}"
    if len(replay.panes) > limit:
        yield "", f"and those of {pluralize(len(replay.panes) - limit, 'more checkpoint')}"
    if repeats := [late for late in replay.late if late.delivered]:
        rows, checkpoints = sum(late.rows for late in repeats), pluralize(len(repeats), "checkpoint")
        yield "repeats", f"{pluralize(rows, 'late row')} of {checkpoints}, already delivered to the late sink"
