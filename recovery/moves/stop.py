"""The end of a run that goes on elsewhere: who runs the job, and the request that it stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from tidestate.recovery.control.asker import Asker
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import running
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.requests import RunBegun, StopRequest
from tidestate.recovery.log.summary import age_text, time_text
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.statestore.durations import text_of
from tidestate.statestore.secrets import public_url

ANSWER_MARGIN_S = 10.0
"""How much longer than the run itself an asker waits, so that the error of the run is the one that is seen."""


@dataclass(frozen=True, repr=False, eq=False)
class StopPlan(RootPlan):
    """Ending the ``run`` of a job, whose newest checkpoint was ``head`` when this was planned."""

    checkpoint: Checkpoint
    run: RunBegun
    head: Manifest
    drain: bool
    timeout_us: int
    waiting_us: int | None = None
    done: bool = False

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, drain: bool = False, timeout_us: int) -> Self:
        """Nothing is asked yet. Raises `UsageError`: ``not-running``, or ``not-asked``."""
        run, head, lease = Asker(checkpoint.objects).run(), checkpoint.chosen(None).manifest, running(checkpoint)
        waiting_us = lease.waiting_us if lease is not None else None
        return cls(checkpoint, run, head, drain, timeout_us, waiting_us)

    def execute(self) -> Self:
        """Ask the run, and wait until it has stopped. Raises its error, and as `Asker.answer`; `ConflictError`
        (``plan-moved``) where it is another run by now.
        """
        timeout_s, asker = self.timeout_us / 1e6, Asker(self.checkpoint.objects)
        asker.check_same(self.run)
        asker.ask(StopRequest(self.drain, timeout_s), timeout_s=timeout_s + ANSWER_MARGIN_S)
        return replace(self, head=self.checkpoint.chosen(None).manifest, done=True)

    def as_dict(self) -> dict[str, Any]:
        run = self.run
        return {
            "root": self.checkpoint.objects.root,
            "job": run.job,
            "runner": run.runner,
            "host": run.process.host,
            "pid": run.process.pid,
            "since": time_text(run.begun_us),
            "query": run.query,
            "drain": self.drain,
            "checkpoint": self.head.id,
            "drained": self.head.drained,
            "done": self.done,
        }

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        yield "stopped" if self.done else "to stop", f"{self.run.job}, in {public_url(self.checkpoint.objects.root)}"
        yield from _run_facts(self.run, self.head)
        if self.done:
            return
        if self.waiting_us is not None:
            yield "", f"it waits for a sink since {time_text(self.waiting_us)} UTC"
        if self.drain:
            yield "drain", "every window fires, and this root accepts no more input"
        yield "timeout", text_of(self.timeout_us)


def _run_facts(run: RunBegun, head: Manifest) -> Iterator[Fact]:
    """Who runs a job, since when, and how far it is."""
    now = now_us()
    yield "run by", f"process {run.process.pid} on {run.process.host}, {run.runner}"
    yield "since", f"{time_text(run.begun_us)} UTC, {age_text(run.begun_us, now)}"
    yield "checkpoint", f"{head.id:,}, {'drained' if head.drained else f'made {age_text(head.created_us, now)}'}"
