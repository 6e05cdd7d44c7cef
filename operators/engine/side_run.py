"""A side run: recorded input is run again in a root of its own, from a checkpoint that is whole, for lost messages.

What a job makes follows from its state, its batches, their clock and where it was started again, so a side run ends
with the state of the job, messages included. Whether it did is checked by all that was not lost: the other tables,
the rows of the lost ones that are there, and what was emitted. Only then rows go to the job's own root, all in one
checkpoint. Else nothing does, and the log says what differs.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidestate.operators.bind.evolve_zones import by_zones
from tidestate.operators.bind.signs import as_it_began
from tidestate.operators.bind.stored_description import zones_of_job
from tidestate.operators.describe.runs import JobHook
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, Position, Runner
from tidestate.operators.engine.job_log import JobLog
from tidestate.operators.engine.rebuild import needs_side_run
from tidestate.operators.engine.recorded_steps import NotAsRecordedError, RecordedRun, RecordedStep, recorded_run
from tidestate.operators.engine.tasks import RowsOfPartitions, Transport
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import ReplayedPlan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState, panes_of
from tidestate.recovery.moves.fork import side_copy
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import CorruptionError, NotFoundError, TidestateError, UnavailableError, expect
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.messages.identities import known_rows
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.valuehash import hash_tables
from tidestate.statestore.stores.opening import open_store

log = logging.getLogger("tidestate")

_B = TypeVar("_B")
_P = TypeVar("_P")
SIDE_RUN = "side-run"
"""The folder of a root for side runs. A kill leaves it, and the next side run removes it."""
COMPARED = ("watermark_us", "origins", "numbering", "gone_us", "emitted")
"""What an operator has beside its tables that does not depend on when the job was started again."""


class SideRun(Generic[_B, _P]):
    """Puts back what operators of the ``main`` job lack. ``graph``: the job as it was described, which ``runner``
    runs; ``hook`` is called with moments of the side run, whose names begin with ``side-``.

    Where identities would do as well, it begins only if it is known to end as the job did: the job emits then what it
    would without a loss, while one whose messages come back by identities emits their windows at once.
    """

    def __init__(
        self, main: Driver[_B, _P], graph: Graph, transport: Transport[_B, _P], runner: Runner, hook: JobHook
    ) -> None:
        self._main, self._transport, self._runner, self._hook = main, transport, runner, hook
        graph = as_it_began(graph, main.head)
        self._head, self._graph = main.head, by_zones(graph, zones_of_job(main.head.operators, graph.plans))
        losses = {name: operator.rebuilding for name, operator in self._head.operators.items()}
        self._since = min(loss.since for loss in losses.values() if loss is not None)
        self._lost = {
            name: plan.message_tables
            for name, plan in graph.plans.items()
            if isinstance(plan, ReplayedPlan) and losses[name] is not None
        }
        self._folder = f"{SIDE_RUN}/{uuid.uuid4().hex}"
        self._driver: Driver[_B, _P] | None = None
        self._steps: list[RecordedStep] = []
        self._emitted: list[str] = []
        """Hashes of what it has emitted since checkpoint ``_compared``."""
        self._compared = 0
        self._begun = self._failed = self._unread = False
        self._by_identities = not needs_side_run(graph, self._head)
        self.start: Manifest | None = None
        """The checkpoint after which it begins; None for the beginning of the job."""
        self.first = 0
        """The number of the first batch that it needs."""
        with self._reported():
            run = recorded_run(main.job.checkpoint, self._head)
            if self._by_identities and (why := self._why_not_exact(run)):
                raise NotAsRecordedError(why)
            self.start, self.first, self._steps = run.start, run.first, list(run.steps)
            self._compared = self.start.id if self.start is not None else 0
            self._begin(run.partitions)
            log.info(
                "replay: the input is run again from %s, %d batches, then what is missing is put back",
                "its beginning" if run.start is None else f"checkpoint {run.start.id}",
                len(run.batches),
            )
            self._begun = True

    def _why_not_exact(self, run: RecordedRun) -> str:
        if any(plan.input.watermarks.idles for plan in self._graph.plans.values()):
            return "sources fall idle by a clock that no manifest has"
        return run.why_not_exact(self._since)

    @property
    def next_batch(self) -> RecordedStep | None:
        """The step that takes the next batch; None where it needs no more."""
        return None if self._failed else next((step for step in self._steps if step.kind == "batch"), None)

    def take(self, batch: _B, position: Position) -> None:
        """Run the next batch again, after what was done before it. The input is at ``position`` then."""
        with self._reported():
            self._run_until_batch()
            step, driver = self._steps.pop(0), expect(self._driver, "a side run has begun")
            # Where a manifest was collected, time stands still: no clock is right, and panes show what it changes.
            clock_us = driver.head.processing_us or 0 if step.clock_us is None else step.clock_us
            self._stepped(step, driver.batch(batch, clock_us, lambda _id: position))
            driver.skip_idle_time(clock_us)

    @property
    def left_to_identities(self) -> bool:
        """Whether it could not run to its end, and identities say what else to put back."""
        return self._failed and self._by_identities and (self._unread or not self._begun)

    def fail(self, why: str, *, unread: bool = False) -> None:
        """End it: nothing is put back. The log says ``why``. ``unread``: the source has a batch no more."""
        if self._failed:
            return
        self._failed, self._unread = True, unread
        if self.left_to_identities:
            log.info("replay: messages are put back by their identities, as batches cannot be run again: %s", why)
        else:
            # Identities are not asked here by themselves: they would believe rows that were not those of then.
            log.warning(
                "what is missing cannot be put back by running the input again: %s; the job goes on without it: "
                "start again with this policy if that has changed, %srewind to a checkpoint before the loss, or give "
                'up on it, Policy(messages="forget")',
                why,
                "give a replay that you trust to rebuild(…), " if self._by_identities else "",
            )

    def finish(self) -> Manifest | None:
        """Compare, and put back what is missing. Returns the checkpoint that has it; None if nothing was put back."""
        rows: RowsOfPartitions = {}
        if (step := self.next_batch) is not None:
            self.fail(f"the source did not give batch {step.batch} again", unread=True)
        if not self._failed:
            with self._reported():
                self._run_until_batch()
                self._compare_panes(self._head.id)
                rows = self._missing_rows()
        self.close()  # a kill from here on leaves nothing that the next start would have to know
        if self._failed:
            return None
        self._hook("side-compared", self._head.id)
        manifest = self._main.put_rows_back(rows)
        log.info("replay: all messages are back")
        return manifest

    def close(self) -> None:
        """Remove what it has written. Idempotent."""
        self._driver = None
        self._main.job.checkpoint.objects.clear(SIDE_RUN)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """What cannot be run again ends the side run, and not the job."""
        try:
            yield
        except UnavailableError:
            raise
        except NotAsRecordedError as error:
            self.fail(str(error), unread=error.unread)
        except TidestateError as error:
            self.fail(str(error))

    def _begin(self, partitions: int) -> None:
        source = self._main.job.checkpoint
        source.objects.clear(SIDE_RUN)
        if self.start is not None:
            checkpoint = side_copy(source, self.start, self._folder)
        else:
            checkpoint = Checkpoint.open_or_create(f"{source.objects.root.rstrip('/')}/{self._folder}")
        self._continue(checkpoint, partitions)

    def _continue(self, checkpoint: Checkpoint, partitions: int) -> None:
        """Start the job of the side run, again."""
        job = Job.begin(
            self._graph,
            checkpoint,
            Parquet(),
            partitions=partitions,
            runner=self._runner,
            hook=lambda moment, number: self._hook(f"side-{moment}", number),
        )
        job.log = _NoLog(checkpoint.objects.root)
        self._driver = Driver(job, self._transport)

    def _run_until_batch(self) -> None:
        """Do all that was done before the next batch, or to the end."""
        while self._steps and self._steps[0].kind != "batch":
            step, driver = self._steps.pop(0), expect(self._driver, "a side run has begun")
            checkpoint = driver.job.checkpoint
            if step.kind == "start":
                self._continue(checkpoint, driver.head.partitions)
            elif step.kind == "rescale":
                rescale(checkpoint.objects.root, step.partitions)
                self._continue(checkpoint, step.partitions)
            else:
                self._stepped(step, driver.tick(lambda batch: batch.after({}), step.clock_us))

    def _stepped(self, step: RecordedStep, made: Manifest) -> None:
        """Note what a step has emitted. Of steps whose manifests were collected it is known between two others what
        the job has emitted.
        """
        if made.panes:
            self._emitted.append(_panes_hash(expect(self._driver, "a side run has begun"), made.panes))
        if step.manifest is not None:
            counts, counts_again = _taken(step.manifest), _taken(made)
            if counts != counts_again:
                raise NotAsRecordedError(
                    f"checkpoint {step.until} had taken {counts}, and it took {counts_again} again",
                    unread=any(counts_again.get(name, 0) < count for name, count in counts.items()),
                )
            self._compare_panes(step.until)

    def _compare_panes(self, until: int) -> None:
        """Raise `NotAsRecordedError` if the job has emitted something else up to this checkpoint."""
        first, self._compared = self._compared + 1, until
        emitted, self._emitted = self._emitted, []
        source = self._main.job.checkpoint
        try:
            if first <= source.boundary().any_gone("panes"):
                raise NotFoundError("panes were deleted for their age", code="file-missing")
            files = [output.panes for output in source.outputs(first, until, of=self._head) if output.panes]
            was = [_panes_hash(self._main, refs) for refs in files]
        except (CorruptionError, NotFoundError) as error:
            if until >= self._since:
                raise NotAsRecordedError(f"what was emitted since the loss is not known: {error}") from None
            return  # the state has to do
        if was != emitted:
            when = ", after the loss," if until >= self._since else ""
            raise NotAsRecordedError(
                f"the job has emitted other panes up to checkpoint {until}{when} than it does with all messages"
            )

    def _missing_rows(self) -> RowsOfPartitions:
        """What is missing, by operator and state partition. Raises `NotAsRecordedError` if the side run has come to
        another state than the job.
        """
        driver = expect(self._driver, "a side run has begun")
        missing = {}
        for name, operator in self._head.operators.items():
            again = driver.head.operators[name]
            differs = [field for field in COMPARED if getattr(operator, field) != getattr(again, field)]
            if len(operator.partitions) != len(again.partitions):
                differs.append("partitions")
            if differs:
                raise NotAsRecordedError(f"operator {name} came to another state: {', '.join(differs)}")
            numbers = range(len(operator.partitions))
            missing[name] = {number: self._missing_of(name, number, operator, again) for number in numbers}
        return missing

    def _missing_of(
        self, name: str, number: int, operator: OperatorState, again: OperatorState
    ) -> dict[str, pa.Table]:
        """What a state partition lacks, by table."""
        side = expect(self._driver, "a side run has begun")
        missing = {}
        with ExitStack() as stack:
            view, view_again = (
                stack.enter_context(
                    open_store(Parquet(), driver.job.checkpoint.objects, "", state.tables, state.states[number])
                )
                for driver, state in ((self._main, operator), (side, again))
            )
            for spec in operator.tables:
                rows, rows_again = known_rows(view, spec), known_rows(view_again, spec)
                if spec.name in self._lost.get(name, ()):
                    # Rows that are still there are compared as those of other tables are.
                    is_there = np.asarray(view[spec.name].lookup(rows_again.select(spec.key_names)).found, bool)
                    missing[spec.name] = rows_again.filter(pa.array(~is_there))
                    rows_again = rows_again.filter(pa.array(is_there))
                if hash_tables({spec.name: rows}) != hash_tables({spec.name: rows_again}):
                    raise NotAsRecordedError(
                        f"operator {name} came to another state: table {spec.name} of state partition {number}, "
                        f"{rows.num_rows} rows, {rows_again.num_rows} when it was run again"
                    )
        return missing


def _taken(manifest: Manifest) -> dict[str, int]:
    """What a checkpoint has counted of its input."""
    return {name: n for name, n in manifest.counters.items() if name.rpartition(".")[2] in ("events", "accepted")}


def _panes_hash(driver: Driver[_B, _P], files: tuple[FileRef, ...]) -> str:
    """What the panes of a checkpoint are, in any order: that depends on the store, and on where the job was started
    again. Lists and the like stay in the order of rows that are equal otherwise.
    """
    outputs = driver.job.graph.outputs.items()
    hashes = [_output_hash(driver, panes_of(files, name), plan.delivered_schema) for name, plan in outputs]
    return " ".join(hashes)


def _output_hash(driver: Driver[_B, _P], files: tuple[FileRef, ...], schema: pa.Schema) -> str:
    panes = read_rows(driver.job.checkpoint, files, schema)
    columns = [
        column.cast(column.type.value_type) if pt.is_dictionary(column.type) else column for column in panes.columns
    ]
    # Lists and structs have no order in Arrow.
    keys = [column for column in columns if not pt.is_nested(column.type) and not pt.is_null(column.type)]
    names = [str(number) for number in range(len(keys))]
    if names:
        by_all = [(name, "ascending") for name in names]
        panes = panes.take(pc.sort_indices(pa.table(keys, names=names), sort_keys=by_all))
    return hash_tables({"panes": panes})


class _NoLog(JobLog):
    """Of a job whose checkpoints the job in the main root has logged before."""

    def published(self, *facts: object) -> None:
        """Log nothing of a checkpoint that nobody reads."""

    def end(self) -> None:
        """Log no totals: the job in the main root has them."""
