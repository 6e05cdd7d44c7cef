"""The driver's side of a job: begin, commit, drain. Shared by the standalone and the Spark runner.

One method publishes, `commit`; everything before it can be thrown away, everything after it repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from operators.partition import PartitionResult, Round
from operators.plan import Plan
from operators.progress.advance_time import Advance
from operators.progress.buffered import BufferState
from operators.progress.tracker import Tracker
from operators.transition import total
from operators.watermarks import Progress, mark_of, restarted
from recovery.checkpoint import Checkpoint, Head, now_us
from recovery.manifest import (
    FORMAT,
    InputPosition,
    Kind,
    Manifest,
    OperatorState,
    SparkPosition,
)
from statestore.errors import IncompatibleError, UsageError, invariant
from statestore.files.segments import PartitionState
from statestore.store import StoreConfig

Hook = Callable[[str, int], None]
"""Called with the name of a moment and the checkpoint id it is about: for tests that kill the process there."""


def no_hook(_moment: str, _checkpoint_id: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Position:
    """Where the input stands after a checkpoint: one of the two, as the runner has it."""

    spark: SparkPosition | None = None
    input: InputPosition | None = None
    processing_us: int | None = None


class Job:
    """A plan on an opened checkpoint, in one writer epoch."""

    def __init__(self, plan: Plan, checkpoint: Checkpoint, store: StoreConfig, head: Head, hook: Hook) -> None:
        self.plan = plan
        self.checkpoint = checkpoint
        self._store = store
        self._head = head
        self._hook = hook
        self._progress = restarted(progress_of(self.head) or plan.watermarks.begin())

    @classmethod
    def begin(
        cls,
        plan: Plan,
        checkpoint: Checkpoint,
        store: StoreConfig,
        *,
        partitions: int,
        check: Callable[[Manifest | None], None] = lambda _head: None,
        hook: Hook = no_hook,
    ) -> Job:
        """Check that the job may continue here, then fence: publish the next manifest under a new writer epoch.

        Raises `IncompatibleError` for another job or a changed configuration, and whatever ``check`` raises;
        nothing has changed then.
        """
        newest = checkpoint.head()
        head = newest.manifest if newest else None
        if head is not None:
            _check_configuration(plan, head)
        check(head)
        if newest is not None and newest.manifest.drained:
            return cls(plan, checkpoint, store, newest, hook)  # nothing can follow, so nothing is fenced
        if head is None:
            _check_partitions(partitions)
            manifest = _first(plan, checkpoint, partitions)
        else:
            invariant(newest is not None, "a head has a checksum")
            manifest = msgspec.structs.replace(
                head,
                id=head.id + 1,
                parent=newest.checksum if newest else "",
                epoch=head.epoch + 1,
                writer=checkpoint.writer,
                kind="fence",
                created_us=now_us(),
                panes=(),
                late=(),
                counters={},
                watermark_before_us=head.watermark_us,
            )
        return cls(plan, checkpoint, store, checkpoint.publish(manifest), hook)

    @property
    def head(self) -> Manifest:
        """The newest checkpoint of this job."""
        return self._head.manifest

    def round(self, now_us: int | None = None, *, feeding: bool = False) -> Round:
        """What every partition is told about the next checkpoint, at this processing time (default: the last one's).
        ``feeding``: its input comes back from the late ledger.

        Raises `UsageError` once drained.
        """
        if self.head.drained:
            raise UsageError(
                "this checkpoint is drained: every window has fired, so it takes no new input; "
                "start with a new checkpoint folder",
                code="drained",
                id=self.head.id,
            )
        was = self.head.processing_us
        now = max(known) if (known := [t for t in (was, now_us) if t is not None]) else 0
        return Round(
            root=self.checkpoint.objects.root,
            job_id=self.checkpoint.marker.job_id,
            plan=self.plan,
            store=self._store,
            base=self._operator.partitions,
            sequence=self.head.id + 1,
            progress=self._progress,
            was_us=now if was is None else was,
            now_us=now,
            origins=self.head.origins,
            feeding=feeding,
        )

    @property
    def progress(self) -> Progress:
        """How far the sources have come."""
        return self._progress

    def waited(self, progress: Progress) -> None:
        """Time has gone by and nothing has changed but for how long sources have been quiet: nothing is published."""
        self._progress = progress

    def commit(
        self,
        results: Sequence[PartitionResult],
        kind: Kind,
        position: Position,
        *,
        delivered: int,
        drained: bool = False,
        fed: bool = False,
    ) -> Manifest:
        """Publish the next checkpoint; with ``fed``, as one that took the whole ledger so far.

        Raises `FencedError` or `ConflictError`; nothing was published then.
        """
        head, operator = self.head, self._operator
        results = sorted(results, key=lambda result: result.partition)
        self._check_results(results)
        self._hook("before-manifest", head.id + 1)
        counters = total([result.counters for result in results])
        max_events = [r.max_event_us for r in results if r.max_event_us is not None]
        if head.max_event_us is not None:
            max_events.append(head.max_event_us)
        manifest = Manifest(
            format=FORMAT,
            id=head.id + 1,
            parent=self._head.checksum,
            job_id=self.checkpoint.marker.job_id,
            epoch=head.epoch,
            writer=self.checkpoint.writer,
            kind=kind,
            created_us=now_us(),
            operators={self.plan.name: msgspec.structs.replace(operator, partitions=tuple(r.state for r in results))},
            watermark_us=mark_of(results[0].progress),
            watermark_before_us=head.watermark_us,
            max_event_us=max(max_events, default=None),
            processing_us=_latest(head.processing_us, position.processing_us),
            drained=drained,
            spark=position.spark or head.spark,
            input=position.input or head.input,
            panes=tuple(ref for result in results for ref in result.panes),
            late=tuple(ref for result in results for ref in result.late),
            delivered=delivered,
            counters=counters,
            totals=total([head.totals, counters]),
            **_kept(results[0].progress),
            due_us=min((r.due_us for r in results if r.due_us is not None), default=None),
            origins=results[0].origins or head.origins,
            fed=head.id if fed else head.fed,
        )
        self._head = self.checkpoint.publish(manifest)
        self._progress = results[0].progress
        self._hook("after-manifest", manifest.id)
        return manifest

    @property
    def _operator(self) -> OperatorState:
        return self.head.operators[self.plan.name]

    def _check_results(self, results: Sequence[PartitionResult]) -> None:
        """Every partition has answered once, from our base, and all saw the same input and watermark."""
        expected = [(i, state.lineage) for i, state in enumerate(self._operator.partitions)]
        found = [(result.partition, result.base_lineage) for result in results]
        invariant(found == expected, "each partition answers once, from the base it was told", found=found)
        for part in ("progress", "max_event_us", "inputs", "origins"):
            values = [getattr(result, part) for result in results]
            invariant(
                all(value == values[0] for value in values),
                "all partitions saw the same input",
                part=part,
                values=values,
            )


def progress_of(manifest: Manifest) -> Progress | None:
    """How far the sources had come; None before the first batch."""
    if manifest.progress is None:
        return None
    buffers = msgspec.convert(manifest.buffers, BufferState) if manifest.buffers is not None else None
    advances = msgspec.convert(manifest.advances, dict[str, Advance])
    return Progress(msgspec.convert(manifest.progress, Tracker), advances, buffers)


def _kept(progress: Progress) -> dict[str, Any]:
    """The manifest's fields of it, as plain values: `recovery` knows nothing of operators."""
    plain = msgspec.to_builtins(progress)
    return {"progress": plain["tracker"], "advances": plain["advances"], "buffers": plain["buffers"]}


def _first(plan: Plan, checkpoint: Checkpoint, partitions: int) -> Manifest:
    operator = OperatorState(
        configuration=plan.configuration,
        fingerprint=plan.fingerprint,
        tables=plan.tables,
        partitions=(PartitionState(),) * partitions,
    )
    return Manifest(
        format=FORMAT,
        id=1,
        parent="",
        job_id=checkpoint.marker.job_id,
        epoch=1,
        writer=checkpoint.writer,
        kind="fence",
        created_us=now_us(),
        operators={plan.name: operator},
    )


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= 1 << 15:
        raise UsageError("state has between 1 and 32768 partitions", code="partitions", found=partitions)


def _check_configuration(plan: Plan, head: Manifest) -> None:
    stored = head.operators.get(plan.name)
    if stored is None:
        raise IncompatibleError(
            "this checkpoint belongs to another job: give this job a folder of its own",
            code="other-job",
            expected=plan.name,
            found=sorted(head.operators),
        )
    if stored.fingerprint == plan.fingerprint:
        return
    changed = _difference(stored.configuration, plan.configuration) or {"input types": "changed"}
    raise IncompatibleError(
        "the job's configuration has changed since this checkpoint: put it back, or start with a new folder",
        code="configuration-changed",
        changed=changed,
    )


def _difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    names = sorted(old.keys() | new.keys())
    return {n: f"{old.get(n)!r} -> {new.get(n)!r}" for n in names if old.get(n) != new.get(n)}


def _latest(a: int | None, b: int | None) -> int | None:
    known = [value for value in (a, b) if value is not None]
    return max(known, default=None)
