"""Windows and messages that are kept, asked for in the forms of the design (SAMZA-552). Pure.

Bounds are inclusive; times are datetimes or microseconds, and None is no bound. Rows come in order of the windows'
or messages' position.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.embedded.window_metadata import END, START, WindowTables, get_sessions, get_windows
from tidestate.operators.joins.names import ENDS, SESSIONS
from tidestate.operators.windows.names import NO_KEY
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.reads import get_messages
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.lists import places_within
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME

Moment = int | datetime
"""A time (a datetime, or microseconds since 1970 UTC), or an offset."""
TimeRange = tuple[Moment | None, Moment | None, Moment | None, Moment | None]
"""Start time, start offset, end time, end offset of messages."""
_MOST = 2**63 - 1


def windows_in(
    tables: WindowTables, view: StateView, start: Moment | None = None, end: Moment | None = None, session: Any = None
) -> pa.Table:
    """Windows that hold something from ``start`` to ``end``, by start and key: a row for each origin in each.

    ``session`` is the key of the windows (a tuple where it has several columns); None asks for those of all keys.
    ``count`` is that of the whole window.
    """
    low, high = _number(start), _number(end)
    upper = None if high is None or high == _MOST else high + 1
    key = None if session is None else _key(tables, session)
    if not tables.sessions:
        rows = get_windows(tables, view, low, upper, per_origin=True)
        for name, value in (key or {}).items():
            rows = rows.filter(pc.equal(rows[name], pa.scalar(value, rows[name].type)))
    elif key is not None:
        kind = tables.windows.schema.field(START).type
        asked = [pa.array([value], tables.windows.schema.field(name).type) for name, value in key.items()]
        bounds = [pa.array([bound], pa.int64()).cast(kind) for bound in (low, upper)]
        request_index = pa.table([*asked, *bounds], names=[*key, "start", "end"])
        rows = get_sessions(tables, view, request_index, per_origin=True).rows
    else:
        rows = _all_sessions(tables, view, low, high)
    counts = view[tables.windows.name].lookup(rows.select(tables.windows.key_names)).rows["count"]
    rows = rows.append_column("count", counts)
    keys = [name for name in tables.key_names if name != NO_KEY]
    return rows.select([START, END, *keys, "count", "origin", "start_offset", "last_offset"])


def messages_in(
    tables: MessageTables | None,
    view: StateView,
    bounds: TimeRange,
    session: Any = None,
    equal: Any = None,
) -> pa.Table:
    """Messages from (start time, start offset) to (end time, end offset), of a session key and equal fields.

    Raises `UsageError` where no messages are kept, or not with what is asked by.
    """
    if tables is None:
        raise UsageError("no messages are kept here: ask for it with retention= or layout=", code="no-messages")
    start_time, start_offset, end_time, end_offset = bounds
    if not tables.layout.by_time and (start_time is not None or end_time is not None):
        raise UsageError(
            "messages of this layout have no times in their keys: ask by start_offset and end_offset",
            code="message-range",
            layout=tables.layout.name,
        )
    start = _bound(tables, start_time, start_offset)
    end = _bound(tables, end_time, end_offset)
    given: dict[str, Any] = {}
    if session is not None:
        given["session"] = _values(
            _public(tables.session_names), session, "these messages have no session key: leave session= out"
        )
    if equal is not None:
        given["equal"] = _values(tables.equal_names, equal, "these messages have no equal fields: leave equal= out")
    rows = get_messages(tables, view, start, end, **given)
    return rows.select([name for name in rows.column_names if name != NO_KEY])


def around(kind: Sliding | None, tables: MessageTables, start: Moment | None, end: Moment | None) -> TimeRange:
    """Which messages tell of all windows that overlap ``start`` to ``end``."""
    low, high = _number(start), _number(end)
    if kind is None:
        return (None, None, None, None)
    low = None if low is None else max(-_MOST, low - kind.size)
    high = None if high is None else min(_MOST, high + kind.size)
    if not kind.by_offset:
        return (low, None, high, None) if tables.layout.by_time else (None, None, None, None)
    return (None, None, None, None) if tables.layout.by_time else (None, low, None, high)


def windows_over(
    kind: Sliding | None, messages: pa.Table, start: Moment | None = None, end: Moment | None = None
) -> pa.Table:
    """Windows that overlap ``start`` to ``end``, made up from the ``messages`` that are kept of a side of a join.

    A side without windows of its own has one that holds all; its bounds are null.
    """
    by_offset = kind is not None and kind.by_offset
    bound = pa.int64() if by_offset else TIME
    index = np.arange(messages.num_rows)
    starts = ends = pa.nulls(messages.num_rows, bound)
    if kind is not None:
        places = messages[OFFSET if by_offset else MESSAGE_TIME].cast(pa.int64()).to_numpy()
        low, high = _number(start), _number(end)
        first, counts = kind.windows_of(kind.slice_ends(places), low, None if high is None else high + kind.size)
        index = np.repeat(np.arange(len(places)), counts)
        last = first[index] + places_within(counts) * kind.slide
        starts, ends = (pa.array(values).cast(bound) for values in (last - kind.size, last))
    rows = messages.select([ORIGIN, OFFSET]).take(pa.array(index))
    rows = rows.append_column(START, starts).append_column(END, ends)
    found = rows.group_by([START, END, ORIGIN], use_threads=False).aggregate(
        [(OFFSET, "count"), (OFFSET, "min"), (OFFSET, "max")]
    )
    whole = found.group_by([START], use_threads=False).aggregate([("offset_count", "sum")])
    place = pc.index_in(found[START], whole[START])
    messages_each = whole["offset_count_sum"].take(place)
    columns = [found[START], found[END], messages_each, found[ORIGIN], found["offset_min"], found["offset_max"]]
    made = pa.table(columns, names=[START, END, "count", "origin", "start_offset", "last_offset"])
    return made.sort_by([(START, "ascending"), ("origin", "ascending")])


def sessions_over(
    tables: MessageTables,
    view: StateView,
    start: Moment | None = None,
    end: Moment | None = None,
    session: Any = None,
) -> pa.Table:
    """Sessions of a join that overlap ``start`` to ``end``, of a key or of all, by start and key: a row for each
    origin of the messages of one side. One that holds no message of that side is left out.
    """
    low, high, names = _number(start), _number(end), tables.session_names
    if session is None:
        first = None if low is None or low == _MOST else (low + 1,)
        parts = [part.select([*names, START, END]) for part in view[ENDS].scan(key_range(first))]
    else:
        values = _values(_public(names), session, "these sessions have no key: leave session= out")
        asked = pa.table({name: _one(tables, name, value) for name, value in zip(names, values, strict=True)})
        parts = [view[SESSIONS].ranges(asked).rows.select([*names, START, END])]
    keys = [tables.schema.field(name) for name in names]
    bounds = [pa.field(name, pa.int64()) for name in (START, END)]
    found = pa.concat_tables([pa.schema([*keys, *bounds]).empty_table(), *parts])
    if low is not None:
        found = found.filter(pc.greater(found[END], low))
    if high is not None:
        found = found.filter(pc.less_equal(found[START], high))
    starts, ends = (found[name].cast(TIME) for name in (START, END))
    held = view[tables.name].ranges(found.select(names), starts, ends)
    rows = held.rows.select([ORIGIN, OFFSET]).append_column("window", held.request_index)
    each = rows.group_by(["window", ORIGIN], use_threads=False).aggregate(
        [(OFFSET, "count"), (OFFSET, "min"), (OFFSET, "max")]
    )
    window = each["window"]
    counts = np.bincount(held.request_index.to_numpy(), minlength=found.num_rows)
    keys_of = {name: found[name].take(window) for name in _public(names)}
    offsets = {"start_offset": each["offset_min"], "last_offset": each["offset_max"]}
    columns = {START: starts.take(window), END: ends.take(window), **keys_of}
    made = pa.table({**columns, "count": pa.array(counts[window.to_numpy()]), "origin": each[ORIGIN], **offsets})
    return made.sort_by([(name, "ascending") for name in (START, *keys_of, "origin")])


def _one(tables: MessageTables, name: str, value: Any) -> pa.Array:
    kind = tables.schema.field(name).type
    try:
        return pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"a value does not fit its column ({error})", code="message-range", column=name) from None


def _bound(tables: MessageTables, time: Moment | None, offset: Moment | None) -> tuple[Any, ...]:
    if not tables.layout.by_time:
        return (offset,)
    if time is None and offset is not None:
        raise UsageError(
            "messages of this layout are in order of time: an offset bound needs its time",
            code="message-range",
            layout=tables.layout.name,
        )
    return (time, offset)


def _all_sessions(tables: WindowTables, view: StateView, low: int | None, high: int | None) -> pa.Table:
    """Sessions of all keys, by the index of their ends."""
    first = None if low is None or low == _MOST else (low + 1,)
    ends = pa.concat_tables([tables.ends.schema.empty_table(), *view[tables.ends.name].scan(key_range(first))])
    if high is not None:
        ends = ends.filter(pc.less_equal(ends[START].cast(pa.int64()), high))
    found = view[tables.offsets.name].ranges(ends.select(tables.windows.key_names)).rows
    return found.sort_by([(name, "ascending") for name in (START, *tables.key_names, "origin")])


def _number(at: Moment | None) -> int | None:
    if isinstance(at, datetime):
        return int(pa.scalar(at, TIME).cast(pa.int64()).as_py())
    return at


def _key(tables: WindowTables, session: Any) -> dict[str, Any]:
    names = _public(tables.key_names)
    return dict(zip(names, _values(names, session, "these windows have no key: leave session= out"), strict=True))


def _public(names: list[str]) -> list[str]:
    return [name for name in names if name != NO_KEY]


def _values(names: list[str], given: Any, none: str) -> tuple[Any, ...]:
    """One value for each of these columns; a single one may stand by itself."""
    values = given if isinstance(given, tuple) else (given,)
    if len(values) != len(names):
        why = "give a value for each of these columns" if names else none
        raise UsageError(why, code="message-range", columns=names, found=len(values))
    return values
