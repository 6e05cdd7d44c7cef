"""What is recorded of accepted messages: themselves, where something needs them again, and their windows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Counted, Sliding
from tidestate.operators.embedded.plan import NUMBER, OperatorPlan
from tidestate.operators.embedded.window_metadata import add_messages, extend
from tidestate.operators.plan.plan import ONLY
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.windows.assignment import assign_windows, last_refused, open_to, sliding_windows
from tidestate.operators.windows.counting import count_windows, number
from tidestate.operators.windows.expansion import bands, combined_parts, pairs_within
from tidestate.operators.windows.groups import int_bounds
from tidestate.operators.windows.names import COUNTED, END, NO_KEY, START
from tidestate.operators.windows.sessions import merge_sessions
from tidestate.statestore.arrays import Numbers, Values
from tidestate.statestore.errors import expect
from tidestate.statestore.messages.retention import tally
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView


@dataclass(frozen=True)
class Recorded:
    """Messages and metadata in one change set; ``newest`` is the latest start of a window that got a message."""

    changes: ChangeSet
    newest: int | None


def record(plan: OperatorPlan, view: StateView, accepted: pa.Table, at: StepTimes) -> Recorded:
    """Store ``accepted`` messages, and their offsets in the metadata of their windows."""
    if not accepted.num_rows:
        return Recorded({}, None)
    numbers = _numbers(plan, view, accepted) if isinstance(plan.kind, Counted) else None
    parts, newest = [], None
    for index, starts, ends in _pairs(plan, accepted, numbers, at):
        batch = _batch(plan, accepted.take(pa.array(index)), starts, ends)
        parts.append(_sessions(plan, view, batch, at) if plan.sessions else add_messages(plan.metadata, batch))
        newest = max([int(starts.max()), *([] if newest is None else [newest])]) if len(starts) else newest
    return Recorded({**_messages(plan, accepted, numbers), **_together(plan, parts)}, newest)


def _batch(plan: OperatorPlan, rows: pa.Table, starts: Numbers, ends: Numbers) -> pa.Table:
    columns: list[Values] = [rows[name] for name in plan.key_names] or [pa.array(np.zeros(rows.num_rows, np.int8))]
    names = [*(plan.key_names or [NO_KEY]), START, END, "origin", "offset"]
    bounds = [pa.array(values).cast(plan.bound_type) for values in (starts, ends)]
    return pa.table([*columns, *bounds, rows[plan.origin], rows[plan.offset]], names=names)


def _together(plan: OperatorPlan, parts: list[ChangeSet]) -> ChangeSet:
    """What bands of pairs amount to: merges, where there are several."""
    if len(parts) < 2:
        return parts[0] if parts else {}
    return {
        spec.name: TableChanges(
            merge=combined_parts(spec, [rows for part in parts if (rows := part[spec.name].merge)])
        )
        for spec in plan.metadata.specs
    }


def _pairs(
    plan: OperatorPlan, accepted: pa.Table, numbers: Numbers | None, at: StepTimes
) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Every (message, window) pair, without windows that take nothing any more: those of sliding windows in bands."""
    kind = plan.kind
    if isinstance(kind, Counted):
        index, starts = count_windows(
            expect(numbers, "messages of count windows are numbered"), kind.count, kind.step
        )
        yield index, starts, starts + kind.count
        return
    times = accepted[plan.event_time].cast(pa.int64()).to_numpy()
    closed = None
    if (plan.rule != "event" or at.reprocessing) and at.before != BEGINNING_US:
        closed = last_refused(plan, at.before, reprocessing=at.reprocessing)
    if isinstance(kind, Sliding):
        first, counts = sliding_windows(kind, times, accepted, closed)
        for index, nth in bands(counts, pairs_within(accepted, at.budget_bytes)):
            ends = first[index] + nth * kind.slide
            yield index, ends - kind.size, ends
        return
    index, starts, ends = assign_windows(kind, times, accepted)
    if closed is not None:
        open_ = ends > closed
        index, starts, ends = index[open_], starts[open_], ends[open_]
    yield index, starts, ends


def _numbers(plan: OperatorPlan, view: StateView, accepted: pa.Table) -> Numbers:
    """Which of its key each message is, as the step will number it."""
    keys = plan.group_keys
    if not plan.key_names:
        accepted = accepted.append_column(NO_KEY, pa.array(np.zeros(accepted.num_rows, np.int8)))
    asked = accepted.select(keys).group_by(keys, use_threads=False).aggregate([])
    before = view[COUNTED].lookup(asked).rows
    before = before.set_column(before.num_columns - 1, "count", pc.fill_null(before["count"], 0))
    return number(keys, accepted, before)


def _messages(plan: OperatorPlan, accepted: pa.Table, numbers: Numbers | None) -> ChangeSet:
    tables = plan.messages
    if tables is None:
        return {}
    rows = plan.as_messages(accepted)
    if numbers is not None:
        rows = rows.append_column(NUMBER, pa.array(numbers))
    if ONLY in accepted.column_names:  # what comes back for one window has been stored for the others
        rows = rows.filter(accepted[ONLY].is_null())
    stored = tables.conform(rows)
    changes = {tables.messages.name: TableChanges(put=tables.messages.conform(stored))}
    if tables.counts_sizes:
        changes[tables.sizes.name] = TableChanges(merge=tally(tables, stored))
    return changes


def _sessions(plan: OperatorPlan, view: StateView, batch: pa.Table, at: StepTimes) -> ChangeSet:
    """The same merging as in the step, so that metadata and groups tell of the same sessions."""
    keys, spec = plan.group_keys, plan.metadata.windows
    asked = batch.select(keys).group_by(keys, use_threads=False).aggregate([])
    stored = view[spec.name].ranges(asked).rows.select([*keys, START, END])
    if at.before != BEGINNING_US and not at.reprocessing:
        stored = open_to(plan, stored, at.before)
    merged = merge_sessions(keys, int_bounds(pa.concat_tables([stored, batch.select(stored.column_names)])))
    becomes = {name: merged.windows[name].cast(plan.bound_type).take(pa.array(merged.owner)) for name in (START, END)}
    old, new = stored.num_rows, batch.num_rows
    for name in (START, END):
        batch = batch.set_column(batch.column_names.index(name), name, becomes[name].slice(old, new))
    replaced = stored.select([*keys, START])
    replaced = replaced.append_column("new_start", becomes[START].slice(0, old))
    replaced = replaced.append_column("new_end", becomes[END].slice(0, old))
    touched = np.isin(merged.owner[:old], merged.owner[old:])
    return extend(plan.metadata, view, batch, replaced.filter(pa.array(touched)))
