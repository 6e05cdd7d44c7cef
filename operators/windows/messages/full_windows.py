"""What counted windows forget: metadata of those that are full, and messages that no other needs. Pure.

With a retention a message is deleted when its last window is full and it is behind that. Offsets of several origins
are not comparable, so no range of them is dropped where a window may still need some of it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Counted
from tidestate.operators.windows.messages.tables import NUMBER, MessageWindows, Read
from tidestate.operators.windows.names import COUNTED, END, START
from tidestate.operators.windows.tables import column_numbers
from tidestate.statestore.errors import of_type
from tidestate.statestore.messages.reads import get_messages
from tidestate.statestore.messages.retention import Marks, read_marks, retention_bound
from tidestate.statestore.messages.retire import retire
from tidestate.statestore.messages.tables import OFFSET, MessageTables
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.table.overlay import OverlayView


def forget_full(plan: MessageWindows, state: OverlayView, groups: TableChanges | None, read: Read) -> None:
    """Forget windows that the step has found full, and messages without one. ``read`` reads messages of windows."""
    gone = groups.delete if groups is not None else None
    if gone is None or not gone.num_rows:
        return
    if plan.messages is not None and plan.retention is not None:
        _forget_messages(plan, plan.messages, state, gone, read)
    windows, offsets = plan.metadata.windows, plan.metadata.offsets
    full = state[offsets.name].ranges(gone.select(offsets.key_names[:-1])).rows
    state.apply(
        {
            windows.name: TableChanges(delete=windows.conform_keys(gone)),
            offsets.name: TableChanges(delete=offsets.conform_keys(full)),
        }
    )
    if plan.retention is not None and not plan.identities.layout.by_time:
        _forget_offsets(plan, state)


def _forget_messages(
    plan: MessageWindows, tables: MessageTables, state: OverlayView, gone: pa.Table, read: Read
) -> None:
    """Messages of the windows that are ``gone``, and those that the retention drops now, if no window needs them."""
    kind, marks, nothing = of_type(plan.kind, Counted), read_marks(tables, state), tables.sizes.schema.empty_table()
    bound, before = retention_bound(tables, state, nothing, marks.newest), marks.bound
    if bound is None:
        return
    found = [read(gone.append_column(END, pc.add(gone[START], kind.count))).rows]
    if before is None or bound > before:
        found.append(get_messages(tables, state, None if before is None else (before + 1,), (bound,)))
        state.apply({tables.marks.name: marks.changed_to(tables, Marks(marks.newest, bound))})
    rows = pa.concat_tables(found)
    rows = rows.filter(pc.less_equal(rows[OFFSET], bound))
    total = pc.fill_null(state[COUNTED].lookup(plan.keyed(rows).select(plan.group_keys)).rows["count"], 0)
    last = column_numbers(rows, NUMBER) // kind.step * kind.step
    needless = last + kind.count <= np.asarray(total)
    state.apply(retire(tables, state, rows.filter(pa.array(needless))))


def _forget_offsets(plan: MessageWindows, state: OverlayView) -> None:
    """Identities that are known by their offsets, as there are no times: before all windows that are not full."""
    marks = read_marks(plan.identities, state)
    parts = [part["start_offset"] for part in state[plan.metadata.offsets.name].scan()]
    earliest = min((pc.min(part).as_py() for part in parts if len(part)), default=None)
    if marks.bound is not None and earliest is not None:
        until = min(marks.bound, earliest - 1)
        state.apply({plan.identities.seen.name: TableChanges(expire=until)})
