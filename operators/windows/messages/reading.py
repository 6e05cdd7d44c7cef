"""The messages of windows, and which windows lack some because files were lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Global
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.messages.tables import NUMBER, MessageWindows
from tidestate.operators.windows.names import END, START
from tidestate.operators.windows.tables import column_numbers
from tidestate.statestore.arrays import Flags, Numbers, Values
from tidestate.statestore.errors import expect
from tidestate.statestore.messages.reads import messages_for
from tidestate.statestore.spec.changes import Ranges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import among

READ_AT_ONCE = 1_000_000
"""The messages of windows that are read together, or those of a single one."""


def read_windows(plan: MessageWindows, state: StateView, windows: pa.Table, before: int = END_US) -> Ranges:
    """The messages of each of these windows, in order: one range read by the keys of the layout.

    ``before``: no messages from there on, such as those that are held.
    """
    tables = expect(plan.messages, "windows are read of messages that are kept")
    keys = tables.session_names or tables.equal_names
    asked: dict[str, Values] = {name: windows[name] for name in keys if name in plan.group_keys}
    if not plan.by_number:
        whole, of = isinstance(plan.kind, Global), "offset" if plan.by_offset else "time"
        start, last = windows[START].cast(pa.int64()), plan.last_instants(windows)
        if before != END_US:
            latest = max(before - 1, BEGINNING_US)
            last = pc.if_else(pc.greater(last, latest), latest, last)
        unbounded = pa.nulls(windows.num_rows, pa.int64())
        asked |= {
            f"start_{of}": unbounded if whole else start,
            f"end_{of}": unbounded if whole and before == END_US else last,
        }
        found = messages_for(tables, state, pa.table(asked))
        return _without_refused(plan, state, windows, found) if plan.metadata.refuses else found
    metadata = plan.metadata.offsets
    known = state[metadata.name].ranges(windows.select(metadata.key_names[:-1]))
    offsets = pa.table(
        {"request_index": known.request_index, "first": known.rows["start_offset"], "last": known.rows["last_offset"]}
    )
    spans = offsets.group_by(["request_index"], use_threads=False).aggregate([("first", "min"), ("last", "max")])
    spans = spans.sort_by("request_index")
    asked = {name: column.take(spans["request_index"]) for name, column in asked.items()}
    asked |= {"start_offset": spans["first_min"], "end_offset": spans["last_max"]}
    found = messages_for(tables, state, pa.table(asked))
    place = spans["request_index"].take(found.request_index)
    number = found.rows[NUMBER]
    inside = pc.and_(pc.greater_equal(number, windows[START].take(place)), pc.less(number, windows[END].take(place)))
    return Ranges(place.filter(inside).combine_chunks(), found.rows.filter(inside))


def incomplete_windows(plan: MessageWindows, view: StateView) -> Iterator[pa.Table]:
    """Windows that lack messages: rows of the metadata, whose ``count`` is how many they took. Reads all messages."""
    for metadata in view[plan.metadata.windows.name].scan():
        for windows in in_portions(metadata):
            if (lack := lacking(plan, view, windows)).any():
                yield windows.filter(pa.array(lack))


def incomplete_panes(plan: MessageWindows, view: StateView, panes: pa.Table) -> int:
    """How many of these panes are of windows that lack messages."""
    if not plan.reads_messages:
        return 0
    spec, emitted = plan.metadata.windows, panes.filter(pc.equal(panes["kind"].cast(pa.string()), "emit"))
    known = view[spec.name].lookup(plan.keyed(emitted).select(spec.key_names))
    windows = known.rows.filter(known.found)
    return sum(int(np.count_nonzero(lacking(plan, view, portion))) for portion in in_portions(windows))


def lacking(plan: MessageWindows, view: StateView, windows: pa.Table) -> Flags:
    """Which of these windows, rows of the metadata, have fewer messages stored than they took."""
    lack: Flags = stored_in(plan, view, windows) < column_numbers(windows, "count")
    return lack


def stored_in(plan: MessageWindows, view: StateView, windows: pa.Table) -> Numbers:
    """How many messages are stored within each of these windows, rows of the metadata."""
    read = read_windows(plan, view, plan.keyed(windows).select([*plan.group_keys, START, END]))
    return np.bincount(read.request_index, minlength=windows.num_rows)


def in_portions(windows: pa.Table) -> Iterator[pa.Table]:
    """Rows of the metadata, by how many messages they have together."""
    if not windows.num_rows:
        return
    portion = np.cumsum(column_numbers(windows, "count")) // READ_AT_ONCE
    starts = np.flatnonzero(np.diff(portion, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], windows.num_rows], strict=True):
        yield windows.slice(start, end - start)


def _without_refused(plan: MessageWindows, state: StateView, windows: pa.Table, found: Ranges) -> Ranges:
    """The messages that were ``found`` within the bounds of these windows, but for those that the window refused."""
    spec = plan.metadata.refused
    names = plan.identities.identity_names
    refused = state[spec.name].ranges(windows.select(spec.key_names[: -len(names)]))
    if not refused.rows.num_rows:
        return found
    of_found, of_refused = (
        read.rows.select(names).append_column("window", pa.array(read.request_index)) for read in (found, refused)
    )
    keep = pa.array(~among(of_found, of_refused, [*names, "window"]))
    return Ranges(found.request_index.filter(keep), found.rows.filter(keep))
