"""What is recorded of accepted messages: themselves, where something needs them again, and their windows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Counted, Sliding
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.assignment import assign_windows, open_to, sliding_windows
from tidestate.operators.windows.counting import message_number, windows_of_numbers
from tidestate.operators.windows.expansion import bands, combined_parts, pairs_within
from tidestate.operators.windows.messages.tables import NUMBER, MessageWindows, batch_of, known_as_rejected
from tidestate.operators.windows.messages.window_metadata import add_messages, extend
from tidestate.operators.windows.names import COUNTED, END, EVENT, START
from tidestate.operators.windows.sessions import merge_sessions
from tidestate.operators.windows.tables import column_numbers, with_columns
from tidestate.statestore.arrays import Flags, Numbers, flags_at, one_table
from tidestate.statestore.errors import expect, of_type
from tidestate.statestore.messages.retention import tally
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.lists import struct_fields
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import among, firsts, ranks

Pairs: TypeAlias = tuple[Numbers, Numbers, Numbers]
"""Indices of messages, starts and ends of windows."""


def record(plan: MessageWindows, view: StateView, accepted: pa.Table, context: Context) -> ChangeSet:
    """Store ``accepted`` messages, and their offsets in the metadata of their windows."""
    if not accepted.num_rows:
        return {}
    numbers = _numbers(plan, view, accepted) if isinstance(plan.kind, Counted) else None
    refused = _refused_by_rule(plan, view, accepted, context) if plan.metadata.refuses else None
    pairs, kept = message_windows(plan, accepted, numbers, context), None
    if numbers is not None:  # what lies between counted windows is needed by none
        pairs, kept = iter([every := next(pairs)]), flags_at(accepted.num_rows, every[0])
    return _recorded(plan, view, accepted, pairs, refused, numbers, context, kept)


def record_taken(
    plan: MessageWindows, view: StateView, rows: pa.Table, rejected: pa.Table | None, context: Context
) -> ChangeSet:
    """As `record`, where triggers finish: of ``rows`` of `GroupTables.taken` those that their windows have not
    ``rejected``.
    """
    if not rows.num_rows:
        return {}
    fields, numbers = struct_fields(rows[EVENT].combine_chunks()), None
    events = pa.table(dict(zip(plan.input.schema.names, fields, strict=True)))
    if isinstance(plan.kind, Counted):
        numbers = _numbers(plan, view, events)
        index, starts, ends = next(message_windows(plan, events, numbers, context))
    else:
        index, count = ranks(plan.known_by.of(events))
        events = events.take(pa.array(firsts(index, count)))
        starts, ends = column_numbers(rows, START), column_numbers(rows, END)
    out = np.zeros(len(index), bool)
    if rejected is not None:
        out = _are_rejected(plan, plan.known_by.of(events).take(pa.array(index)), starts, rejected)
    taken, refused = (index[~out], starts[~out], ends[~out]), None
    kept = flags_at(events.num_rows, index[~out])
    if plan.metadata.refuses:
        both = zip((index[out], starts[out], ends[out]), _refused_by_rule(plan, view, events, context), strict=True)
        places, begins, over = (np.concatenate(pair) for pair in both)
        refused = places, begins, over
    return _recorded(plan, view, events, [taken], refused, numbers, context, kept)


def _recorded(
    plan: MessageWindows,
    view: StateView,
    accepted: pa.Table,
    pairs: Iterable[Pairs],
    refused: Pairs | None,
    numbers: Numbers | None,
    context: Context,
    kept: Flags | None = None,
) -> ChangeSet:
    """Of ``accepted`` messages, each once: what is in a window by ``pairs``, and what windows ``refused``. Those that
    are not ``kept`` (by default all are) were refused by all of their windows.
    """
    parts, again = [], []
    for index, starts, ends in pairs:
        batch = batch_of(plan, accepted.take(pa.array(index)), starts, ends)
        parts.append(_sessions(plan, view, batch, context) if plan.sessions else add_messages(plan.metadata, batch))
        if refused is not None and plan.reprocessing:
            again.append(plan.metadata.refused.conform_keys(batch))
    changes = {**_messages(plan, view, accepted, numbers, context, kept), **_together(plan, parts)}
    if refused is not None:
        index, starts, ends = refused
        batch = batch_of(plan, accepted.take(pa.array(index)), starts, ends)
        put = plan.metadata.refused.conform(batch if kept is None else batch.filter(pa.array(kept[index])))
        changes[plan.metadata.refused.name] = TableChanges(one_table(again), put)
    return changes


def record_between(plan: MessageWindows, view: StateView, accepted: pa.Table, context: Context) -> ChangeSet:
    """Store the ``accepted`` messages that lie between windows, which no step of windows sees."""
    between = between_windows(plan, accepted)
    return _messages(plan, view, accepted.filter(pa.array(between)), None, context) if between.any() else {}


def between_windows(plan: MessageWindows, events: pa.Table) -> Flags:
    """Which events lie between windows that leave gaps."""
    kind = plan.kind
    if not isinstance(kind, Sliding) or kind.slide <= kind.size or not events.num_rows:
        return np.zeros(events.num_rows, bool)
    times = events[plan.input.event_time].cast(pa.int64()).to_numpy()
    none: Flags = sliding_windows(kind, times, events)[1] == 0
    return none


def _refused_by_rule(plan: MessageWindows, view: StateView, accepted: pa.Table, context: Context) -> Pairs:
    """``accepted`` messages with each window that was closed to them, of those that are still known."""
    times = accepted[plan.input.event_time].cast(pa.int64()).to_numpy()
    nothing = np.zeros(0, np.int64)
    if (
        plan.rule != "window"
        or plan.reprocessing
        or context.watermark_before == BEGINNING_US
        or not plan.asks_refused
    ):
        return nothing, nothing, nothing
    kind, expired = of_type(plan.kind, Sliding), view[plan.metadata.refused.name].expired
    low = None if expired is None else expired + kind.size
    return kind.pairs(*sliding_windows(kind, times, accepted, low, plan.closed_at(context.watermark_before)))


def _are_rejected(plan: MessageWindows, identities: pa.Table, starts: Numbers, rejected: pa.Table) -> Flags:
    """Which (message, window) pairs are rows of the late ledger. A session's row names the one that refused it."""
    gone = plan.known_by.of(rejected)
    if not plan.sessions:
        gone = gone.append_column(START, rejected[START].cast(pa.int64()))
        identities = identities.append_column(START, pa.array(starts))
    return among(identities, gone, gone.column_names)


def _together(plan: MessageWindows, parts: list[ChangeSet]) -> ChangeSet:
    """What bands of pairs amount to: merges, where there are several."""
    if len(parts) < 2:
        return parts[0] if parts else {}
    return {
        spec.name: TableChanges(
            merge=combined_parts(spec, [rows for part in parts if (rows := part[spec.name].merge)])
        )
        for spec in plan.metadata.counted
    }


def message_windows(
    plan: MessageWindows, accepted: pa.Table, numbers: Numbers | None, context: Context
) -> Iterator[Pairs]:
    """Every (message, window) pair, without windows that take nothing any more: those of sliding windows in bands."""
    kind = plan.kind
    if isinstance(kind, Counted):
        index, starts = windows_of_numbers(
            expect(numbers, "messages of count windows are numbered"), kind.count, kind.step
        )
        yield index, starts, starts + kind.count
        return
    times = accepted[plan.input.event_time].cast(pa.int64()).to_numpy()
    closed = None
    if (plan.rule != "event" or plan.reprocessing) and context.watermark_before != BEGINNING_US:
        closed = plan.refused_at(context.watermark_before)
    if isinstance(kind, Sliding):
        first, counts = sliding_windows(kind, times, accepted, closed)
        for index, nth in bands(counts, pairs_within(accepted, context.budget_bytes)):
            ends = first[index] + nth * kind.slide
            yield index, ends - kind.size, ends
        return
    index, starts, ends = assign_windows(kind, times, accepted)
    if closed is not None:
        open_ = ends > closed
        index, starts, ends = index[open_], starts[open_], ends[open_]
    yield index, starts, ends


def _numbers(plan: MessageWindows, view: StateView, accepted: pa.Table) -> Numbers:
    """Which of its key each message is, as the step will number it."""
    keys = plan.keyed(accepted).select(plan.group_keys)
    owner, count = ranks(keys)
    before = view[COUNTED].lookup(keys.take(pa.array(firsts(owner, count)))).rows["count"]
    return message_number(owner, pc.fill_null(before, 0).to_numpy())


def _messages(
    plan: MessageWindows,
    view: StateView,
    accepted: pa.Table,
    numbers: Numbers | None,
    context: Context,
    kept: Flags | None = None,
) -> ChangeSet:
    """Messages that are ``kept``; others are known as rejected ones are."""
    tables = plan.messages
    if tables is None:
        return {}
    rows = plan.as_messages(accepted)
    if numbers is not None:
        rows = rows.append_column(NUMBER, pa.array(numbers))
    rows = tables.conform(rows)
    if plan.reprocessing:  # what comes back for one window may have been stored for others
        new = ~np.asarray(view[tables.messages.name].lookup(tables.messages.conform_keys(rows)).found, bool)
        rows, kept = rows.filter(pa.array(new)), None if kept is None else kept[new]
    changes = {}
    if kept is not None and not kept.all():
        rejected, rows = (rows.filter(pa.array(some)) for some in (~kept, kept))
        starts = rejected[MESSAGE_TIME].cast(pa.int64())
        changes[plan.identities.seen.name] = known_as_rejected(plan, view, rejected, starts, context)
    changes[tables.messages.name] = TableChanges(put=tables.messages.conform(rows))
    if tables.counts_sizes:
        changes[tables.sizes.name] = TableChanges(merge=tally(tables, rows))
    return changes


def _sessions(plan: MessageWindows, view: StateView, batch: pa.Table, context: Context) -> ChangeSet:
    """The same merging as in the step, so that metadata and groups tell of the same sessions."""
    keys, spec = plan.group_keys, plan.metadata.windows
    asked = batch.select(keys).group_by(keys, use_threads=False).aggregate([])
    stored = view[spec.name].ranges(asked).rows
    if context.watermark_before != BEGINNING_US and not plan.reprocessing:
        stored = open_to(plan, stored, context.watermark_before)
    bounds = [rows.select([*keys, START, END]) for rows in (stored, batch)]
    merged = merge_sessions(keys, pa.concat_tables(bounds))
    becomes = {name: merged.windows[name].cast(plan.bound_type).take(pa.array(merged.owner)) for name in (START, END)}
    old, new = stored.num_rows, batch.num_rows
    batch = with_columns(batch, {name: column.slice(old, new) for name, column in becomes.items()})
    # With all that is stored of them: what is merged needs no second look at the table.
    replaced = stored.append_column("new_start", becomes[START].slice(0, old))
    replaced = replaced.append_column("new_end", becomes[END].slice(0, old))
    touched = np.isin(merged.owner[:old], merged.owner[old:])
    return extend(plan.metadata, view, batch, replaced.filter(pa.array(touched)))
