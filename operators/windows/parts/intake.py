"""Accepted events as parts, aggregated next to the input if that pays. Pure."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from tidestate.operators.aggregates.signed import signs
from tidestate.operators.windows.names import ELEMENTS
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Times, Values
from tidestate.statestore.table.fold import combine

SLICE_SAMPLE_ROWS = 1 << 16
PAYS_BELOW = 0.5
"""Aggregating next to the input pays if it leaves a smaller share of the rows."""


def events_as_parts(plan: GroupTables, events: pa.Table, times: Times, watermark: int | None) -> pa.Table:
    """Events as rows of `GroupTables.parts`; keys may repeat.

    An event of a window that the watermark has passed is a row of its own where the order of arrival is seen: what is
    combined is in the order of slices.
    """
    ends = plan.slices.slice_ends(times)
    rows = _lift(plan, events, ends)
    if watermark is None or not plan.sees_order or plan.slices.tumbles:
        return _aggregate(plan, rows)
    late = plan.slices.first_ends(ends) <= watermark
    if not late.any():
        return _aggregate(plan, rows)
    parts = _aggregate(plan, rows.filter(pa.array(~late)))
    return pa.concat_tables([parts, rows.filter(pa.array(late)).cast(plan.parts.schema)])


def _lift(plan: GroupTables, events: pa.Table, ends: Times) -> pa.Table:
    """A part for each event, of the slice with this end."""
    keys: list[Values] = [events[name] for name in plan.key_names] or [pa.array(np.zeros(len(ends), np.int8))]
    sizes: list[Values] = []
    if ELEMENTS in plan.parts.schema.names:
        sizes.append(pa.array(np.ones(len(ends), np.int64)))
    if plan.signed:
        sizes.append(pa.array(signs(events)))
    columns = [pa.array(ends).cast(plan.bound_type), *keys, *sizes, *plan.lifted(events)]
    return pa.table(columns, names=plan.parts.schema.names)


def _aggregate(plan: GroupTables, lifted: pa.Table) -> pa.Table:
    """Combine parts of one slice and key, unless a sample has almost only distinct ones."""
    if lifted.num_rows > 2 * SLICE_SAMPLE_ROWS:
        groups = combine(plan.parts, lifted.slice(0, SLICE_SAMPLE_ROWS)).num_rows
        if expected_groups(SLICE_SAMPLE_ROWS, groups, lifted.num_rows) > PAYS_BELOW * lifted.num_rows:
            return lifted.cast(plan.parts.schema)
    return combine(plan.parts, lifted)


def expected_groups(sample_rows: int, sample_groups: int, rows: int) -> float:
    """The number of groups in ``rows`` rows if ``sample_rows`` of them have ``sample_groups`` groups of similar size.

    Solves groups·(1 − e^(−sample/groups)) = sample_groups by bisection; a skewed stream has fewer groups.
    """
    low, high = float(sample_groups), float(sample_groups) * 2**20
    for _ in range(60):
        middle = (low + high) / 2
        if -middle * math.expm1(-sample_rows / middle) < sample_groups:
            low = middle
        else:
            high = middle
    return -low * math.expm1(-rows / low)
