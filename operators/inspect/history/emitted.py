"""Rows of pane files and of the late ledger, for one window and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators.describe.output_origin import ORIGIN_COLUMNS
from tidestate.operators.inspect.history.bounds import BoundUnit, WindowBounds
from tidestate.operators.inspect.history.changes import END, START, names_places, of_keys, plain_values, whole_numbers
from tidestate.operators.plan.plan import BOUNDS, OTHER_BOUNDS
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import damaged
from tidestate.statestore.files.tails import read_file_rows, read_metadata

PANE_FIELDS = ("pane", "timing", "kind", "last")
"""Columns of panes with the kind of a row."""
REASON, MARK = "reason", "watermark"


@dataclass(frozen=True)
class Pane:
    """A row of a pane file."""

    checkpoint: int
    window: WindowBounds
    facts: dict[str, Any]
    values: dict[str, Any]


@dataclass(frozen=True)
class Rejected:
    """A row of the late ledger: the ``position`` of its event, and the ``window`` that rejected it, None for all."""

    checkpoint: int
    position: int | None
    window: WindowBounds | None
    reason: str
    watermark: int | None
    values: dict[str, Any]

    def of(self, window: WindowBounds) -> bool:
        """Whether it would have been added to a window."""
        if self.window is not None:
            return self.window == window
        return self.position is not None and window.holds(self.position)


def emitted_panes(
    checkpoint: Checkpoint, number: int, ref: FileRef, keys: Mapping[str, str], around: WindowBounds
) -> list[Pane]:
    """Panes of these keys and of windows that touch ``around``; empty if panes have no window columns."""
    if not _may_touch(checkpoint, ref, around):
        return []
    rows = read_file_rows(checkpoint.objects, ref)
    if not names_places(rows, START, END):
        return []
    rows = of_keys(rows, keys)
    starts, ends = whole_numbers(rows, START), whole_numbers(rows, END)
    rows = rows.filter(pa.array((starts <= around.end) & (ends >= around.start)))
    facts = [name for name in PANE_FIELDS if name in rows.column_names]
    buffers = ORIGIN_COLUMNS if set(ORIGIN_COLUMNS) <= {*rows.column_names} else ()  # no results of the window
    values = [name for name in rows.column_names if name not in (*keys, START, END, *facts, *buffers)]
    return [
        Pane(number, WindowBounds(start, end), fact, value)
        for start, end, fact, value in zip(
            whole_numbers(rows, START).tolist(),
            whole_numbers(rows, END).tolist(),
            plain_values(rows, facts),
            plain_values(rows, values),
            strict=True,
        )
    ]


def _may_touch(checkpoint: Checkpoint, ref: FileRef, around: WindowBounds) -> bool:
    """Whether a file can have a window that touches ``around``, by its Parquet statistics."""
    metadata = read_metadata(checkpoint.objects, ref)
    low, high = statistic(metadata, START, "min"), statistic(metadata, END, "max")
    return (low is None or low <= around.end) and (high is None or high >= around.start)


def statistic(metadata: pq.FileMetaData, name: str, extreme: str) -> int | None:
    """The smallest or largest value of a column in the whole file; None if unknown."""
    schema = metadata.schema.to_arrow_schema()
    index = schema.get_field_index(name)
    if index < 0 or str(schema.field(index).type) not in ("int64", str(pa.timestamp("us", "UTC"))):
        return None
    statistics = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    usable = [entry for entry in statistics if entry is not None and entry.has_min_max]
    if len(usable) < len(statistics):
        return None
    extremes = [entry.min_raw if extreme == "min" else entry.max_raw for entry in usable]
    return (min if extreme == "min" else max)(extremes, default=None)


def read_rejected(
    checkpoint: Checkpoint,
    number: int,
    ref: FileRef,
    keys: Mapping[str, str],
    state: OperatorState,
    measure: BoundUnit,
) -> Iterator[Rejected]:
    """Ledger rows of these keys."""
    rows = read_file_rows(checkpoint.objects, ref)
    if REASON not in rows.column_names or not pa.types.is_string(rows.schema.field(REASON).type):
        raise damaged(ref, "a ledger that gives no reasons")
    rows = of_keys(rows, keys)
    position_name = _place_column(rows, state, measure)
    bound_names = next((two for two in (OTHER_BOUNDS, BOUNDS) if set(two) <= set(rows.column_names)), ())
    values = [name for name in rows.column_names if name not in (*keys, REASON, MARK, *bound_names)]
    positions = _optional(rows, position_name)
    marks, reasons = _optional(rows, MARK), rows[REASON].to_pylist()
    starts, ends = (_optional(rows, name) for name in bound_names or (None, None))
    for row, value in enumerate(plain_values(rows, values)):
        start, end = starts[row], ends[row]
        window = None if start is None or end is None else WindowBounds(start, end)
        yield Rejected(number, positions[row], window, str(reasons[row]), marks[row], value)


def _optional(rows: pa.Table, name: str | None) -> list[int | None]:
    if name is None or not names_places(rows, name):
        return [None] * rows.num_rows
    valid = rows[name].is_valid().to_pylist()
    return [
        value if is_valid else None for value, is_valid in zip(whole_numbers(rows, name).tolist(), valid, strict=True)
    ]


def _place_column(rows: pa.Table, state: OperatorState, measure: BoundUnit) -> str | None:
    """The column with the position of an event: its time, or its offset for windows of offsets."""
    name = state.configuration.get("event_time" if measure.is_time else "offset")
    if isinstance(name, str) and name in rows.column_names:
        return name
    times = [field.name for field in rows.schema if pa.types.is_timestamp(field.type) and field.name != MARK]
    if not measure.is_time:
        return None
    return "time" if "time" in times else next(iter(times), None)
