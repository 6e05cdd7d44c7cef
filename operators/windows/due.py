"""When the state of a window operator is due next, so that steps with nothing to do can be left out. Pure."""

from __future__ import annotations

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.groups import column_numbers
from tidestate.operators.windows.names import END, GROUPS, PARTS, SLICE_END
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView


def due_mark(plan: GroupTables, view: StateView, changes: ChangeSet, at: StepTimes) -> int | None:
    """The watermark that passes the end of the next window once ``changes`` are applied to ``view``; `END_US` if no
    window waits, None if triggers look at windows before or after that.
    """
    triggers, early, after = plan.triggers, plan.triggers.early, max(at.before, at.after)
    looks = triggers.when is not None or triggers.closing != "never" or plan.closed_us is not None
    looks = looks or (early is not None and early.kind == "every_event_time")
    if looks or not (plan.has_parts and isinstance(plan.kind, Sliding)):
        return None
    if after == END_US:
        return END_US
    least = _first(view, changes, GROUPS, END, after)
    kind = plan.slices
    oldest = BEGINNING_US if after == BEGINNING_US else kind.oldest_slice_after(after)
    soon = oldest if after == BEGINNING_US else oldest + kind.slide
    part = _first(view, changes, PARTS, SLICE_END, oldest, soon)
    if part == END_US:
        part = _first(view, changes, PARTS, SLICE_END, soon)
    if part == END_US:
        return least
    first = kind.first_end_at_or_after(part)
    return min(least, first if after == BEGINNING_US else max(first, kind.first_end_at_or_after(after + 1)))


def _first(view: StateView, changes: ChangeSet, table: str, column: str, after: int, up_to: int | None = None) -> int:
    """The least ``column``, which leads the key, above ``after`` (stored ones only ``up_to`` a bound); `END_US` if
    there is none.
    """
    changed = changes.get(table)
    new = [] if changed is None else [rows for rows in (changed.put, changed.merge) if rows is not None]
    lower, upper = None if after == BEGINNING_US else (after + 1,), None if up_to is None else (up_to + 1,)
    stored = view[table].scan(key_range(lower, upper)) if after != up_to else iter(())
    first = next((rows.slice(0, 1) for rows in stored if rows.num_rows), None)
    found: list[Numbers] = [column_numbers(rows, column) for rows in [*new, *([] if first is None else [first])]]
    above = [int(values[values > after].min()) for values in found if (values > after).any()]
    return min(above, default=END_US)
