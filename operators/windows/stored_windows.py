"""Questions to a state partition: which windows it holds, with what each would emit if it fired now. Pure.

Windows that have fired, and those that are looked at before they are due, are rows of ``groups``; the others are put
together from parts, as the watermark would find them. Rows that are held for their order are in no window yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.derived_results import BoundDerived
from tidestate.operators.aggregates.results import results
from tidestate.operators.progress.progress import BUDGET_BYTES
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.names import ELEMENTS, END, NET, PANES, START
from tidestate.operators.windows.offsets import OFFSETS
from tidestate.operators.windows.partial_view import PartialTable
from tidestate.operators.windows.slice_previews import waiting_windows, windows_ending, windows_wait
from tidestate.operators.windows.tables import GroupTables, column_numbers
from tidestate.statestore.durations import Moment, moment_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec

_FAR = 2**62
EVENTS, EMITTED_PANES = "events", "panes"
"""Columns of answers: the number of events of a window, and of the panes that it has emitted."""
SHOWN = "shown"
"""Whether the window would emit a pane with these results."""


@dataclass(frozen=True)
class Asked:
    """Windows that overlap ``start`` to ``end``, both inclusive, whose keys have these values; None is no bound.

    ``values``: which results are computed; None for all.
    """

    start: int | None = None
    end: int | None = None
    keys: Mapping[str, pa.Scalar] = field(default_factory=dict)
    values: tuple[str, ...] | None = None

    def answered(self, plan: GroupTables) -> list[BoundAggregate]:
        """The aggregates of the plan that were asked for."""
        return [one for one in plan.aggregates if self.values is None or one.name in self.values]

    def computed(self, plan: GroupTables) -> list[BoundAggregate]:
        """These, and those that they, or the condition of panes that are shown, are computed of."""
        names = {one.name for one in self.answered(plan)}
        names |= set() if plan.shown is None else {*plan.shown.condition.columns}
        for bound in reversed(plan.aggregates):
            if bound.name in names and isinstance(bound, BoundDerived):
                names |= {*bound.expression.columns}
        return [one for one in plan.aggregates if one.name in names]


EVERY_WINDOW = Asked()


def asked_for(
    plan: GroupTables,
    start: Moment | None = None,
    end: Moment | None = None,
    key: Any = None,
    values: Sequence[str] | None = None,
) -> Asked:
    """The windows that overlap ``start`` to ``end``. ``key``: a value, a tuple if it has several columns, or some of
    its columns with their values. Raises `UsageError` for what is no key, and no result, of these windows.
    """
    there = [one.name for one in plan.aggregates]
    if wrong := sorted(set(values or ()) - set(there)):
        raise missing_columns("the windows have no such result", wrong, there, code="read-column")
    types = {column.name: column.arrow for column in plan.input.key_specs}
    keys = key_values(key, types, "these windows have no key")
    return Asked(_bound(start), _bound(end), keys, None if values is None else tuple(values))


def key_values(key: Any, types: Mapping[str, pa.DataType], keyless: str) -> dict[str, pa.Scalar]:
    """The values of a ``key`` of columns of these ``types``: a value, a tuple if it has several columns, or some of
    its columns with their values; None is no key. Raises `UsageError` (``window-key``): ``keyless`` for a key where
    there are no columns.
    """
    names = list(types)
    values = {} if key is None else key
    if not isinstance(values, Mapping):
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(names):
            reason = "give one value for each column of the key" if names else keyless
            raise UsageError(reason, code="window-key", columns=names, found=len(parts))
        values = dict(zip(names, parts, strict=True))
    if wrong := sorted(set(values) - set(names)):
        raise missing_columns("the key has no such column", wrong, names, code="window-key")
    return {name: value_of(value, types[name], name) for name, value in values.items()}


def value_of(value: Any, kind: pa.DataType, name: str) -> pa.Scalar:
    """A value of a column of this type. Raises `UsageError` (``window-key``) for one of another type."""
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise UsageError(
            f"the column {name} holds {kind}: give a value of that type",
            code="window-key",
            column=name,
            found=f"{value!r:.100} ({type(value).__name__})",
        ) from None


def _bound(moment: Moment | None) -> int | None:
    number = moment_us(moment)
    return None if number is None else max(-_FAR, min(_FAR, number))


def answer_schema(plan: GroupTables, asked: Asked = EVERY_WINDOW) -> pa.Schema:
    """The columns of answers: bounds, key, results, `SHOWN` where panes are shown by a condition, `EVENTS`,
    `EMITTED_PANES`.

    Where the key or a result has the name of one of the last three, this one ends with an underscore.
    """
    names = [START, END, *plan.input.key_names, *(aggregate.name for aggregate in asked.answered(plan))]
    fields = [plan.pane_schema.field(name) for name in names]
    kinds = {**({} if plan.shown is None else {SHOWN: pa.bool_()}), EVENTS: pa.int64(), EMITTED_PANES: pa.int64()}
    facts = [pa.field(name if name not in names else f"{name}_", kind) for name, kind in kinds.items()]
    return pa.schema([*fields, *facts])


def offsets_name(schema: pa.Schema) -> str:
    """The name of the column of offsets in answers with these other columns."""
    return OFFSETS if OFFSETS not in schema.names else f"{OFFSETS}_"


def windows_stored(
    plan: GroupTables,
    view: StateView,
    watermark_us: int | None,
    asked: Asked = EVERY_WINDOW,
    budget_bytes: int = BUDGET_BYTES,
) -> Iterator[pa.Table]:
    """Windows by their end, with the columns of `answer_schema`, and offsets where windows store them, in tables of
    bounded size.

    Windows of numbers, and sessions that have fired, come in the order of their keys.
    """
    for groups in stored_groups(plan, view, watermark_us, asked, budget_bytes):
        rows = overlapping(groups, asked)
        if plan.input.signed:
            rows = rows.filter(pc.greater(rows[NET], 0))
        if rows.num_rows:
            columns = [rows[START], rows[END], *(rows[name] for name in plan.input.key_names)]
            numbers = [rows[NET if plan.input.signed else ELEMENTS], rows[PANES]]
            computed = results(asked.computed(plan), rows)
            values = computed.select([one.name for one in asked.answered(plan)])
            shown = [] if plan.shown is None else [pa.array(plan.shown.holds(rows, computed))]
            schema = answer_schema(plan, asked)
            windows = pa.table([*columns, *values.columns, *shown, *numbers], schema=schema)
            if plan.tracked is not None:
                offsets = plan.tracked.finish(rows, column_numbers(rows, ELEMENTS))
                windows = windows.append_column(offsets_name(schema), offsets)
            yield windows


def stored_groups(
    plan: GroupTables,
    view: StateView,
    watermark_us: int | None,
    asked: Asked = EVERY_WINDOW,
    budget_bytes: int = BUDGET_BYTES,
) -> Iterator[pa.Table]:
    """The windows as rows of ``groups``, each once; perhaps some that were not asked for."""
    if asked.keys:
        view = with_keys(view, plan.tables, asked.keys)
    low, high = _ends(plan, asked)
    if not windows_wait(plan, view):
        yield from windows_ending(plan, view, low, high)
        return
    watermark = BEGINNING_US if watermark_us is None else watermark_us
    if low < watermark:
        yield from windows_ending(plan, view, low, min(watermark, high))
    # A session may have begun before any of the bounds.
    yield from waiting_windows(plan, view, watermark if plan.in_cells else max(watermark, low), high, budget_bytes)


def partitions_of(by: Sequence[str] | None, keys: Mapping[str, pa.Scalar], partitions: int) -> range:
    """The state partitions with rows of these key values: one, or all if a column is missing ``by`` which rows go to
    partitions.
    """
    if not by or not set(by) <= set(keys) or partitions == 1:
        return range(partitions)
    owner = pa.table({name: pa.array([keys[name].as_py()], keys[name].type) for name in by})
    number = int(partition_of(owner, partitions)[0])
    return range(number, number + 1)


def _ends(plan: GroupTables, asked: Asked) -> tuple[int, int]:
    """A range of window ends, exclusive to inclusive, with all windows that are asked for."""
    low = BEGINNING_US if asked.start is None else max(BEGINNING_US, asked.start)
    if not plan.has_parts or plan.in_cells or asked.end is None:
        return low, END_US
    return low, max(BEGINNING_US, min(END_US, asked.end + plan.slices.size))


def overlapping(rows: pa.Table, asked: Asked) -> pa.Table:
    """The windows that overlap what is asked for."""
    inside = np.ones(rows.num_rows, bool)
    if asked.start is not None:
        inside &= column_numbers(rows, END) > asked.start
    if asked.end is not None:
        inside &= column_numbers(rows, START) <= asked.end
    return rows if inside.all() else rows.filter(pa.array(inside))


def with_keys(view: StateView, specs: tuple[TableSpec, ...], keys: Mapping[str, pa.Scalar]) -> StateView:
    """The state of windows that have these values in their keys, as scans see it. Tables without these columns are
    left out.
    """
    return {
        spec.name: PartialTable(view[spec.name], partial(rows_with, keys), _leading(spec, keys))
        for spec in specs
        if set(keys) <= set(spec.schema.names)
    }


def rows_with(values: Mapping[str, pa.Scalar], rows: pa.Table) -> pa.Table:
    """The rows that have these values in the columns of these names."""
    for name, value in values.items():
        rows = rows.filter(pc.equal(rows[name], value))
    return rows


def _leading(spec: TableSpec, keys: Mapping[str, pa.Scalar]) -> tuple[Any, ...]:
    """The values of the first columns of a table's key, as far as they are given."""
    given = takewhile(keys.__contains__, spec.key_names)
    return tuple(keys[name].as_py() for name in given)
