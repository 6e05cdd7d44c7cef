"""Withdrawal: what a target has of checkpoints that a rewind has abandoned is taken out of it.

A delivery is abandoned if its run is one of this root and its checkpoint is abandoned: numbers count up over rewinds,
and a run never comes again, so an id is of one delivery. What other jobs, or copies of this root, have put into the
same target stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.withdrawing import StoredDeliveries, WithdrawingSink
from tidestate.operators.sinks.withdrawn_runs import delivery_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import DeliveryId, Ids, Output, output_of
from tidestate.recovery.log.ranges import ids_text, merged_ranges
from tidestate.recovery.log.records import outputs_below
from tidestate.recovery.log.summary import pluralize
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.statestore.errors import CorruptionError, NotFoundError, UsageError


@dataclass(frozen=True)
class AbandonedOutput:
    """What of a root no longer counts: checkpoints, and of those that can be read the deliveries with their rows.
    ``newest``: the newest checkpoint; ``runs``: all that the root has a record of.
    """

    newest: int
    checkpoints: tuple[Ids, ...]
    deliveries: dict[DeliveryId, int]
    runs: frozenset[str]

    def has(self, delivery: DeliveryId) -> bool:
        """Whether this is one, also of a checkpoint that cannot be read any more."""
        return self.knows(delivery.run) and any(
            first <= delivery.checkpoint <= last for first, last in self.checkpoints
        )

    def knows(self, run: str) -> bool:
        """Whether this is a run of this root; for late rows the name of their operator follows it."""
        return run.partition("-")[0] in self.runs


@dataclass(frozen=True)
class WithdrawnDelivery:
    """A delivery to be removed; ``rows`` is None where nobody knows how many."""

    delivery: str
    checkpoint: int
    rows: int | None


@dataclass(frozen=True)
class Withdrawal:
    """A planned withdrawal of ``deliveries`` from the target of ``sink``, which keeps ``stays`` others: ``unknown``
    ones are of runs that this root has no record of. ``without_id``: how many rows have no id, which stay too.

    ``last``: up to which checkpoint the target then has had the deliveries of a run. ``newest``: the newest
    checkpoint when this was planned.
    """

    sink: str
    abandoned: tuple[Ids, ...]
    deliveries: tuple[WithdrawnDelivery, ...]
    stays: int
    unknown: int
    without_id: int
    last: dict[str, int]
    newest: int


@dataclass(frozen=True, repr=False, eq=False)
class WithdrawalPlan(RootPlan):
    """Removing what the target of a sink has of abandoned checkpoints."""

    checkpoint: Checkpoint
    target: object
    withdrawal: Withdrawal
    done: bool = False

    @classmethod
    def of(cls, checkpoint: Checkpoint, sink: object) -> Self:
        """What would be withdrawn; nothing is removed. Raises as `plan_withdrawal`."""
        return cls(checkpoint, sink, plan_withdrawal(checkpoint, sink))

    def execute(self) -> Self:
        """Remove it. Raises as `execute_withdrawal`."""
        execute_withdrawal(self.checkpoint, self.target, self.withdrawal)
        return replace(self, done=True)

    def as_dict(self) -> dict[str, Any]:
        facts = asdict(self.withdrawal)
        names = ("sink", "abandoned", "deliveries", "stays", "unknown", "without_id")
        return {**{name: facts[name] for name in names}, "done": self.done}

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        planned = self.withdrawal
        yield "target", planned.sink
        yield "abandoned", ids_text(planned.abandoned)
        yield "removed" if self.done else "to remove", _deliveries(planned.deliveries)
        yield "stays", pluralize(planned.stays, "delivery", "deliveries")
        if planned.unknown:
            yield "", f"{planned.unknown:,} of them are of runs that this root has no record of"
        if planned.without_id:
            yield "", f"{pluralize(planned.without_id, 'row')} without an id"


def plan_withdrawal(checkpoint: Checkpoint, sink: object) -> Withdrawal:
    """Plan to remove what the target of ``sink`` has of abandoned checkpoints; nothing is changed.

    Raises `UsageError` for a sink that has nothing to go by (``withdraw-sink``, ``withdraw-form``,
    ``withdraw-column``), and for rows that may be abandoned and have no id (``withdraw-unclear``); `UnavailableError`
    (``sink-refuses``) while the target is down.
    """
    withdrawing = _withdrawing(sink)
    abandoned = abandoned_output(checkpoint)
    runs = sorted({delivery.run for delivery in abandoned.deliveries})
    return _planned(abandoned, withdrawing.stored_deliveries(runs), str(sink))


def execute_withdrawal(checkpoint: Checkpoint, sink: object, planned: Withdrawal) -> None:
    """Remove what was planned, in one transaction of the target, or file by file, the newest first.

    Raises `UsageError` (``running``) while a driver runs the job, and `ConflictError` (``plan-moved``) if a
    checkpoint was published since it was planned: nothing was removed. Who died on the way plans again and goes on.
    """
    check_idle(checkpoint, instead="")
    checkpoint.check_unmoved(planned.newest)
    gone = [delivery for listed in planned.deliveries if (delivery := delivery_of(listed.delivery)) is not None]
    if gone:
        _withdrawing(sink).withdraw(gone, planned.last)


def abandoned_output(checkpoint: Checkpoint) -> AbandonedOutput:
    """What of this root no longer counts. Raises as `Checkpoint.chosen`."""
    head = checkpoint.chosen(None).manifest
    deliveries, runs = dict[DeliveryId, int](), set[str]()
    for output in _all_outputs(checkpoint):
        runs.add(output.run)
        if head.abandons(output.id):
            files = {**output.emitted, **output.ledgers}
            deliveries |= {delivery: sum(ref.rows for ref in refs) for delivery, refs in files.items() if refs}
    return AbandonedOutput(head.id, head.abandoned, deliveries, frozenset(runs))


def _withdrawing(sink: object) -> WithdrawingSink:
    if not isinstance(sink, IncludedSink):
        raise UsageError(
            "withdraw works only with the included sinks: give one as the job has it, or a function that returns "
            "it; from a sink of your own remove what it has stored under ids of abandoned checkpoints",
            code="withdraw-sink",
            found=type(sink).__name__,
        )
    if sink.changes == "upsert":
        raise UsageError(
            "the upserts of abandoned checkpoints have overwritten the valid rows, so there is nothing to go back "
            "to: start the job, which upserts its windows again, or give it a new target",
            code="withdraw-form",
            sink=str(sink),
        )
    if not isinstance(sink, WithdrawingSink):
        raise UsageError(sink.kept_for_good, code="withdraw-form", sink=str(sink))
    if sink.needs_column and sink.columns.delivery is None:
        raise UsageError(
            "the target does not store which delivery a row is from, so nothing can be withdrawn: remove the rows "
            'of abandoned checkpoints by hand, and give the sink delivery_column="…" for the next time',
            code="withdraw-column",
            sink=str(sink),
        )
    return sink


def _all_outputs(checkpoint: Checkpoint) -> Iterator[Output]:
    """The outputs of all checkpoints that can still be read, whether they count or not."""
    yield from outputs_below(checkpoint.objects, checkpoint.boundary())
    for _, read in checkpoint.load_each(checkpoint.stored_ids()):
        with suppress(CorruptionError, NotFoundError):
            yield output_of(read().manifest)


def _planned(abandoned: AbandonedOutput, stored: StoredDeliveries, sink: str) -> Withdrawal:
    ids = {text: delivery for text in stored.rows if (delivery := delivery_of(text)) is not None}
    gone = [delivery for delivery in ids.values() if abandoned.has(delivery)]
    _check_clear(abandoned, stored, gone, sink)
    return Withdrawal(
        sink,
        abandoned.checkpoints,
        tuple(_withdrawn(abandoned, stored, delivery) for delivery in sorted(gone, key=_by_checkpoint)),
        stays=len(stored.rows) - len(gone),
        unknown=len(stored.rows) - sum(abandoned.knows(delivery.run) for delivery in ids.values()),
        without_id=stored.without_id,
        last=_last(abandoned, stored, gone),
        newest=abandoned.newest,
    )


def _by_checkpoint(delivery: DeliveryId) -> tuple[int, str]:
    return delivery.checkpoint, delivery.run


def _withdrawn(abandoned: AbandonedOutput, stored: StoredDeliveries, delivery: DeliveryId) -> WithdrawnDelivery:
    rows = stored.rows[str(delivery)]
    if rows is None:
        rows = abandoned.deliveries.get(delivery)
    return WithdrawnDelivery(str(delivery), delivery.checkpoint, rows)


def _last(abandoned: AbandonedOutput, stored: StoredDeliveries, gone: Sequence[DeliveryId]) -> dict[str, int]:
    """Of the runs of these deliveries the checkpoint before the first that is abandoned."""
    firsts = {delivery.run: delivery.checkpoint for delivery in gone}
    # Also before those that the target has lost: what it remembers must not stand above any that will come again.
    for delivery in (*gone, *abandoned.deliveries):
        if delivery.run in firsts:
            firsts[delivery.run] = min(delivery.checkpoint, firsts[delivery.run])
    return {run: first - 1 for run, first in firsts.items() if _has_had(stored, run, first)}


def _has_had(stored: StoredDeliveries, run: str, number: int) -> bool:
    """Whether the target may have had this checkpoint of a run. What it cannot say it may."""
    last = stored.last.get(run)
    return last is None or last >= number


def _check_clear(abandoned: AbandonedOutput, stored: StoredDeliveries, gone: Sequence[DeliveryId], sink: str) -> None:
    """Raise `UsageError` (``withdraw-unclear``) where rows without an id may be those of abandoned deliveries, which
    the target has had.
    """
    missing = abandoned.deliveries.keys() - set(gone)
    lost = [delivery for delivery in missing if _has_had(stored, delivery.run, delivery.checkpoint)]
    if lost and stored.without_id:
        raise UsageError(
            "some rows have no delivery id, as they were stored before the sink had delivery_column=, and those "
            "of abandoned checkpoints are among them: remove these by hand, then set that column of the other "
            "rows without an id to any text",
            code="withdraw-unclear",
            sink=sink,
            checkpoints=sorted(delivery.checkpoint for delivery in lost),
            rows=stored.without_id,
        )


def _deliveries(removed: Sequence[WithdrawnDelivery]) -> str:
    """How many of them, of which checkpoints, with how many rows."""
    if not removed:
        return "nothing"
    count, rows = pluralize(len(removed), "delivery", "deliveries"), [delivery.rows for delivery in removed]
    ids = {delivery.checkpoint for delivery in removed}
    checkpoints = f"checkpoint{'s' * (len(ids) > 1)} {ids_text(merged_ranges((number, number) for number in ids))}"
    total = "" if None in rows else f", {pluralize(sum(filter(None, rows)), 'row')}"
    return f"{count} of {checkpoints}{total}"
