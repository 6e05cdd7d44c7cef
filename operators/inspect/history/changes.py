"""The content of windows: rows of state tables, whose columns are identified by their roles.

| table | its rows | a change |
|---|---|---|
| of slices | end of a slice or of a tumbling window | is added |
| of windows | start and end of a window | is what the window has become, or that it is gone |
| of parts | start and end of a part of a session | is added |
| of messages | the time of a message | is a row that came |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.operators.inspect.history.bounds import WindowBounds
from tidestate.recovery.inspect.rows import Wanted
from tidestate.recovery.inspect.values import values_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState
from tidestate.recovery.log.summary import time_text
from tidestate.statestore.errors import UsageError
from tidestate.statestore.files.filetable import FileTable, open_sources
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import read_segment
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Layer
from tidestate.statestore.spec.keyrange import EVERYTHING
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import combine

Shape = Literal["slices", "windows", "parts", "messages", "panes"]
"""``panes``: rows of a table of windows, read as the last pane of each."""
OPS = {MERGE: "merge", PUT: "put", DELETE: "delete"}
START, END, SLICE, TIME = "window_start", "window_end", "slice_end", "time"
BAND_BYTES = 64 << 20
LAST_RESULT = "_last_"
"""Begins the columns with the values of a window's last pane."""


@dataclass(frozen=True)
class TableForm:
    """How the rows of a table identify their window. ``grows``: the end of a window may change."""

    spec: TableSpec
    shape: Shape
    start: str | None
    end: str | None
    exact: bool
    grows: bool

    @property
    def whole(self) -> bool:
        """Whether a row has both bounds of what it is about."""
        return self.shape in ("windows", "parts")

    @property
    def value_columns(self) -> list[str]:
        """The columns with the content of a row."""
        bounds = {self.start, self.end}
        columns = (*self.spec.key, *self.spec.values)
        return [c.name for c in columns if c.name not in bounds and c.role != "key" and not c.name.startswith("_")]

    def may_touch(self, ref: FileRef, around: WindowBounds) -> bool:
        """Whether a file can have rows of windows that touch ``around``, by the expiry in its manifest entry."""
        low, high, column = ref.expiry_min, ref.expiry_max, self.spec.expiry
        if low is None or high is None or column is None or column not in (self.start, self.end):
            return True
        if str(self.spec.schema.field(column).type) not in ("int64", str(pa.timestamp("us", "UTC"))):
            return True  # in another unit
        if column == self.end:
            return high >= around.start and (self.whole or low <= around.end)
        return low <= around.end and (self.whole or high >= around.start)


@dataclass(frozen=True)
class StateChange:
    """One row: the bounds of its window, or the position of its slice or message, and its values.

    ``start`` is None for slices, ``end`` for windows that are deleted by their start alone.
    """

    checkpoint: int
    form: TableForm
    op: str
    start: int | None
    end: int | None
    values: dict[str, Any]
    events: int | None = None
    panes: int = 0
    """How many panes it has emitted; ``last`` has the values of the last one."""
    last: dict[str, Any] = field(default_factory=dict)
    is_hidden: bool = False
    """Whether a pane was due that was not shown, and none stands."""

    def of(self, window: WindowBounds) -> bool:
        """Whether it belongs to a window."""
        if self.form.shape == "messages":
            return self.start is not None and window.holds(self.start)
        if self.form.shape == "slices":
            if self.end is None:
                return False
            return self.end == window.end if self.form.exact else window.start < self.end <= window.end
        if self.start is None or self.end is None:
            return self.start == window.start or (self.form.grows and window.holds(self.start or 0))
        bounds = WindowBounds(self.start, self.end)
        return bounds.overlaps(window) if self.form.grows else bounds == window


def forms_of(state: OperatorState) -> dict[str, TableForm]:
    """The tables of an operator with the content of windows."""
    forms = (form_of(spec) for spec in state.tables)
    return {form.spec.name: form for form in forms if form is not None}


@lru_cache(maxsize=1024)
def form_of(spec: TableSpec) -> TableForm | None:
    """How the rows of a table identify their window; None if they do not, or have no content."""
    roles = {column.role: column.name for column in (*spec.key, *spec.values)}
    start, end = roles.get(START), roles.get(END)
    if not spec.values:
        return None
    if start is not None:
        if end is None:
            return None
        if start not in spec.key_names:
            return TableForm(spec, "parts", start, end, False, True)
        return TableForm(spec, "windows", start, end, True, spec.expiry == end and end not in spec.key_names)
    if (slice_end := end or roles.get(SLICE)) is not None and slice_end in spec.key_names:
        return TableForm(spec, "slices", None, slice_end, end is not None, False)
    if (time := roles.get(TIME)) is not None:
        return TableForm(spec, "messages", time, None, True, False)
    return None


def read_changes(
    checkpoint: Checkpoint, form: TableForm, ref: FileRef, keys: Mapping[str, str], around: WindowBounds
) -> list[StateChange]:
    """Rows of a changelog segment, of these keys and of windows that touch ``around``."""
    if not form.may_touch(ref, around):
        return []
    changes: list[StateChange] = []
    for layer in read_segment(checkpoint.objects, form.spec, ref):
        if form.shape in ("messages", "parts") and layer.op == DELETE:
            continue  # retention, or parts that are in windows now
        rows = rows_around(form, of_keys(layer.rows, keys), around)
        changes += _changes(form, ref.first, Layer(layer.op, _combined(form.spec, layer.op, rows)))
    return changes


def last_panes(changes: list[StateChange]) -> list[StateChange]:
    """The panes of windows that these changes have put, for an operator whose panes are not written: its readers are
    in the same job.
    """
    panes = []
    for change in changes:
        if change.op == "put" and change.form.shape == "windows" and change.panes:
            pane = {"pane": change.panes - 1, **change.last}
            panes.append(replace(change, form=replace(change.form, shape="panes"), values=pane, events=None))
    return panes


def read_folded(
    checkpoint: Checkpoint, form: TableForm, state: OperatorState, keys: Mapping[str, str], around: WindowBounds
) -> tuple[list[StateChange], int]:
    """Rows of folded files, of these keys and of windows that touch ``around``; and the newest checkpoint in them."""
    changes: list[StateChange] = []
    newest = 0
    for partition in state.partitions:
        files = [ref for ref in partition.files if ref.table == form.spec.name and ref.kind != "changelog"]
        newest = max([newest, *(ref.last for ref in files)])
        files = [ref for ref in files if form.may_touch(ref, around)]
        table = FileTable(form.spec, open_sources(checkpoint.objects, form.spec, files), None, BAND_BYTES)
        for rows in table.scan(EVERYTHING) if files else ():
            changes += _changes(form, newest, Layer(PUT, rows_around(form, of_keys(rows, keys), around)))
    return changes, newest


def of_keys(rows: pa.Table, keys: Mapping[str, str]) -> pa.Table:
    """Rows with these values, in as far as they have the columns."""
    return Wanted({name: text for name, text in keys.items() if name in rows.column_names}).of(rows)


def rows_around(form: TableForm, rows: pa.Table, around: WindowBounds) -> pa.Table:
    """Rows of windows that touch ``around``, and rows without bounds."""
    keep = np.ones(rows.num_rows, bool)
    if form.start is not None and form.start in rows.column_names:
        keep &= whole_numbers(rows, form.start) <= around.end
        if form.shape == "messages":
            keep &= whole_numbers(rows, form.start) >= around.start
    if form.end is not None and form.end in rows.column_names:
        keep &= whole_numbers(rows, form.end) >= around.start
        if not form.whole:
            keep &= whole_numbers(rows, form.end) <= around.end
    return rows if keep.all() else rows.filter(pa.array(keep))


def names_places(rows: pa.Table, *names: str) -> bool:
    """Whether rows have these columns with times or integers: a user's column of that name may have another type."""
    types = [rows.schema.field(name).type for name in names if name in rows.column_names]
    return len(types) == len(names) and all(
        pa.types.is_timestamp(kind) or pa.types.is_integer(kind) for kind in types
    )


def whole_numbers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """A column of times, as microseconds, or of integers; null is 0."""
    column = rows[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return positions(column.fill_null(0) if column.null_count else column)


def plain_values(rows: pa.Table, names: list[str] | None = None) -> list[dict[str, Any]]:
    """Some columns (default: all) as plain values by row; times as text, also beyond the calendar."""
    names = rows.column_names if names is None else names
    columns = []
    for name in names:
        column = rows[name]
        if pa.types.is_timestamp(column.type):
            validity = column.is_valid().to_pylist()
            texts = map(time_text, whole_numbers(rows, name).tolist())
            columns.append([text if valid else None for text, valid in zip(texts, validity, strict=True)])
        else:
            columns.append(values_of(column))
    values = zip(*columns, strict=True) if names else ((),) * rows.num_rows
    return [dict(zip(names, row, strict=True)) for row in values]


def _combined(spec: TableSpec, op: int, rows: pa.Table) -> pa.Table:
    """One row for each key: merges have several, one from each Spark task."""
    try:
        return combine(spec, rows) if op == MERGE else rows
    except UsageError:  # a custom combiner that is not registered here
        return rows


def _changes(form: TableForm, checkpoint: int, layer: Layer) -> list[StateChange]:
    rows = layer.rows
    bounds = [
        whole_numbers(rows, name).tolist() if name and name in rows.column_names else [None] * rows.num_rows
        for name in (form.start, form.end)
    ]
    names = [] if layer.op == DELETE else [name for name in form.value_columns if name in rows.column_names]
    has_content = layer.op != DELETE
    events = (
        rows["_elements"].to_pylist() if has_content and "_elements" in rows.column_names else [None] * rows.num_rows
    )
    panes = rows["_panes"].to_pylist() if has_content and "_panes" in rows.column_names else [0] * rows.num_rows
    lasts = [name for name in rows.column_names if has_content and name.startswith(LAST_RESULT)]
    last_results = plain_values(rows.select(lasts).rename_columns([name.removeprefix(LAST_RESULT) for name in lasts]))
    hidden = [has_content and settled for settled in _settled_without_pane(rows)]
    return [
        StateChange(checkpoint, form, OPS[layer.op], start, end, values, count, pane_count or 0, last, is_hidden)
        for start, end, values, count, pane_count, last, is_hidden in zip(
            *bounds, plain_values(rows, names), events, panes, last_results, hidden, strict=True
        )
    ]


def _settled_without_pane(rows: pa.Table) -> list[bool]:
    """Whether each window has no pane though nothing is pending: one was due, and was not shown."""
    if not {"_pending", "_emitted", "_elements"} <= set(rows.column_names):
        return [False] * rows.num_rows
    pending, emitted, elements = (whole_numbers(rows, name) for name in ("_pending", "_emitted", "_elements"))
    flags: list[bool] = ((pending == 0) & (emitted == 0) & (elements > 0)).tolist()
    return flags
