"""State of windows in parts, as groups: for a job whose settings look at windows before they are due. Pure."""

from __future__ import annotations

import pyarrow as pa

from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import END_US
from tidestate.operators.windows.gather import gather_groups, groups_with
from tidestate.operators.windows.names import COARSE, ENDS, GROUPS, PARTS
from tidestate.operators.windows.session_slices import live_parts, sessions_as_arriving
from tidestate.operators.windows.slices import all_keys, as_arriving, combined_windows
from tidestate.operators.windows.tables import GroupTables, replaced_panes
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView


def hand_over(plan: GroupTables, view: StateView, watermark: int, now_us: int = 0) -> Transition | None:
    """Changes after which all windows in parts that end after ``watermark`` are groups; None if there are none.

    Its panes take back those of sessions that are merged into others.
    """
    if not plan.has_parts:
        return None
    if plan.in_cells:
        return _sessions(plan, view, Context.between(watermark, watermark, now_us, now_us))
    changes = _slices(plan, view, watermark)
    return Transition(changes, plan.pane_schema.empty_table()) if changes else None


def _sessions(plan: GroupTables, view: StateView, context: Context) -> Transition | None:
    """Sessions that waiting and stored ones form, and the panes that are taken back by that."""
    keys = [rows.select(plan.parts.key_names) for rows in view[PARTS].scan()]
    if not keys:
        return None
    parts = sessions_as_arriving(plan, live_parts(plan, view, context.watermark_before))
    gathered = gather_groups(plan.with_input(order=()), view, parts, context)
    panes = replaced_panes(plan, gathered, context) if plan.mode == "retracting" else []
    made, gone = gathered.groups, gathered.replaced
    changes = {
        PARTS: TableChanges(delete=pa.concat_tables(keys)),
        GROUPS: TableChanges(delete=plan.groups.conform_keys(gone), put=plan.groups.conform(made)),
        ENDS: TableChanges(delete=plan.ends.conform_keys(gone), put=plan.ends.conform(made)),
    }
    return Transition(changes, pa.concat_tables([plan.pane_schema.empty_table(), *panes]))


def _slices(plan: GroupTables, view: StateView, watermark: int) -> ChangeSet:
    parts = [rows for rows in view[PARTS].scan() if rows.num_rows]
    if not parts:
        return {}
    waiting = as_arriving(plan, combined_windows(plan, parts, watermark, END_US))
    keys = [rows.select(plan.parts.key_names) for rows in parts]
    changes = {PARTS: TableChanges(delete=pa.concat_tables(keys))}
    if plan.coarse_slices:
        changes[COARSE] = TableChanges(delete=all_keys(plan, view))
    if not waiting.num_rows:
        return changes
    # They follow a trigger that waits from their next event on.
    context = Context.between(watermark, watermark, END_US, END_US)
    return changes | {GROUPS: TableChanges(put=plan.groups.conform(groups_with(plan, view, waiting, context)))}
