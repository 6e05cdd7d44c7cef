"""The first half of a step, next to the input: classify events, make partials, split them by state partition.

It needs no state, only the watermark at the start of the batch, so it runs where the input is read, and only partials
are sent on. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import PANE_TIME, count_timings
from tidestate.operators.plan.input_spec import Check, without_place
from tidestate.operators.plan.plan import ONLY, RECEIVED, REFUSED, Plan
from tidestate.operators.plan.reasons import (
    BAD_OFFSET,
    EDGE_ENDS,
    EXPECTATION,
    FILTERED,
    LEDGER_REASONS,
    NO_WINDOW,
    PURGED,
    VERY_LATE,
)
from tidestate.operators.plan.slicing import LeftOutRows, SlicedRows
from tidestate.operators.plan.stages import COMPUTED, StagedRows, Stages
from tidestate.operators.progress.numbers import MESSAGE_NUMBER
from tidestate.operators.progress.progress import (
    Claims,
    Context,
    GeneratorState,
    InputReading,
    joined_claims,
    peak_of,
    peak_with_sample,
    read_after_checks,
    read_before_checks,
    read_sliced,
    rows_of_sources,
    watermark_of,
)
from tidestate.operators.progress.watermarks import BEGINNING_US, LIMIT_US
from tidestate.statestore.arrays import Counters, Flags, Times, total
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.plain import plain_table, with_fields
from tidestate.statestore.spec.tables import TIME


@dataclass(frozen=True)
class PartitionedRows:
    """Rows in the order of their state partitions. ``counts``: the number of rows of each partition that has some,
    ascending by partition.
    """

    rows: pa.Table
    counts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rows: pa.Table, keys: list[str], partitions: int) -> PartitionedRows:
        """``rows``, by the hash of their ``keys``; in their order within each partition."""
        if not rows.num_rows:
            return cls(rows, ())
        if partitions == 1 or not keys:
            return cls(rows, ((0, rows.num_rows),))
        owners = partition_of(rows.select(keys), partitions)
        order = np.argsort(owners.astype(np.uint16 if partitions <= 1 << 16 else np.int64), kind="stable")
        counts = np.bincount(owners, minlength=partitions)
        present = np.flatnonzero(counts)
        return cls(rows.take(pa.array(order)), tuple(zip(present.tolist(), counts[present].tolist(), strict=True)))

    def __getitem__(self, partition: int) -> pa.Table:
        """The rows of one partition."""
        return self.between(partition, partition + 1).rows

    def between(self, first: int, last: int) -> PartitionedRows:
        """The rows of the partitions from ``first`` up to, but not including, ``last``."""
        counts = tuple((partition, rows) for partition, rows in self.counts if first <= partition < last)
        if len(counts) == len(self.counts):
            return self
        before = sum(count for partition, count in self.counts if partition < first)
        return PartitionedRows(self.rows.slice(before, sum(count for _, count in counts)), counts)

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Each partition that has rows, with them."""
        ends = accumulate(count for _, count in self.counts)
        for (partition, count), end in zip(self.counts, ends, strict=True):
            yield partition, self.rows.slice(end - count, count)


@dataclass(frozen=True)
class Classified:
    """A classified piece of input.

    ``partials``: rows of the plan's ``exchanged``; keys may repeat. ``rejected``: rows of the late ledger.
    ``claims``: what they say of how far the input has come.
    """

    partials: PartitionedRows
    rejected: pa.Table | None
    counters: Counters
    claims: Claims = field(default_factory=Claims)


def nothing_classified(plan: Plan) -> Classified:
    """The result of no input."""
    nothing = PartitionedRows(plan.exchanged.schema.empty_table(), ())
    return Classified(nothing, None, {})


PASSES = "_passes"
"""Whether a row passes the conditions of the stages, beside rows that are not judged yet."""
Timed: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Measures a phase while it is entered."""


def untimed(_phase: str) -> AbstractContextManager[None]:
    """A phase whose time nobody asks for."""
    return nullcontext()


def classify(
    plan: Plan,
    events: pa.Table,
    context: Context,
    partitions: int,
    timed: Timed = untimed,
    so_far: GeneratorState | None = None,
) -> Classified:
    """Classify ``events`` (columns of ``plan.input_schema``, others are ignored) for ``partitions`` partitions.
    ``so_far``: the state of the generator after earlier pieces of the same sources; by default at the start.

    Late events to reprocess may have a column with the start of the window that each is for, or null, as the ledger.
    """
    classified = _classified(plan, events, context, partitions, timed, so_far or context.before.generator)
    if plan.rows_are != "replay":
        return classified
    # What a replay rejects had been judged before, and nothing is counted twice.
    return replace(classified, rejected=None, counters={})


def _classified(
    plan: Plan, events: pa.Table, context: Context, partitions: int, timed: Timed, so_far: GeneratorState
) -> Classified:
    named = plan.named_windows(events) if plan.reprocessing else None
    if plan.input.stages is None:
        return _classified_rows(plan, conform(plan, events, context), named, context, partitions, timed, so_far)
    received = _staged(plan, plan.input.stages, events, context)
    if named is not None and received.flags is not None:
        named = named.filter(pa.array(received.flags))
    rows = received.rows
    if received.passes is not None:
        rows = rows.append_column(PASSES, pa.array(received.passes))
    classified = _classified_rows(plan, rows, named, context, partitions, timed, so_far)
    return _with_refusals(plan, classified, received, context)


def _classified_rows(
    plan: Plan,
    events: pa.Table,
    named: pa.ChunkedArray | None,
    context: Context,
    partitions: int,
    timed: Timed,
    so_far: GeneratorState,
) -> Classified:
    if plan.keeps_received:
        events = events.append_column(RECEIVED, events[plan.input.event_time].cast(pa.int64()))
    first = _source_first(plan, events, context, so_far)
    events = first.events if first else events
    if named is not None:
        events = events.append_column(ONLY, named)
    arrived, passes = events, None
    if PASSES in events.column_names:
        passes = events[PASSES].to_numpy()
        first = None if first is None else _without_left_out(first)
        events = events.filter(pa.array(passes)).drop_columns([PASSES])
    all_times = event_times(arrived[plan.input.event_time])
    times = all_times if passes is None else all_times[passes]
    keep, rejected, counters = judge(plan, events, context, times)
    accepted = events if keep is None else events.filter(pa.array(keep))
    claims, timely = Claims(), accepted
    if passes is not None:
        timely, claims = _timely(plan, arrived, passes, keep, context, all_times)
        counters[FILTERED] = int(np.count_nonzero(~passes))
    if not plan.reprocessing:
        of_rows, more = read_after_checks(plan.input.watermarks, timely, rejected, context.now_us)
        claims, counters = joined_claims([claims, of_rows]), counters | more
    if first is not None:
        claims = joined_claims([first.claims, claims])
        counters, rejected = _with_first(counters, first), _both(plan, first, rejected, context)
    if plan.observers:
        observed = (observer.read(accepted, context.before) for observer in plan.observers)
        claims = joined_claims([claims, *observed])
    times = times if accepted is events else event_times(accepted[plan.input.event_time])
    if not plan.reprocessing and timely.num_rows:
        timely_us = times if timely is accepted else event_times(timely[plan.input.event_time])
        claims = msgspec.structs.replace(claims, peak=peak_of(timely_us, timely, plan.named_by))
    if plan.classifies_late:
        whole = _with_reasons(events, first) if first and first.refused else events
        whole = _as_seen(plan, whole)
        sent = PartitionedRows.of(plan.arrive(whole, times, context), plan.input.key_names, partitions)
        nothing_yet = {name: 0 for name in counters if name not in (*LEDGER_REASONS, FILTERED)}
        nothing_yet |= {FILTERED: counters[FILTERED]} if FILTERED in counters else {}
        nothing_yet |= {name: many for name, many in first.counters.items() if name != EDGE_ENDS} if first else {}
        return Classified(sent, None, nothing_yet, claims)
    if not accepted.num_rows:
        return replace(nothing_classified(plan), rejected=rejected, counters=counters, claims=claims)
    rejected = with_refused(plan, accepted, rejected, counters, context, times)
    accepted = _as_seen(plan, accepted)
    with timed("group"):
        partials = PartitionedRows.of(plan.arrive(accepted, times, context), plan.input.key_names, partitions)
    return Classified(partials, rejected, counters, claims)


def _without_left_out(first: InputReading) -> InputReading:
    """What a generator refused, or took as the end of an edge, without rows that a condition leaves out."""
    refused, ends = first.refused, first.ends
    if refused is not None:
        rows, reasons = refused
        refused = rows.filter(rows[PASSES]).drop_columns([PASSES]), reasons.filter(rows[PASSES].combine_chunks())
    if ends is not None:
        ends = ends.filter(ends[PASSES]).drop_columns([PASSES])
    return replace(first, refused=refused, ends=ends)


def _timely(
    plan: Plan, arrived: pa.Table, passes: Flags, keep: Flags | None, context: Context, times: Times
) -> tuple[pa.Table, Claims]:
    """The rows that move the watermark, in their order, with the columns that are read for it: those that are
    accepted, ``keep`` of those that pass, and those that a condition leaves out and whose times would be. Also the
    claims of the others of these: their source is not idle. ``times``: of all rows that ``arrived``.

    A row that is left out needs no key, as it is in no result.
    """
    watermarks, event_time = plan.input.watermarks, plan.input.event_time
    by = [watermarks.by] if watermarks.by else []
    names = dict.fromkeys([event_time, *plan.named_by, *by, *watermarks.columns])
    rows = arrived.select([name for name in names if name in arrived.column_names])
    in_time = (times <= LIMIT_US) & (times >= -LIMIT_US)  # null is beyond
    if plan.input.order and len(misplaced := without_place(rows, plan.input.order)):
        in_time &= ~misplaced
    watermark_us = watermark_of(context.before)
    behind = ~passes & in_time & (times < (-LIMIT_US if watermark_us is None else watermark_us))
    if behind.any():
        reasons, _ = _judgement(plan, arrived.filter(pa.array(behind)), context, times[behind], ())
        in_time[behind] = True if reasons is None else reasons == ""
    in_time[passes] = True if keep is None else keep
    awake = ~passes & ~in_time
    claims = Claims()
    if not plan.reprocessing and awake.any():
        claims = Claims(rejected=rows_of_sources(watermarks, rows.filter(pa.array(awake))))
    return (rows if in_time.all() else rows.filter(pa.array(in_time))), claims


def classify_sliced(plan: Plan, sliced: SlicedRows, context: Context, partitions: int) -> Classified:
    """Classify accepted rows that were combined as `Plan.slicing` says: as `classify` does with the rows one by one,
    which would accept all of them. There is at least one entry.
    """
    watermark_us, rows = watermark_of(context.before), sliced.rows
    late = sliced.last_us < (BEGINNING_US if watermark_us is None else watermark_us)
    ahead_us = ahead_from(plan, watermark_us)
    future = np.zeros(len(rows), bool) if ahead_us is None else sliced.first_us > ahead_us
    counters = {"mildly_late": int(rows[late].sum()), "future": int(rows[future].sum()), "accepted": int(rows.sum())}
    counters["events"] = counters["accepted"]
    counters["on_time"] = counters["accepted"] - counters["mildly_late"] - counters["future"]
    window = plan.current_window(watermark_us)
    if window is not None:
        # Windows begin and end with slices, so all rows of one are on the same side of both bounds.
        counters |= count_timings(sliced.ends - 1, *window, rows)
    partials = PartitionedRows.of(plan.arrive_sliced(sliced), plan.input.key_names, partitions)
    return Classified(partials, None, counters, _claims_of_entries(plan, sliced.keys, sliced, context))


def classify_left_out(plan: Plan, left_out: LeftOutRows, context: Context) -> Classified:
    """Classify rows that are left out and were combined: as `classify` does with the rows one by one, which are in no
    partial and no ledger.
    """
    claims = _claims_of_entries(plan, left_out.sources, left_out, context)
    counters = {FILTERED: int(left_out.rows.sum())}
    return replace(nothing_classified(plan), counters=counters, claims=claims)


def _claims_of_entries(plan: Plan, columns: pa.Table, entries: SlicedRows | LeftOutRows, context: Context) -> Claims:
    """What combined rows say of how far the input has come. ``columns`` name their sources."""
    spec = plan.input
    times = pa.array(entries.last_us).cast(spec.schema.field(spec.event_time).type)
    latest = columns.append_column(spec.event_time, times)
    least_us = int(entries.first_us.min())
    peak = peak_with_sample(entries.last_us, latest, plan.named_by, least_us, entries.sample_us)
    return msgspec.structs.replace(read_sliced(spec.watermarks, latest, entries.rows, context.now_us), peak=peak)


def with_refused(
    plan: Plan,
    accepted: pa.Table,
    rejected: pa.Table | None,
    counters: Counters,
    context: Context,
    times: npt.NDArray[np.int64],
) -> pa.Table | None:
    """The ``rejected`` events, and for accepted ones, at these ``times``, the windows that refuse them; these are
    counted.
    """
    watermark_us = watermark_of(context.before)
    if watermark_us is None:
        return rejected
    partly = plan.refused(accepted, times, watermark_us)
    if partly is None:
        return rejected
    partly = plan.ledger(partly, PURGED if plan.reprocessing else VERY_LATE, watermark_us)
    counters["purged_windows" if plan.reprocessing else "refused_windows"] = partly.num_rows
    return partly if rejected is None else pa.concat_tables([rejected, partly])


def _source_first(plan: Plan, events: pa.Table, context: Context, so_far: GeneratorState) -> InputReading | None:
    """The rows as read by a generator that removes or changes rows (`Watermarks.filters_rows`), before
    classification.

    If it depends on the order of rows, those without a place in it are refused first.
    """
    if plan.reprocessing or not plan.input.watermarks.filters_rows:
        return None
    bad = _without_place(plan, events) if plan.input.watermarks.order else np.zeros(0, bool)
    began = context.before.generator
    if not len(bad):
        return read_before_checks(plan.input.watermarks, events, context.now_us, began, so_far)
    out, valid = events.filter(pa.array(bad)), events.filter(pa.array(~bad))
    reading = read_before_checks(plan.input.watermarks, valid, context.now_us, began, so_far)
    rows, reasons = reading.refused or (out.schema.empty_table(), pa.array([], pa.string()))
    why = pa.concat_arrays([reasons, pa.array([BAD_OFFSET] * out.num_rows, pa.string())])
    claims = joined_claims([reading.claims, Claims(rejected=rows_of_sources(plan.input.watermarks, out))])
    return replace(reading, claims=claims, refused=(pa.concat_tables([rows, out]), why))


def _with_first(counters: Counters, first: InputReading) -> Counters:
    """Counters with those of the generator; rows that it refused are events too."""
    reasons = first.refused[1] if first.refused is not None else pa.array([], pa.string())
    refused = {row["values"]: row["counts"] for row in pc.value_counts(reasons).to_pylist()}
    return total([counters, {"events": len(reasons)}, refused, first.counters])


def _with_reasons(events: pa.Table, first: InputReading) -> pa.Table:
    """The events, and what goes no further, with the reasons in a column."""
    going = [events.append_column(REFUSED, pa.nulls(events.num_rows, pa.string()))]
    if first.refused is not None:
        out, reasons = first.refused
        going.append(out.append_column(REFUSED, reasons))
    if first.ends is not None:
        going.append(first.ends.append_column(REFUSED, pa.array([EDGE_ENDS] * first.ends.num_rows, pa.string())))
    return pa.concat_tables(going, promote_options="default")


def _both(plan: Plan, first: InputReading, rejected: pa.Table | None, context: Context) -> pa.Table | None:
    """The ledger rows: those that the generator refused, then those rejected later."""
    if first.refused is None or not first.refused[0].num_rows:
        return rejected
    rows = plan.ledger(*first.refused, watermark_of(context.before))
    return rows if rejected is None else pa.concat_tables([rows, rejected])


def conform(plan: Plan, events: pa.Table, context: Context) -> pa.Table:
    """Rows of the input after its stages, in the columns of the plan's input and with its types. Raises `UsageError`
    if columns are missing or do not fit.
    """
    if plan.input.stages is None:
        return _added_and_typed(plan, _read(events, plan.input.read_names), events, context)
    return _staged(plan, plan.input.stages, events, context).rows


def _staged(plan: Plan, stages: Stages, events: pa.Table, context: Context) -> StagedRows:
    """Rows of the input after its stages, of the late ledger, or of a replay, too."""
    if plan.reprocessing:
        result = _again(plan, stages, events)
    else:
        result = stages.run(with_types(_read(events, plan.input.read_names), stages.read_schema))
    events = events if result.flags is None else events.filter(pa.array(result.flags))
    rows = _added_and_typed(plan, with_fields(result.rows, plan.input.schema.names), events, context)
    for _, name in stages.ledger_names:
        rows = rows.append_column(name, result.rows[name])
    if COMPUTED in result.rows.column_names:
        rows = rows.append_column(COMPUTED, result.rows[COMPUTED])
    return replace(result, rows=rows)


def _read(events: pa.Table, names: Sequence[str]) -> pa.Table:
    events = with_fields(events, names)
    if missing := [name for name in names if name not in events.column_names]:
        raise missing_columns("a batch lacks columns of the input", missing, events.column_names)
    return events.select(list(names))


def _added_and_typed(plan: Plan, rows: pa.Table, events: pa.Table, context: Context) -> pa.Table:
    """``rows``, which ``events`` are as they arrived, with the columns that are added, and in the plan's types."""
    for name in plan.input.added:
        # Rows of the ledger have the time that was added when they came first.
        has_times = plan.reprocessing and name in events.column_names
        times = events[name] if has_times else _added(name, rows, context.now_us)
        rows = rows.append_column(name, times.cast(plan.input.schema.field(name).type))
    return with_types(rows.select(plan.input.schema.names), plan.input.schema)


def _again(plan: Plan, stages: Stages, events: pa.Table) -> StagedRows:
    """Rows of the ledger: through the stages as these are now, where it has the rows as they arrived."""
    can_run = stages.can_run(events)
    if can_run.all():
        arrivals = _read(stages.arrivals(events), plan.input.read_names)
        return stages.run(with_types(arrivals, stages.read_schema))
    names = [name for name in plan.input.schema.names if name not in plan.input.added]
    seen_rows = _read(events.filter(pa.array(~can_run)), names)
    for missing in stages.arrival_fields:
        seen_rows = seen_rows.append_column(missing, pa.nulls(seen_rows.num_rows, missing.type))
    if not can_run.any():
        return StagedRows(seen_rows)
    result = _again(plan, stages, events.filter(pa.array(can_run)))
    staged_rows = with_fields(result.rows, names)
    if stages.is_marked:
        staged_rows = staged_rows.append_column(COMPUTED, stages.computed_of(staged_rows))
    staged_rows = staged_rows.select(seen_rows.column_names)
    row_numbers = np.flatnonzero(can_run)
    row_numbers = row_numbers if result.flags is None else row_numbers[result.flags]
    row_numbers = np.concatenate([row_numbers, np.flatnonzero(~can_run)])
    rows = pa.concat_tables([staged_rows, seen_rows.cast(staged_rows.schema)])
    flags, order = np.zeros(events.num_rows, bool), np.argsort(row_numbers)
    flags[row_numbers] = True
    passes = result.passes
    if passes is not None:
        passes = np.concatenate([passes, np.ones(seen_rows.num_rows, bool)])[order]
    return replace(result, rows=rows.take(pa.array(order)), flags=flags, passes=passes)


def _as_seen(plan: Plan, rows: pa.Table) -> pa.Table:
    """Rows without what only the late ledger has of them."""
    return rows if plan.input.stages is None else plan.input.stages.without_arrivals(rows)


def _with_refusals(plan: Plan, classified: Classified, received: StagedRows, context: Context) -> Classified:
    """With ledger rows of what stages refused: these are events, and like every rejected row claim no watermark, but
    their source is not idle.
    """
    refusals = received.refusals
    missed = {f"{EXPECTATION}:{name}": count for name, count in received.violations.items()}
    if missed:
        classified = replace(classified, counters={**classified.counters, **missed})
    if not refusals:
        return classified
    ledger_rows = [plan.ledger(rows, reason, watermark_of(context.before)) for rows, reason in refusals]
    if classified.rejected is not None:
        ledger_rows.append(classified.rejected)
    counter = "fed" if plan.reprocessing else "events"
    counts = [{counter: rows.num_rows, reason: rows.num_rows} for rows, reason in refusals]
    claims, watermarks = classified.claims, plan.input.watermarks
    if not plan.reprocessing:
        # A source that only the decoded value would have named is not known.
        parts = [rows for rows, _ in refusals if watermarks.by in (None, *rows.column_names)]
        of_sources = [Claims(rejected=rows_of_sources(watermarks, rows)) for rows in parts]
        # The peak is of the rows that go on: the parts that are joined here have none.
        claims = msgspec.structs.replace(joined_claims([*of_sources, claims]), peak=claims.peak)
    return replace(
        classified,
        rejected=pa.concat_tables(ledger_rows),
        counters=total([classified.counters, *counts]),
        claims=claims,
    )


def with_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows``, with the columns of ``schema`` in order, cast to its types. Raises `UsageError` if that fails."""
    if rows.schema.equals(schema):
        return rows
    plain = plain_table(rows)
    return pa.table([_cast(plain[field.name], field) for field in schema], schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(
            f"the values of a column do not fit its type in the first input ({error}): cast them",
            code="batch-type",
            column=field.name,
            found=str(column.type),
            needed=str(field.type),
        ) from None


def _added(name: str, events: pa.Table, now_us: int) -> pa.Array | pa.ChunkedArray:
    """Event times of rows without one: the processing time, the last instant of their windows, or a number, which the
    generator gives them.
    """
    if name == MESSAGE_NUMBER:
        return pa.nulls(events.num_rows, pa.int64())
    if name == PANE_TIME:
        return pc.subtract(events["window_end"].cast(TIME).cast(pa.int64()), 1)
    return pa.array(np.full(events.num_rows, now_us))


def _judgement(
    plan: Plan, events: pa.Table, context: Context, times: Times, checks: Sequence[Check]
) -> tuple[npt.NDArray[np.str_] | None, list[Flags]]:
    """Why each of ``events``, at these ``times``, is rejected, "" for one that is not; None if none is. Also which
    ones fail each of the ``checks``.
    """
    watermark_us = watermark_of(context.before)
    early = outside = np.zeros(0, bool)
    if watermark_us is not None:
        outside = outside if plan.reprocessing else plan.outside(events, times, watermark_us)
        early = plan.too_late(events, times, watermark_us)
    failed = [(failing(events, times), reason) for reason, failing in checks]
    reasons = _reasons(*failed, (early, PURGED if plan.reprocessing else VERY_LATE), (outside, NO_WINDOW))
    return reasons, [flags for flags, _ in failed]


def judge(
    plan: Plan, events: pa.Table, context: Context, times: Times
) -> tuple[Flags | None, pa.Table | None, Counters]:
    """Which of the events, at these ``times``, are accepted, None for all, of shape ``(events,)``; ledger rows of the
    others; and the classes of lateness, counted.
    """
    watermark_us = watermark_of(context.before)
    reasons, failing = _judgement(plan, events, context, times, plan.checks)
    keep = None if reasons is None else reasons == ""
    counters = _counted(plan, times, keep, watermark_us)
    if not plan.reprocessing:
        counters |= _by_current_window(plan, times, failing, watermark_us)
    if reasons is None or keep is None:
        return None, None, counters
    why = reasons[~keep]
    counters |= {reason: count for reason in LEDGER_REASONS if (count := int(np.count_nonzero(why == reason)))}
    return keep, plan.ledger(events.filter(pa.array(~keep)), pa.array(why, pa.string()), watermark_us), counters


def _counted(
    plan: Plan, times: npt.NDArray[np.int64], keep: npt.NDArray[np.bool_] | None, watermark_us: int | None
) -> Counters:
    """The number of events by class. ``keep``: which are accepted, None for all."""
    kept = times if keep is None else times[keep]
    accepted = len(kept)
    if plan.reprocessing:
        return {"fed": len(times), "fed_accepted": accepted}
    late = 0 if watermark_us is None else int(np.count_nonzero(kept < watermark_us))
    ahead_us = ahead_from(plan, watermark_us)
    future = 0 if ahead_us is None else int(np.count_nonzero(kept > ahead_us))
    return {
        "events": len(times),
        "mildly_late": late,
        "future": future,
        "accepted": accepted,
        "on_time": accepted - late - future,
    }


def _by_current_window(
    plan: Plan, times: npt.NDArray[np.int64], failing: list[npt.NDArray[np.bool_]], watermark_us: int | None
) -> Counters:
    """The number of events in time, past and future, of those that no check refuses: where there are windows."""
    window = plan.current_window(watermark_us)
    if window is None:
        return {}
    unfit = [flags for flags in failing if flags.any()]
    return count_timings(times[~np.logical_or.reduce(unfit)] if unfit else times, *window)


def ahead_from(plan: Plan, watermark_us: int | None) -> int | None:
    """Events with later times are ahead of the watermark by more than its delay and the tolerance together, and count
    as future; None if none do.
    """
    ahead_us = plan.input.future_us + plan.input.delay_us
    return None if watermark_us is None or ahead_us >= LIMIT_US else watermark_us + ahead_us


def _without_place(plan: Plan, events: pa.Table) -> npt.NDArray[np.bool_]:
    """Rows without a valid place in the order of their source; of length 0 if there are none."""
    by, orders = plan.input.watermarks.by, plan.input.watermarks.generator.orders
    if plan.input.order or by is None or not orders:
        return without_place(events, plan.input.order) if plan.input.order else np.zeros(0, bool)
    bad = np.zeros(events.num_rows, bool)
    for side, order in orders.items():
        of_side = np.asarray(pc.fill_null(pc.equal(events[by], side), False))
        found = without_place(events, order)
        bad |= found & of_side if len(found) else False
    return bad if bad.any() else np.zeros(0, bool)


def _reasons(*masks: tuple[npt.NDArray[np.bool_], str]) -> npt.NDArray[np.str_] | None:
    """The reason of each row: that of the first mask that has it, "" if it is accepted; None if all are accepted."""
    if not any(mask.any() for mask, _ in masks):
        return None
    rows = max(len(mask) for mask, _ in masks)
    reasons = np.full(rows, "", dtype="<U24")
    for mask, reason in reversed(masks):
        if len(mask):
            reasons[mask] = reason
    return reasons


def event_times(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Times in microseconds; null becomes the largest time, so that it is never late."""
    whole = column.cast(pa.int64())
    if whole.null_count:
        whole = pc.fill_null(whole, np.iinfo(np.int64).max)
    times: npt.NDArray[np.int64] = whole.to_numpy()
    return times
