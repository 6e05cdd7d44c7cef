"""Windows and sessions of Spark's aggregations, as those of a windowed job: each arrives as one partial. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidestate.operators.adopt.buffers import match_buffers, state_columns
from tidestate.operators.adopt.spark_keys import spark_keys
from tidestate.operators.adopt.spark_state import Half, SparkState, column_of, is_window
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.step import step_windows
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Flags, Numbers, Values
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.spec.lists import struct_fields
from tidestate.statestore.spec.store import StateView


def spark_windows(plan: GroupTables, state: SparkState, watermark_us: int, buffers: Mapping[str, int]) -> pa.Table:
    """Rows of `GroupTables.arriving`. ``buffers`` as in `match_buffers`. Raises `UsageError` if the windows, keys or
    aggregates are others, or if the query keeps windows that the watermark has closed.
    """
    _check_settings(plan)
    sessions = state.kind == "sessions"
    fields = state.value if sessions else state.key
    part: Half = "value" if sessions else "key"
    # Of sessions the value begins with what the query groups by.
    group_fields = fields[: len(state.key)] if sessions else fields
    window_index = next((n for n, field in enumerate(group_fields) if is_window(field)), None)
    if window_index is None or state.delay_us is None:
        raise UsageError(
            "the query has no watermark and never closes a window, so no job can continue it",
            code="adopt-watermark",
        )
    keys = spark_keys(plan, {n: field for n, field in enumerate(group_fields) if n != window_index}, state.rows, part)
    bounds = struct_fields(state.rows[column_of(part, window_index)].combine_chunks())
    offset = len(group_fields) if sessions else 0
    first_columns = match_buffers(plan.aggregates, state.value[offset:], buffers)
    of_value = [state.rows[column_of("value", n + offset)] for n in range(len(state.value) - offset)]
    columns = [
        column
        for bound in plan.aggregates
        for column in state_columns(
            bound, of_value[first_columns[bound.name] : _after(plan, first_columns, bound.name, of_value)]
        )
    ]
    elements = _elements(plan, columns, state.rows.num_rows)
    starts, ends = (np.asarray(bound.cast(pa.int64())) for bound in bounds)
    _check_windows(plan, starts, ends, watermark_us, elements)
    lead = keys or [pa.array(np.zeros(state.rows.num_rows, np.int8))]
    values = [*lead, *(bound.cast(plan.bound_type) for bound in bounds), pa.array(elements), *columns]
    return pa.table(values, schema=plan.arriving.schema)


def _after(plan: GroupTables, first_columns: Mapping[str, int], name: str, columns: Sequence[Values]) -> int:
    """The place after the last column of an aggregate: where the next one begins."""
    return min((first for first in first_columns.values() if first > first_columns[name]), default=len(columns))


def take_windows(plan: Plan, view: StateView, rows: pa.Table, context: Context) -> Transition:
    """They arrive, each as all of its events so far; early triggers fire."""
    return step_windows(of_type(plan, WindowPlan), view, rows, context)


def _check_settings(plan: GroupTables) -> None:
    triggers = plan.triggers.early, plan.triggers.late
    if plan.rule != "window":
        raise UsageError(
            'the query judges lateness by windows: give the job .allowed_lateness(…, rule="window"), which may be '
            "changed later",
            code="adopt-job",
            rule=plan.rule,
        )
    if plan.per_event or plan.triggers.when is not None:
        raise UsageError(
            'the state has no single events, which composite triggers and evaluate="element" need: choose another '
            "trigger, which may be changed later",
            code="adopt-job",
        )
    if not plan.counted_by and any(trigger is not None and trigger.kind == "after_count" for trigger in triggers):
        raise UsageError(
            "a trigger of the job counts events, but neither the query nor the job has a count() of them: add one "
            "to the query, or choose another trigger",
            code="adopt-job",
        )


def _elements(plan: GroupTables, columns: Sequence[Values], rows: int) -> Numbers:
    """How many events each window has; 1 where nothing counts them."""
    names = [column.name for column in plan.state]
    if not plan.counted_by:
        return np.ones(rows, np.int64)
    counts: Numbers = np.asarray(columns[names.index(plan.counted_by)])
    return np.maximum(counts, 1)


def _check_windows(plan: GroupTables, starts: Numbers, ends: Numbers, watermark_us: int, elements: Numbers) -> None:
    """Raise `UsageError` for windows that the job has not."""
    is_closed = ends <= watermark_us
    if is_closed.any():
        raise UsageError(
            "the query keeps windows that its watermark has passed, as output mode complete never closes one, so "
            "no job can continue it",
            code="adopt-mode",
            windows=int(np.count_nonzero(is_closed)),
        )
    strange = _strange(plan, starts, ends, elements)
    if strange.any():
        first = int(np.flatnonzero(strange)[0])
        raise UsageError(
            "the windows of the query are not those of the job: give the job the same size, slide and offset, or "
            "the same gap",
            code="adopt-window",
            windows=int(np.count_nonzero(strange)),
            start_us=int(starts[first]),
            end_us=int(ends[first]),
        )


def _strange(plan: GroupTables, starts: Numbers, ends: Numbers, elements: Numbers) -> Flags:
    if plan.sessions:
        lone = (elements == 1) & bool(plan.counted_by)
        return np.asarray((ends - starts < plan.gap) | (lone & (ends - starts != plan.gap)), bool)
    kind = of_type(plan.kind, Sliding)
    return np.asarray((ends - starts != kind.size) | ((starts - kind.shift) % kind.slide != 0), bool)
