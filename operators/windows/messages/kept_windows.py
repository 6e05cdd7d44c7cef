"""Questions about the windows of any plan: with values, and with the offsets of messages where these are known. Pure.

Metadata is kept for as long as messages are: so a window may be known by its metadata alone, without values,
such as one whose first message is held for its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.progress import BUDGET_BYTES
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.messages.reading import read_windows
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.operators.windows.names import END, GROUPS, START
from tidestate.operators.windows.offsets import nested_offsets, offsets_type
from tidestate.operators.windows.slice_previews import windows_wait
from tidestate.operators.windows.stored_windows import (
    EVERY_WINDOW,
    Asked,
    answer_schema,
    offsets_name,
    overlapping,
    windows_stored,
    with_keys,
)
from tidestate.operators.windows.tables import GroupTables, column_numbers
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView


def kept_schema(plan: GroupTables, asked: Asked = EVERY_WINDOW) -> pa.Schema:
    """The columns of `kept_windows`: those of `answer_schema`, and the offsets of messages where these are known."""
    schema = answer_schema(plan, asked)
    if plan.tracked is not None:
        return schema.append(pa.field(offsets_name(schema), plan.tracked.result_type))
    if not isinstance(plan, MessageWindows) or not plan.metadata.ordered:
        return schema
    kind = offsets_type(plan.metadata.offsets.schema.field("origin").type)
    return schema.append(pa.field(offsets_name(schema), kind))


def kept_windows(
    plan: GroupTables,
    view: StateView,
    watermark_us: int | None,
    asked: Asked = EVERY_WINDOW,
    budget_bytes: int = BUDGET_BYTES,
) -> Iterator[pa.Table]:
    """The windows of a state partition that are asked for, in tables of bounded size."""
    if not isinstance(plan, MessageWindows):
        yield from windows_stored(plan, view, watermark_us, asked, budget_bytes)
        return
    before = BEGINNING_US if watermark_us is None else watermark_us
    reading = plan.reading(lambda windows: read_windows(plan, view, windows, before if plan.in_order else END_US))
    for rows in windows_stored(reading, view, watermark_us, asked, budget_bytes):
        yield _with_offsets(plan, view, rows, asked)
    for rows in _by_metadata(plan, view, watermark_us, asked):
        yield _with_offsets(plan, view, rows, asked)


def sorted_windows(plan: GroupTables, asked: Asked, rows: Iterable[pa.Table]) -> pa.Table:
    """Answers as one table, by start and key."""
    found = pa.concat_tables([kept_schema(plan, asked).empty_table(), *rows])
    return found.sort_by([(name, "ascending") for name in (START, *plan.input.key_names, END)])


def _with_offsets(plan: MessageWindows, view: StateView, rows: pa.Table, asked: Asked) -> pa.Table:
    """``rows`` with what metadata has of their windows: the number of messages, and offsets."""
    spec, count = plan.metadata.windows, answer_schema(plan, asked).names[-2]
    keys = plan.keyed(rows).select(spec.key_names)
    if not plan.in_order:  # metadata counts those that are held
        known = view[spec.name].lookup(keys).rows["count"]
        rows = rows.set_column(rows.column_names.index(count), count, pc.fill_null(known, rows[count]))
    if not plan.metadata.ordered:
        return rows
    found = view[plan.metadata.offsets.name].ranges(keys)
    lengths = np.bincount(np.asarray(found.request_index), minlength=rows.num_rows).astype(np.int64)
    origins, firsts, lasts = (found.rows[name] for name in ("origin", "start_offset", "last_offset"))
    return pa.table([*rows.columns, nested_offsets(origins, firsts, lasts, lengths)], schema=kept_schema(plan, asked))


def _by_metadata(plan: MessageWindows, view: StateView, watermark_us: int | None, asked: Asked) -> Iterator[pa.Table]:
    """Windows that are known by their metadata alone: their values are null."""
    tables = plan.metadata
    low = high = None
    if tables.size is not None:
        low = None if asked.start is None else (asked.start - tables.size + 1,)
        high = None if asked.end is None else (asked.end + 1,)
    if asked.keys:
        view = with_keys(view, plan.tables, asked.keys)
    # What is ahead of the watermark waits in parts, or all of it is in groups but for what is held.
    bound = watermark_us if windows_wait(plan, view) else END_US
    for metadata in view[tables.windows.name].scan(key_range(low, high)):
        rows = overlapping(metadata, asked)
        passed = column_numbers(rows, END) <= (BEGINNING_US if bound is None else bound)
        rows = rows.filter(pa.array(passed))
        stored = view[GROUPS].lookup(plan.keyed(rows).select(plan.groups.key_names)).found
        rows = rows.filter(pc.invert(stored))
        if rows.num_rows:
            none = np.zeros(rows.num_rows, np.int64)
            schema = answer_schema(plan, asked)
            known = {START, END, *plan.input.key_names}
            kinds = [(name, schema.field(name).type) for name in schema.names[:-2]]
            columns = [rows[name] if name in known else pa.nulls(rows.num_rows, kind) for name, kind in kinds]
            yield pa.table([*columns, rows["count"], pa.array(none)], schema=schema)
