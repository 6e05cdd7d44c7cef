"""Composite triggers that are evaluated after each element: a step per element. Pure.

The n-th elements of all windows share a step, so a batch costs as many steps as its largest window has elements. The
watermark advances in the last step, which has no elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import total
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView
from tidestate.statestore.table.sorting import order, ranks

StepFunction = Callable[[GroupTables, StateView, pa.Table, Context], Transition]


def step_by_element(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, step: StepFunction
) -> Transition:
    """Run ``step`` once for each element of the largest window, and once for the watermark."""
    if not plan.in_order:
        arriving = arriving.take(pa.array(order(arriving.select(plan.order_names))))
    state, steps = OverlayView(view, plan.tables), []
    still = context.reaching(context.watermark_before, context.watermark_before)
    for rows, times in [*((rows, still) for rows in _by_number(plan, arriving)), (arriving.slice(0, 0), context)]:
        steps.append(step(plan, state, rows, times))
        state.apply(steps[-1].changes)
    rejected = [moved.rejected for moved in steps if moved.rejected is not None]
    return Transition(
        state.changes(),
        pa.concat_tables([moved.panes for moved in steps]),
        total([moved.counters for moved in steps]),
        pa.concat_tables(rejected) if rejected else None,
    )


def _by_number(plan: GroupTables, arriving: pa.Table) -> list[pa.Table]:
    """The first element of each window, then the second of each, and so on. For windows that depend on others of
    their key (sessions, count windows), one element of the key at a time.
    """
    if not arriving.num_rows:
        return []
    names = plan.group_keys if plan.sessions or plan.by_number else plan.identity
    owner, many = ranks(arriving.select(names))
    by_owner = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=many)
    number = np.empty(len(owner), np.int64)
    number[by_owner] = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    by_number = np.argsort(number, kind="stable")
    rows, counts = arriving.take(pa.array(by_number)), np.bincount(number)
    ends = np.cumsum(counts)
    return [rows.slice(end - count, count) for end, count in zip(ends, counts, strict=True)]
