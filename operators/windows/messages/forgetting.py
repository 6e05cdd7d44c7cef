"""Which windows, messages and identities are forgotten: by lateness, and later where a retention keeps more. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.dues import with_expiry
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.messages.tables import HORIZON, HORIZON_BEFORE, MessageWindows
from tidestate.operators.windows.messages.window_metadata import ended_sessions, get_sessions, windows_expiry
from tidestate.operators.windows.names import END, START
from tidestate.statestore.messages.reads import messages_for
from tidestate.statestore.messages.retention import Marks, read_marks, retention_bound, slot_bound
from tidestate.statestore.messages.retire import retire
from tidestate.statestore.messages.tables import MessageTables
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView


def forget_passed(plan: MessageWindows, state: OverlayView, context: Context) -> bool:
    """Forget windows that are over, their messages, and which messages there were. Returns whether the retention of
    this state lets nothing more go before a message arrives.
    """
    over, settled = _over(plan, state, context.watermark)
    if over is None:
        return settled
    was, bound = plan.forgotten_at(state, context.watermark_before), plan.needless_at(over)
    lost_too = False
    if plan.sessions and plan.messages is not None:
        ended = ended_sessions(plan.metadata, state, over)
        if ended.num_rows:
            state.apply(_retired(plan, plan.messages, state, ended))
            lost_too = plan.loss is not None and plan.messages.counts_sizes
    needless = was if was is not None and bound is not None and bound < was else bound
    bounds = message_expiry(plan, over, needless)
    state.apply(with_expiry(_marked(plan, state, needless), bounds))
    if lost_too and plan.messages is not None:
        state.apply(_without_lost(plan, plan.messages, state))
    return settled


def message_expiry(plan: MessageWindows, over: int, needless: int | None) -> dict[str, int]:
    """The bounds of metadata, once windows that end at or before ``over`` are forgotten; and of identities and of
    messages of others than sessions, once these are ``needless`` up to a position.
    """
    tables = plan.messages or plan.identities
    bounds = {} if needless is None else {tables.seen.name: needless}
    if plan.by_number:  # their metadata goes with a window that is full
        return bounds
    if needless is not None and plan.messages is not None and not plan.sessions:
        bounds[plan.messages.messages.name] = needless
        if plan.retention is not None and tables.counts_sizes:
            bounds[tables.sizes.name] = slot_bound(tables, needless)
    return bounds | windows_expiry(plan.metadata, over)


def move_horizon(plan: MessageWindows, state: OverlayView, watermark: int) -> bool:
    """Move the marks of the horizon, for the next step: to where from the newest message on the number or size is
    reached, but not ahead of the watermark, as windows there have not fired. Whether it stays where it is.
    """
    tables = plan.messages
    if not plan.horizon or tables is None:
        return True
    by_size = replace(tables, retention=replace(tables.retention, time=None))
    bound = retention_bound(by_size, state, tables.sizes.schema.empty_table(), None)
    now = max(plan.gone_us, BEGINNING_US if bound is None else min(bound + 1, watermark))
    rows = [{"mark": HORIZON, "at": now}, {"mark": HORIZON_BEFORE, "at": plan.gone_us}]
    real = [row for row in rows if row["at"] != BEGINNING_US]
    if real:
        state.apply({tables.marks.name: TableChanges(merge=pa.Table.from_pylist(real, tables.marks.schema))})
    return now == plan.gone_us == plan.closed_us


def _marked(plan: MessageWindows, state: OverlayView, needless: int | None) -> ChangeSet:
    """Where a retention forgets, what it has forgotten is kept: a bound that follows from the state, see `_over`."""
    tables = plan.messages or plan.identities
    if plan.retention is None or plan.horizon or needless is None:
        return {}
    marks = read_marks(tables, state)
    further = marks.bound is None or needless > marks.bound
    return {tables.marks.name: marks.changed_to(tables, Marks(marks.newest, needless))} if further else {}


def _over(plan: MessageWindows, state: OverlayView, watermark: int) -> tuple[int | None, bool]:
    """Windows that end at or before this are over: by lateness, and by retention where it keeps more; and whether it
    is this that keeps them.
    """
    over = plan.over_at(watermark)
    if over is None or plan.retention is None or plan.messages is None or plan.horizon:
        return over, True
    tables = plan.messages
    newest = read_marks(tables, state).newest
    bound = retention_bound(tables, state, tables.sizes.schema.empty_table(), newest)
    return (None, True) if bound is None else (min(over, bound + 1), bound < over)


def _without_lost(plan: MessageWindows, tables: MessageTables, state: OverlayView) -> ChangeSet:
    """Changes that delete sizes of messages that were lost and did not come back: of those before all sessions."""
    starts = [pc.min(rows[START].cast(pa.int64())).as_py() for rows in state[plan.metadata.windows.name].scan()]
    first = min((start for start in starts if start is not None), default=END_US)
    slots = pa.concat_tables([tables.sizes.schema.empty_table(), *state[tables.sizes.name].scan()])
    gone = slots.filter(pa.array(positions(slots["slot"]) <= first - tables.retention.slot))
    return {tables.sizes.name: TableChanges(delete=tables.sizes.conform_keys(gone))}


def _retired(plan: MessageWindows, tables: MessageTables, state: StateView, ended: pa.Table) -> ChangeSet:
    """Changes that delete the messages of sessions that have ``ended``, but for those that another one may hold."""
    asked = {name: ended[name] for name in tables.session_names or tables.equal_names}
    of = "time" if tables.layout.by_time else "offset"
    asked[f"start_{of}"] = ended[START].cast(pa.int64())
    asked[f"end_{of}"] = plan.last_instants(ended)
    rows = messages_for(tables, state, pa.table(asked)).rows
    if not plan.in_cells and plan.rule == "window" and rows.num_rows:
        at = rows[tables.position].cast(pa.int64())
        asked_for = plan.keyed(rows).select(plan.group_keys).append_column("start", at)
        holding = get_sessions(plan.metadata, state, asked_for.append_column("end", pc.add(at, 1)))
        later = holding.rows[END].cast(pa.int64()).to_numpy() > int(pc.max(ended[END].cast(pa.int64())).as_py())
        rows = rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), np.asarray(holding.request_index)[later])))
    return retire(tables, state, rows)
