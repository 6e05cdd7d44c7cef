"""Reprocessing of late events from the ledger, for windows that are retained."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.engine.delivery import as_written, read_rows
from tidestate.operators.engine.job import Job
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.reasons import EXPECTATION, PURGED, PUT_BACK_REASONS, UNDECODABLE, WHY_NEVER
from tidestate.operators.plan.stages import COMPUTED, rows_put_back, with_arrived
from tidestate.recovery.inspect.rows import in_columns
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, Output
from tidestate.recovery.log.renames import names_now
from tidestate.recovery.moves.fork import advice
from tidestate.statestore.arrays import Flags
from tidestate.statestore.errors import UsageError

log = logging.getLogger("tidestate")


@dataclass(frozen=True)
class LateRows:
    """Late events that a step processes again, given ones or those that wait in ledgers."""

    tables: dict[str, pa.Table]
    """By operator. None of them is empty."""
    ledgers: tuple[str, ...] = ()
    """The operators of which these are all late events that wait in the ledger; none if the events were given."""
    by_reason: Mapping[str, str] = field(default_factory=dict)
    """The operators of which these are all that wait for one reason, and this: others wait for another one."""

    @property
    def count(self) -> int:
        """How many events these are."""
        return sum(table.num_rows for table in self.tables.values())


def check_reason(reason: str | None, *, is_given: bool = False) -> None:
    """Raise `UsageError` (``feed-reason``) for a reason of which no row can be put back, and for any next to rows
    that are given, which have none.
    """
    if reason is None:
        return
    if is_given:
        raise UsageError(
            "a reason chooses rows of the late ledger: leave it out for rows that are given",
            code="feed-reason",
            reason=reason,
        )
    if reason not in PUT_BACK_REASONS:
        why = WHY_NEVER.get(reason, "what the row holds is refused each time")
        raise UsageError(
            f"rows of the late ledger with this reason are never put back ({why}): give mended rows, or name one of "
            "the reasons listed: reason=",
            code="feed-reason",
            reason=reason,
            there=list(PUT_BACK_REASONS),
        )


def late_rows(job: Job, rows: pa.Table | None, operator: str | None = None, reason: str | None = None) -> LateRows:
    """Events to reprocess: ``rows``, or all late events of the ledgers that were not reprocessed before, by default
    of every reason that can be put back. Those of other reasons wait on.

    Raises `UsageError` if no operator takes them, or several do and ``rows`` come without an ``operator``, or for a
    ``reason`` as `check_reason`.
    """
    check_reason(reason, is_given=rows is not None)
    taking = {name: plan for name, plan in job.graph.plans.items() if plan.reprocesses}
    chosen = check_operator(list(taking), operator, is_one=rows is not None)
    if rows is not None:
        return LateRows({chosen[0]: rows} if rows.num_rows else {})
    head, reasons = job.head, PUT_BACK_REASONS if reason is None else (reason,)
    ledgers = {name: [taking[name].late_schema.empty_table()] for name in chosen}
    up_to = {name: min(head.put_back_up_to(name, each) for each in reasons) for name in chosen}
    # Of one that was put back by reason before it is not known which others wait from before: some did.
    with_others = {name for name in chosen if reason is not None and name in head.fed_by_reason}
    for name, output in waiting_outputs(job.checkpoint, head, up_to):
        due_reasons = pa.array([each for each in reasons if output.id > head.put_back_up_to(name, each)])
        for rows_then in as_written(job.checkpoint, output.late_of(name)):
            names = names_now(head.operators[name].renamed, output.id)
            if reason is not None and _has_others(reason, rows_then):
                with_others.add(name)
            waiting_rows = rows_then.filter(pc.is_in(rows_then["reason"], due_reasons))
            ledgers[name].append(_in_form_of_now(taking[name], waiting_rows, names))
    waiting = {name: pa.concat_tables(tables) for name, tables in ledgers.items()}
    return LateRows(
        {name: table for name, table in waiting.items() if table.num_rows},
        tuple(name for name in chosen if name not in with_others),
        {name: reason for name in sorted(with_others) if reason is not None and waiting[name].num_rows},
    )


def _in_form_of_now(plan: Plan, written: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """Rows of a ledger, as they were ``written``, as the stages of now can take them; ``names``: what columns of then
    are called now.

    A row that could not be decoded comes back only to a job that decodes the same column, under the names of then: it
    has nothing else. It stays in the ledger otherwise, and that is logged. A row that came late has the columns that
    the operator saw too, and comes back with these if names have changed.
    """
    stages, ledger = plan.input.stages, in_columns(written, plan.late_schema, names)
    reasons = ledger["reason"]
    undecodable, unexpected = (pc.equal(reasons, reason).to_numpy() for reason in (UNDECODABLE, EXPECTATION))
    if stages is None:
        # Without stages everything is as expected; but columns that were computed then are not there.
        unexpected &= _computed(written)
    if stages is None and COMPUTED not in written.column_names:
        can_run = ~undecodable
    else:
        renamed = {name for names_then_now in names.items() if names_then_now[1] for name in names_then_now}
        if stages is not None and renamed & {name for step in stages.steps for name in step.makes}:
            can_run = np.zeros(ledger.num_rows, bool)
            ledger = with_arrived(stages, ledger, can_run)
        else:
            named_now = written.rename_columns([names.get(name) or name for name in written.column_names])
            ledger, can_run = rows_put_back(stages, ledger, named_now, plan.input.read_names)
            can_run = np.zeros(ledger.num_rows, bool) if stages is None else can_run
    for stay, why in ((undecodable & ~can_run, _NOT_DECODED), (unexpected & ~can_run, _NOT_JUDGED)):
        if stay.any():
            log.warning(why, int(stay.sum()), plan.name)
    return ledger.filter(pa.array(~(undecodable | unexpected) | can_run))


_NOT_DECODED = (
    "%d rows of %s that could not be decoded stay in the ledger: the job does not decode the column that they came "
    "in, or its columns have other names since; give what they hold as rows"
)
_NOT_JUDGED = (
    "%d rows of %s that missed an expectation stay in the ledger: it lacks columns that the stages of now need; give "
    "these rows with all columns, and name the columns in .allowed_lateness(ledger_columns=…) for the next ones"
)


def _computed(written: pa.Table) -> Flags:
    """Which rows of a ledger have columns that stages have made. Shape ``(rows,)``."""
    if COMPUTED not in written.column_names:
        return np.zeros(written.num_rows, bool)
    return pc.not_equal(pc.fill_null(written[COMPUTED], ""), "").to_numpy()  # type: ignore[no-any-return]


def _has_others(reason: str, rows: pa.Table) -> bool:
    """Whether some rows of a ledger can be put back for another reason."""
    others = pa.array([each for each in PUT_BACK_REASONS if each != reason])
    return bool(np.asarray(pc.is_in(rows["reason"], others)).any())


def waiting_outputs(checkpoint: Checkpoint, head: Manifest, up_to: Mapping[str, int]) -> Iterator[tuple[str, Output]]:
    """Outputs of the line of ``head`` with ledger files, oldest first, each with the name of an operator, where they
    are later than the checkpoint ``up_to`` which it has reprocessed its own.
    """
    earliest = min(up_to.values(), default=head.id)
    for output in checkpoint.outputs(earliest + 1, of=head):
        for name, last_id in up_to.items() if output.late else ():
            if output.id > last_id:
                yield name, output


def check_operator(taking: Sequence[str], operator: str | None, *, is_one: bool) -> list[str]:
    """The operators that process late events again, of those that can: all, or the one that is named. Raises
    `UsageError` if there is none (``feed``, ``feed-operator``), or several where ``is_one`` asks for one.
    """
    if not taking:
        raise UsageError(
            "no operator of this job can process late events again: a deduplication can, and windows except of edges "
            "and sessions of messages",
            code="feed",
        )
    chosen = [name for name in taking if operator in (None, name)]
    if not chosen or (is_one and len(chosen) > 1):
        raise UsageError(
            "name the operator that processes these events again, one of those listed: operator=",
            code="feed-operator",
            operator=operator,
            there=list(taking),
        )
    return chosen


def waiting_rows(checkpoint: Checkpoint, head: Manifest, operators: Iterable[str]) -> dict[tuple[str, str], int]:
    """How many rows the ledgers have since they were reprocessed last, by operator and reason."""
    counts = Counter[tuple[str, str]]()
    for name, output in waiting_outputs(checkpoint, head, {name: head.fed_up_to(name) for name in operators}):
        for rows in as_written(checkpoint, output.late_of(name)):
            for pair in pc.value_counts(rows["reason"]).to_pylist():
                if output.id > head.put_back_up_to(name, pair["values"]):
                    counts[name, pair["values"]] += pair["counts"]
    return dict(sorted(counts.items()))


def warn_of_purged(job: Job, fed: Manifest) -> None:
    """Log how to process late events of windows that have expired: fork the newest checkpoint that has them all, if
    one that is left has the windows.
    """
    for name, plan in job.graph.plans.items():
        rows = read_rows(job.checkpoint, fed.late_of(name), plan.late_schema)
        rows = rows.filter(pc.equal(rows["reason"], PURGED))
        if rows.num_rows:
            _warn(job, plan, fed, rows)


def _warn(job: Job, plan: Plan, fed: Manifest, rows: pa.Table) -> None:
    earliest = int(plan.needed_until(rows).min())
    kept = [
        manifest.id
        for manifest in job.checkpoint.history()
        if manifest.id < fed.id
        and (mark := manifest.operators.get(plan.name)) is not None
        and (mark.watermark_us is None or plan.expired_at(mark.watermark_us) < earliest)
    ]
    log.warning(
        "checkpoint %d: the windows of %d late events have expired: these events are in its late ledger again (%s)%s",
        fed.id,
        rows.num_rows,
        PURGED,
        (
            "; to process them, start a job that still has their windows, and call reprocess_late(rows) there: "
            f"{advice(job.checkpoint.objects.root, kept[-1])}"
        )
        if kept
        else "",
    )
