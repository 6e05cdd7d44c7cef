"""Late events of the ledger that are put back: how many wait, and whether a run or this process does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.stored_description import zones_of_job
from tidestate.operators.bind.stored_streams import schemas_of_streams
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, drained_error
from tidestate.operators.engine.reprocess import check_operator, check_reason, late_rows, waiting_rows
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.inspect.plan_from_manifest import plan_of
from tidestate.operators.plan.reasons import PUT_BACK_REASONS
from tidestate.recovery.control.asker import Asker
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.requests import ReprocessRequest, RunBegun
from tidestate.recovery.log.summary import pluralize
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import public_url
from tidestate.statestore.spec.store import Parquet


@dataclass(frozen=True, repr=False, eq=False)
class ReprocessPlan(RootPlan):
    """Putting late events back: those of the ledger that were not before, or ``rows``. ``waiting`` counts those of
    the ledger by operator and reason; ``run`` does it, or this process with the ``job`` where none runs.
    """

    checkpoint: Checkpoint
    head: Manifest
    run: RunBegun | None
    job: Runnable | None
    operator: str | None
    reason: str | None
    rows: pa.Table | None
    waiting: dict[tuple[str, str], int]
    reprocessing: frozenset[str]
    put_back: int | None = None
    new_checkpoint: int = 0

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        job: Runnable | None = None,
        operator: str | None = None,
        reason: str | None = None,
        rows: pa.Table | None = None,
    ) -> Self:
        """Nothing is changed. Raises `UsageError`: ``not-running`` where no run can be asked and there is no ``job``,
        ``not-asked`` for a run that takes no requests, ``feed``, ``feed-operator`` or ``feed-reason`` as `late_rows`,
        ``drained``.
        """
        check_reason(reason, is_given=rows is not None)
        head, run = checkpoint.chosen(None).manifest, None
        if head.drained:
            raise drained_error(head.id)
        try:
            run = Asker(checkpoint.objects).run()
        except UsageError as error:
            if error.code != "not-running":
                raise
            if job is None:
                raise UsageError(
                    "no run of this job can be asked: start it, or give the job, MODULE:JOB, so that this process "
                    "does it",
                    code="not-running",
                ) from None
        reprocessing = [name for name in head.operators if plan_of(head, name).reprocesses]
        operators = check_operator(reprocessing, operator, is_one=rows is not None)
        counts = {}
        if rows is None:
            counts = waiting_rows(checkpoint, head, head.operators if operator is None else operators)
        return cls(checkpoint, head, run, job, operator, reason, rows, counts, frozenset(reprocessing))

    @property
    def done(self) -> bool:
        return self.put_back is not None

    def execute(self) -> Self:
        """Ask the run and wait, or do it here. Raises the error of the run, and as `Asker.answer` and `Job.begin`;
        `ConflictError` (``plan-moved``) where it is another run by now, or, without one, another checkpoint.
        """
        if self.run is not None:
            asker = Asker(self.checkpoint.objects)
            asker.check_same(self.run)
            answer = asker.ask(ReprocessRequest(self.operator, reason=self.reason), self.rows)
            return replace(self, put_back=answer.rows or 0, new_checkpoint=answer.checkpoint)
        return self._execute_here()

    def _execute_here(self) -> Self:
        if self.job is None:
            raise UsageError("the run that was there has ended: plan again, with the job", code="not-running")
        # Without sinks nothing is acknowledged: the next start of the job delivers the panes that this makes.
        checkpoint = self.checkpoint
        checkpoint.check_unmoved(self.head.id)
        fallback = zones_of_job(self.head.operators, self.head.operators).get
        graph = bind_graph(self.job, schemas_of_streams(self.job, self.head), fallback)
        job = Job.begin(
            graph, checkpoint, Parquet(), partitions=None, may_change=True, policy=Policy(second="refuse")
        )
        driver = Driver(job, InProcess())
        with driver.running():
            job.check_open()
            events = late_rows(job, self.rows, self.operator, self.reason)
            checkpoint_id = driver.reprocess_late(events).id if events.tables else 0
        return replace(self, put_back=events.count, new_checkpoint=checkpoint_id)

    def as_dict(self) -> dict[str, Any]:
        run = self.run
        return {
            "root": self.checkpoint.objects.root,
            "run": None if run is None else {"host": run.process.host, "pid": run.process.pid, "runner": run.runner},
            "waiting": [
                {"operator": name, "reason": reason, "rows": count, "put_back": self._is_put_back(name, reason)}
                for (name, reason), count in self.waiting.items()
            ],
            "given": None if self.rows is None else self.rows.num_rows,
            "put_back": self.put_back,
            "checkpoint": self.new_checkpoint or None,
            "done": self.done,
        }

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        run = self.run
        by = "this process, which the next start of the job goes on from"
        if run is not None:
            by = f"process {run.process.pid} on {run.process.host}, which runs the job"
        if self.put_back is not None:
            checkpoint = f", checkpoint {self.new_checkpoint}" if self.new_checkpoint else ""
            yield "put back", f"{pluralize(self.put_back, 'event')}{checkpoint}"
            yield "by", by
            return
        yield "to put back", self._to_put_back()
        for (name, reason), count in self.waiting.items():
            if not self._is_put_back(name, reason):
                yield "stay", f"{pluralize(count, 'row')} of {name} ({reason}): {self._why_stays(name, reason)}"
        yield "by", by
        yield "root", public_url(self.checkpoint.objects.root)

    def _to_put_back(self) -> str:
        if self.rows is not None:
            return f"{pluralize(self.rows.num_rows, 'event')}, given"
        parts = [
            f"{pluralize(count, 'event')} of {name} ({reason})"
            for (name, reason), count in self.waiting.items()
            if self._is_put_back(name, reason)
        ]
        return ", ".join(parts) or "nothing: the ledger has no late event that was not put back before"

    def _is_put_back(self, operator: str, reason: str) -> bool:
        return not self._why_stays(operator, reason)

    def _why_stays(self, operator: str, reason: str) -> str:
        """Why rows of an operator and a reason are not put back by this; empty where they are."""
        if reason not in PUT_BACK_REASONS:
            return "never put back"
        if operator not in self.reprocessing:
            return "this operator takes none back"
        return "" if self.reason in (None, reason) else "wait, as they have another reason"
