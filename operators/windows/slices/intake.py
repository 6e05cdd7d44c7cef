"""The fast path next to the input: events as partials of their slices, aggregated if that pays."""

from __future__ import annotations

import math

import pyarrow as pa

from tidestate.operators.windows.slices.tables import SliceTables
from tidestate.statestore.arrays import Times
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.fold import combine

SLICE_SAMPLE_ROWS = 1 << 16
PAYS_BELOW = 0.5
"""Aggregating next to the input pays if it leaves a smaller share of the rows."""


def partials_of(plan: SliceTables, accepted: pa.Table, times: Times) -> pa.Table:
    """Events as rows of the slices table; keys may repeat."""
    return _aggregate(plan, _lift(plan, accepted, times))


def _lift(plan: SliceTables, accepted: pa.Table, times: Times) -> pa.Table:
    ends = pa.array(plan.windows.slice_ends(times)).cast(TIME)
    keys = [accepted[name] for name in plan.key_names]
    return pa.table([ends, *keys, *plan.lifted(accepted)], schema=plan.slices.schema)


def _aggregate(plan: SliceTables, lifted: pa.Table) -> pa.Table:
    """Combine rows of one slice and key, unless a sample has almost only distinct ones."""
    if lifted.num_rows > 2 * SLICE_SAMPLE_ROWS:
        groups = combine(plan.slices, lifted.slice(0, SLICE_SAMPLE_ROWS)).num_rows
        if expected_groups(SLICE_SAMPLE_ROWS, groups, lifted.num_rows) > PAYS_BELOW * lifted.num_rows:
            return lifted
    return combine(plan.slices, lifted)


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
