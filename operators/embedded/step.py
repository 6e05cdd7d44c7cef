"""One step of a window operator on a view of its state: messages first, then windows, then what is forgotten.

Nothing here touches a file. Everything is laid over the overlay it is given, in the order of the design (SAMZA-552):
a message and the last offset of its windows before anything that follows from them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Global, Sessions, Sliding
from tidestate.operators.embedded.plan import NUMBER, OperatorPlan
from tidestate.operators.embedded.step_result import StepResult
from tidestate.operators.embedded.window_metadata import ending
from tidestate.operators.embedded.window_metadata import expire_windows as expire_windows
from tidestate.operators.embedded.windows import record
from tidestate.operators.plan.classify import Classified
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.names import END, GROUPS, START
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import expect
from tidestate.statestore.messages.reads import messages_for
from tidestate.statestore.messages.retention import read_marks, retention_bound
from tidestate.statestore.messages.store import expire_messages as expire_messages
from tidestate.statestore.messages.store import retire
from tidestate.statestore.messages.tables import MessageTables
from tidestate.statestore.spec.changes import Ranges, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView


def window_step(plan: OperatorPlan, state: OverlayView, admitted: Classified, at: StepTimes) -> StepResult:
    """Record the messages that were ``admitted``, advance time, fire what is due, drop what is over."""
    recorded = record(plan, state, admitted.accepted, at)
    state.apply(recorded.changes)
    reading = plan.reading(lambda windows: read_windows(plan, state, windows))
    moved = reading.step(state, admitted.partials[0], at)
    state.apply(moved.changes)
    purged = (
        _forget_full(plan, state, moved.changes.get(GROUPS)) if plan.by_number else _forget(plan, state, at.after)
    )
    return StepResult(moved, purged, recorded.newest)


def read_windows(plan: OperatorPlan, state: StateView, windows: pa.Table) -> Ranges:
    """The messages of each of these windows, in order: one range read by the keys of the layout."""
    tables = expect(plan.messages, "windows are read of messages that are kept")
    keys = tables.session_names or tables.equal_names
    asked: dict[str, Values] = {name: windows[name] for name in keys if name in plan.group_keys}
    if not plan.by_number:
        whole, of = isinstance(plan.kind, Global), "offset" if plan.by_offset else "time"
        start, end = windows[START].cast(pa.int64()), pc.subtract(windows[END].cast(pa.int64()), 1)
        nothing = pa.nulls(windows.num_rows, pa.int64())
        asked |= {f"start_{of}": nothing if whole else start, f"end_{of}": nothing if whole else end}
        return messages_for(tables, state, pa.table(asked))
    metadata = plan.metadata.offsets
    known = state[metadata.name].ranges(windows.select(metadata.key_names[:-1]))
    offsets = pa.table(
        {"request_index": known.request_index, "first": known.rows["start_offset"], "last": known.rows["last_offset"]}
    )
    spans = offsets.group_by(["request_index"], use_threads=False).aggregate([("first", "min"), ("last", "max")])
    spans = spans.sort_by("request_index")
    asked = {name: column.take(spans["request_index"]) for name, column in asked.items()}
    asked |= {"start_offset": spans["first_min"], "end_offset": spans["last_max"]}
    found = messages_for(tables, state, pa.table(asked))
    place = spans["request_index"].take(found.request_index)
    number = found.rows[NUMBER]
    inside = pc.and_(pc.greater_equal(number, windows[START].take(place)), pc.less(number, windows[END].take(place)))
    return Ranges(place.filter(inside).combine_chunks(), found.rows.filter(inside))


def _forget(plan: OperatorPlan, state: OverlayView, watermark: int) -> bool:
    """Forget windows that are over, their messages, and who has been there; whether any window was."""
    over = _over(plan, state, watermark)
    if over is None:
        return False
    tables = plan.messages or plan.identities
    bound = _bound(plan, over)
    was = read_marks(tables, state).bound
    ended = None
    if plan.sessions:
        ended = ending(plan.metadata, state, None, over)
        if plan.messages is not None and ended.num_rows:
            state.apply(retire(plan.messages, state, _requests(plan.messages, ended)))
    if bound is not None and (was is None or bound > was):
        changes = dict(expire_messages(tables, state, bound))
        if plan.sessions or plan.messages is None:
            changes = {name: changes[name] for name in (tables.seen.name, tables.marks.name) if name in changes}
        state.apply(changes)
    state.apply(expire_windows(plan.metadata, over))
    return bool(ended.num_rows) if ended is not None else bound is not None and (was is None or bound > was)


def _over(plan: OperatorPlan, state: OverlayView, watermark: int) -> int | None:
    """Windows that end at or before this are over: by lateness, and by retention where it keeps more."""
    over = plan.expired_at(watermark)
    if over in (BEGINNING_US, END_US):
        return None
    if plan.retention is None or plan.messages is None:
        return over
    tables = plan.messages
    newest = read_marks(tables, state).newest
    bound = retention_bound(tables, state, tables.sizes.schema.empty_table(), newest)
    return None if bound is None else min(over, bound + 1)


def _bound(plan: OperatorPlan, over: int) -> int | None:
    """Messages at or before this are in no window that ends after ``over``, and would be rejected as very late."""
    kind = plan.kind
    if isinstance(kind, Sliding):
        return min(kind.oldest_slice_after(over), over) - 1
    if isinstance(kind, Sessions):
        if plan.rule == "event":
            return over - 1
        return over - kind.gap if kind.gap_column is None else None
    return over - 1 if plan.messages is None and plan.rule == "event" else None


def _requests(tables: MessageTables, ended: pa.Table) -> pa.Table:
    asked = {name: ended[name] for name in tables.session_names or tables.equal_names}
    asked["start_time"] = ended[START].cast(pa.int64())
    asked["end_time"] = pc.subtract(ended[END].cast(pa.int64()), 1)
    return pa.table(asked)


def _forget_full(plan: OperatorPlan, state: OverlayView, groups: TableChanges | None) -> bool:
    """Metadata of counted windows goes when they are full; messages when no window that is kept needs them."""
    gone = groups.delete if groups is not None else None
    if gone is None or not gone.num_rows:
        return False
    windows, offsets = plan.metadata.windows, plan.metadata.offsets
    over = state[offsets.name].ranges(gone.select(offsets.key_names[:-1])).rows
    state.apply(
        {
            windows.name: TableChanges(delete=windows.conform_keys(gone)),
            offsets.name: TableChanges(delete=offsets.conform_keys(over)),
        }
    )
    tables = plan.messages
    if tables is None or plan.retention is None:
        return True
    bound = retention_bound(tables, state, tables.sizes.schema.empty_table(), read_marks(tables, state).newest)
    parts = [part["start_offset"] for part in state[offsets.name].scan()]
    earliest = min((pc.min(part).as_py() for part in parts if len(part)), default=None)
    if bound is not None and earliest is not None:
        state.apply(expire_messages(tables, state, min(bound, earliest - 1)))
    return True
