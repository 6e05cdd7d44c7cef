"""The verbs of the command line, for one root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import pyarrow as pa

from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.engine.start_plan import plan_start
from tidestate.operators.inspect.history.events import WindowHistory
from tidestate.operators.inspect.history.window_history import key_columns, window_history
from tidestate.operators.root.jobs import described_job, streams_of_job
from tidestate.operators.root.reprocessing import ReprocessPlan
from tidestate.operators.root.rooted import Rooted
from tidestate.operators.root.texts import key_texts
from tidestate.operators.sinks.withdrawal import WithdrawalPlan
from tidestate.recovery.inspect.health import health_of_root
from tidestate.recovery.inspect.limits import Health, HealthLimits, limits_of
from tidestate.recovery.inspect.rows import operator_of
from tidestate.recovery.inspect.verify import VerifyReport, verify
from tidestate.recovery.moves.plans import CollectionPlan, ForkPlan, PinPlan, RescalePlan, UnpinPlan
from tidestate.recovery.moves.reset_plan import ResetPlan
from tidestate.recovery.moves.stop import StopPlan
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.recovery.start.restore_drill import RestoreDrill, run_restore_drill
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment, Span, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.roots import checked_root
from tidestate.statestore.spec.plain import ArrowRows, as_table
from tidestate.statestore.spec.store import StoreName


@dataclass(frozen=True, repr=False)
class RootVerbs(Rooted):
    """What is found out about a root returns a value that prints itself. What changes it returns a plan: it prints
    itself too, and touches nothing before ``.execute()``, which does exactly what was planned, or refuses.
    """

    @checked
    def history(self, window: Moment, *, key: Any = None, operator: str | None = None) -> WindowHistory:
        """Why the result of a window is what it is: what was added to it, emitted, rejected, and when it expired.

        ``window``: its start or end, or a time in it and in no other window. ``key``: a value, a tuple if it has
        several columns, or its columns with their values.
        """
        checkpoint = self._whole("history(…)")
        _, state = operator_of(checkpoint.chosen(None).manifest, operator)
        return window_history(checkpoint, window, key_texts(key, key_columns(state)), operator)

    @checked
    def verify(self, *, read_data: float = 0.0, spark_checkpoint: bool = False) -> VerifyReport:
        """Whether all checkpoints and their files are there, and every byte of ``read_data`` percent of the files is
        right; with ``spark_checkpoint`` whether Spark's own agrees too.
        """
        return verify(self._whole("verify(…)"), read_percent=read_data, spark=spark_checkpoint)

    @checked
    def check(
        self,
        *,
        running: bool = False,
        max_lag: Span | None = None,
        max_age: Span | None = None,
        max_rejected: int | str | None = None,
        within: Span = "1 hour",
        max_undelivered: int | None = None,
        max_waiting: Span | None = None,
        count_idle: bool = False,
        starting_ok: bool = False,
    ) -> Health:
        """The job against limits: a driver has to be ``running``; how far the watermark of a source may be behind the
        clock, idle ones only with ``count_idle``; how old the newest checkpoint may be; how many rows may be rejected
        ``within`` a span, a number or "1%" of all; how many checkpoints a sink may be behind, and for how long it may
        refuse. ``.holds`` says whether all do; with ``starting_ok`` also of a root without a checkpoint.
        """
        limits = _limits(
            running="" if running else None,
            max_lag=_span_text(max_lag),
            max_age=_span_text(max_age),
            max_rejected=None if max_rejected is None else str(max_rejected),
            within=_span_text(within),
            max_undelivered=None if max_undelivered is None else str(max_undelivered),
            max_waiting=_span_text(max_waiting),
            count_idle="" if count_idle else None,
        )
        self._check_whole("check(…)")
        return health_of_root(self.url, limits, starting_ok=starting_ok)

    @checked
    def measure_restore(self, *, store: StoreName | None = None, parallel: int = 1) -> RestoreDrill:
        """How long a restore of the state takes, which is tried in a temporary folder, ``parallel`` state partitions
        at a time; by default into the job's store.
        """
        checkpoint, manifest = self._as_of()
        return run_restore_drill(checkpoint, manifest, store, parallel=parallel)

    @checked
    def plan(
        self,
        job: object,
        *,
        schema: pa.Schema | Mapping[str, pa.Schema] | None = None,
        policy: Policy | None = None,
        time_zone: str | None = None,
    ) -> StartPlan:
        """What a start of ``job``, a stream, at this root would change, drop, and be refused for; of what runs a job,
        also what its sinks could not store. Nothing is touched, and there is nothing to execute: start the job.
        Arguments as of its own ``plan``.
        """
        self._check_whole("plan(…)")
        streams = streams_of_job(job)
        return plan_start(
            streams.description,
            self.url,
            schema=schema,
            policy=policy,
            time_zone=time_zone,
            streams=streams.names,
            fit_sinks=getattr(job, "fit_sinks", None),
        )

    @checked
    def rewind(self, to: Moment, *, force: bool = False) -> ResetPlan:
        """Go back to an older checkpoint, by its id, a whole number, or the newest at a time: state, watermark and
        input position. The next start replays the input after it: give it the whole input, as ever. ``force``:
        although a job is running (a query, or a stream of batches that has not ended), which is fenced.
        """
        return ResetPlan.of_rewind(self._whole("rewind(…)"), to, force=force)

    @checked
    def repair(self, *, resync_spark: bool = False, force: bool = False) -> ResetPlan:
        """Make a damaged root usable again: go back to the newest intact checkpoint; or with ``resync_spark`` rewrite
        Spark's own checkpoint from our newest. Every byte that is needed is read; nothing is deleted.
        """
        return ResetPlan.of_repair(self._whole("repair(…)"), resync_spark=resync_spark, force=force)

    @checked
    def fork(self, destination: str | PathLike[str]) -> ForkPlan:
        """A new job in an empty folder, which goes on from the checkpoint of this root, the newest or that of
        ``.at(…)``. No state is copied, a pin keeps it. The job here may be running.
        """
        return ForkPlan.of(self.url, checked_root(destination), self.moment)

    @checked
    def pin(self, name: str = "", *, note: str = "") -> PinPlan:
        """Keep the checkpoint of this root, the newest or that of ``.at(…)``, until it is unpinned. By default the
        name is a random one.
        """
        checkpoint, manifest = self._as_of()
        return PinPlan.of(checkpoint, manifest.id, name, note)

    @checked
    def unpin(self, name: str, *, force: bool = False) -> UnpinPlan:
        """Remove a pin: `gc` may delete its checkpoint again. ``force``: although a forked job needs it."""
        return UnpinPlan.of(self._whole("unpin(…)"), name, force=force)

    @checked
    def gc(
        self,
        *,
        newest: int | None = None,
        age: Span | None = None,
        panes: Span | None = None,
        grace: Span = "1 hour",
    ) -> CollectionPlan:
        """Delete old checkpoints and the files that no other one needs; the job may be running. As many of the
        ``newest`` stay, those younger than ``age``, pinned ones, and those that were the newest within ``grace``;
        panes and ledgers, unless they are older than ``panes``.
        """
        retention = CheckpointRetention(newest=newest, age=age, panes=panes, grace=grace)
        return CollectionPlan.of(self._whole("gc(…)"), retention)

    @checked
    def rescale(self, partitions: int, *, force: bool = False) -> RescalePlan:
        """Another number of state partitions, from the next start on. No data is read or written."""
        return RescalePlan.of(self._whole("rescale(…)"), partitions, force=force)

    @checked
    def stop(self, *, drain: bool = False, timeout: Span = "1 minute") -> StopPlan:
        """End the job that runs here, in whatever process: who runs it and since when, and with ``.execute()`` it is
        asked, and waited for. With ``drain`` every window fires first, and the root accepts no more input. Raises
        `UsageError`: ``not-running``, or ``not-asked`` for a run that takes no requests.
        """
        return StopPlan.of(self._whole("stop(…)"), drain=drain, timeout_us=span_us(timeout))

    @checked
    def reprocess(
        self,
        job: object | None = None,
        *,
        operator: str | None = None,
        reason: str | None = None,
        rows: ArrowRows | None = None,
    ) -> ReprocessPlan:
        """Put back the late events of the ledgers of all operators, or of ``operator``, each once; or ``rows``, each
        time they are given; ``reason`` as in `Standalone.reprocess_late`. A run that is there is asked, in whatever
        process; where none is, this one does it, for which it needs the ``job``. Raises as `stop`, and as
        ``reprocess_late`` of a job.
        """
        description = None if job is None else described_job(job)
        table = None if rows is None else as_table(rows, None)
        return ReprocessPlan.of(self._whole("reprocess(…)"), description, operator, reason, table)

    def withdraw(self, sink: object) -> WithdrawalPlan:
        """Remove what the target of a sink, given as the job has it, has of checkpoints that a rewind or a repair has
        abandoned. The job must not run.
        """
        return WithdrawalPlan.of(self._whole("withdraw(…)"), sink)


def _span_text(span: Span | None) -> str | None:
    return None if span is None else text_of(span_us(span))


def _limits(**texts: str | None) -> HealthLimits:
    """The limits, whose options have dashes; errors call them as arguments."""
    try:
        return limits_of({name.replace("_", "-"): text for name, text in texts.items()})
    except UsageError as error:
        context = dict(error.context)
        if (option := context.pop("option", None)) is not None:
            context = {"parameter": str(option).replace("-", "_"), **context}
        raise UsageError(error.message, code=error.code, **context) from None
