"""When the state of a window operator is due next, so that steps with nothing to do can be left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.groups import column_numbers
from tidestate.operators.windows.names import END, GROUPS, PARTS, SLICE_END
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView


def due_mark(plan: GroupTables, view: StateView, changes: ChangeSet, at: StepTimes) -> int | None:
    """The watermark that passes the end of the next window once ``changes`` are applied to ``view``; `END_US` if no
    window waits, None if that is not known: only of windows in slices that nothing but the watermark closes.
    """
    after = max(at.before, at.after)
    waits = plan.lazy and isinstance(plan.kind, Sliding) and plan.triggers.closing == "never"
    if not waits or plan.closed_us is not None or after == BEGINNING_US:
        return None
    if after == END_US:
        return END_US
    kind, following = plan.slices, plan.slices.first_end_at_or_after(after + 1)
    needless = kind.oldest_slice_after(after)
    soon = min(needless + kind.slide, following)  # a slice up to here is in the next window
    merged = changes[PARTS].merge
    first = _least([merged] if merged is not None else [], SLICE_END, needless)
    if first > soon:
        close = view[PARTS].scan(key_range((needless + 1,), (soon + 1,)), folded=False)
        first = soon if any(rows.num_rows for rows in close) else first
    if first > soon:
        first = min(first, _least(view[PARTS].scan(key_range((soon + 1,)), folded=False), SLICE_END, soon))
    # Groups that are not due are there only where former settings made them.
    grouped = _least(view[GROUPS].scan(key_range((after + 1,)), folded=False), END, after)
    return min(grouped, END_US if first == END_US else max(following, kind.first_end_at_or_after(first)))


def _least(parts: Iterable[pa.Table], column: str, above: int) -> int:
    """The least value of a column above a bound; `END_US` if there is none."""
    found = (column_numbers(rows, column) for rows in parts)
    return min((int(values[values > above].min()) for values in found if (values > above).any()), default=END_US)
