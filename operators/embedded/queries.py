"""Windows and messages that are kept, asked for in the forms of the design (SAMZA-552). Pure.

Bounds are inclusive; times are of any form of `Moment`, and None is no bound. Rows come in order of the windows'
or messages' position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.joins.names import ENDS, SESSIONS
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.windows.messages.window_metadata import END, START, offset_ranges
from tidestate.operators.windows.names import NO_KEY
from tidestate.operators.windows.offsets import OFFSETS, nested_offsets
from tidestate.operators.windows.stored_windows import EVENTS, partitions_of, value_of
from tidestate.statestore.arrays import Values
from tidestate.statestore.durations import Moment, moment_us
from tidestate.statestore.errors import UsageError, expect
from tidestate.statestore.messages.reads import get_messages, request_row, scan_messages
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.sorting import ranks

TimeRange = tuple[Moment | None, Moment | None, Moment | None, Moment | None]
"""Start time, start offset, end time, end offset of messages."""
_MOST = 2**63 - 1
_OFFSETS = "int64"
"""The type of times where offsets stand for them."""
_OF_ORIGIN = [(OFFSET, "count"), (OFFSET, "min"), (OFFSET, "max")]
"""What is known of the messages that an origin has in a window."""


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
    kept, start, end, given = _asked(tables, bounds, session, equal)
    return get_messages(kept, view, start, end, **given).select(message_columns(kept))


def messages_of(
    tables: MessageTables | None,
    views: Iterable[StateView],
    bounds: TimeRange,
    session: Any = None,
    equal: Any = None,
) -> pa.Table:
    """As `messages_in`, of several state partitions, in order of (time, offset, origin)."""
    parts = [messages_in(tables, view, bounds, session, equal) for view in views]
    kept = expect(tables, "messages are read where they are kept")
    return _sorted(pa.concat_tables(parts), [kept.position, *kept.identity_names]) if len(parts) > 1 else parts[0]


def latest_start(windows: Iterable[TableChanges]) -> int | None:
    """The latest start of a window that is new, or another than it was, by the changes of a table of windows."""
    tables = [rows for made in windows for rows in (made.put, made.merge) if rows is not None and rows.num_rows]
    return max((int(pc.max(rows[START].cast(pa.int64())).as_py()) for rows in tables), default=None)


def known_offsets(plan: JoinTables, tables: MessageTables, views: Iterable[StateView]) -> pa.Table:
    """Of a side of a join per origin the first and the last offset that is known, in order of the origins. Raises
    `UsageError` if the side's messages are not known by their offsets.
    """
    if tables.name not in plan.identified:
        raise UsageError(
            "messages of this side have no identity: name their offsets, stream(offset=…), and set identity=True",
            code="no-messages",
            side=tables.name,
        )
    return offset_ranges(tables.seen, views, OFFSET, OFFSET)


def message_partitions(
    tables: MessageTables | None, partitions: int, session: Any = None, equal: Any = None
) -> range:
    """The state partitions that may have messages of these keys."""
    if tables is None:
        return range(partitions)
    given: dict[str, Any] = {}
    for names, form in ((tables.session_names, session), (tables.equal_names, equal)):
        names, parts = _public(names), form if isinstance(form, tuple) else (form,)
        if form is not None and len(parts) == len(names):
            given |= dict(zip(names, parts, strict=True))
    try:
        keys = {name: value_of(value, tables.schema.field(name).type, name) for name, value in given.items()}
    except UsageError:
        return range(partitions)  # a reader refuses the value
    return partitions_of(tables.partition_by, keys, partitions)


def side_windows(
    kind: Sliding | None,
    tables: MessageTables,
    views: Iterable[StateView],
    start: Moment | None = None,
    end: Moment | None = None,
    key: Any = None,
) -> pa.Table:
    """The windows of a side of a join that overlap ``start`` to ``end``, of several state partitions: sessions, of a
    ``key`` or of all, or windows of this ``kind``.
    """
    if tables.layout.by_session:
        found = pa.concat_tables([sessions_over(tables, view, start, end, key) for view in views])
        return _sorted(found, [START, *_public(tables.session_names)])
    if key is not None:
        raise UsageError("the windows of a side have no key: remove key=", code="message-range")
    bounds = around(kind, tables, start, end)
    return windows_over(kind, pa.concat_tables([messages_in(tables, view, bounds) for view in views]), start, end)


def side_window(
    kind: Sliding | None,
    tables: MessageTables,
    views: Iterable[StateView],
    start: int | None,
    key: Any = None,
) -> pa.Table | None:
    """The window of a side of a join that starts there, as a row of `side_windows`; None where none does."""
    windows = side_windows(kind, tables, views, start, start, key)
    if start is not None:
        # Windows that overlap the start are there as well.
        windows = windows.filter(pc.equal(windows[START].cast(pa.int64()), start))
    return windows if windows.num_rows else None


def _sorted(rows: pa.Table, names: list[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in names])


def messages_scanned(
    tables: MessageTables, view: StateView, bounds: TimeRange, session: Any = None, equal: Any = None
) -> Iterator[pa.Table]:
    """As `messages_in`, in the order of the store, in tables of bounded size."""
    kept, start, end, given = _asked(tables, bounds, session, equal)
    for rows in scan_messages(kept, view, start, end, **given):
        yield rows.select(message_columns(kept))


def message_columns(tables: MessageTables) -> list[str]:
    """The columns of messages in answers: no time where offsets stand for it."""
    timeless = not tables.layout.by_time and tables.time == _OFFSETS
    return [name for name in _public(tables.schema.names) if not (timeless and name == MESSAGE_TIME)]


def _asked(
    tables: MessageTables | None, bounds: TimeRange, session: Any, equal: Any
) -> tuple[MessageTables, tuple[Any, ...], tuple[Any, ...], dict[str, Any]]:
    if tables is None:
        raise UsageError(
            "this operator keeps no messages: keep them with .messages(retain=…) or layout=", code="no-messages"
        )
    start_time, start_offset, end_time, end_offset = bounds
    if not tables.layout.by_time and (start_time is not None or end_time is not None):
        raise UsageError(
            "this layout stores no times in the keys of messages: use start_offset= and end_offset=",
            code="message-range",
            layout=tables.layout.name,
        )
    start = _bound(tables, start_time, start_offset)
    end = _bound(tables, end_time, end_offset)
    given: dict[str, Any] = {}
    if session is not None:
        given["session"] = _values(
            _public(tables.session_names), session, "these messages have no session key: remove session="
        )
    if equal is not None:
        given["equal"] = _values(tables.equal_names, equal, "these messages have no equal fields: remove equal=")
    return tables, start, end, given


def around(kind: Sliding | None, tables: MessageTables, start: Moment | None, end: Moment | None) -> TimeRange:
    """Which messages tell of all windows that overlap ``start`` to ``end``."""
    low, high = moment_us(start), moment_us(end)
    if kind is None or kind.by_offset == tables.layout.by_time:  # the key of messages does not begin so
        return (None, None, None, None)
    low = None if low is None else max(-_MOST, low - kind.size)
    high = None if high is None else min(_MOST, high + kind.size)
    return (None, low, None, high) if kind.by_offset else (low, None, high, None)


def windows_over(
    kind: Sliding | None, messages: pa.Table, start: Moment | None = None, end: Moment | None = None
) -> pa.Table:
    """Windows that overlap ``start`` to ``end``, made up from the ``messages`` that a side of a join keeps: rows
    as those of `kept_windows`, without values.

    A side without windows of its own has one that holds all; its bounds are null.
    """
    by_offset = kind is not None and kind.by_offset
    bound = pa.int64() if by_offset else TIME
    index = np.arange(messages.num_rows)
    starts = ends = pa.nulls(messages.num_rows, bound)
    if kind is not None:
        places = messages[OFFSET if by_offset else MESSAGE_TIME].cast(pa.int64()).to_numpy()
        low, high = moment_us(start), moment_us(end)
        held_by = kind.windows_of(kind.slice_ends(places), low, None if high is None else high + kind.size)
        index, *bounds = kind.pairs(*held_by)
        starts, ends = (pa.array(values).cast(bound) for values in bounds)
    rows = messages.select([ORIGIN, OFFSET]).take(pa.array(index))
    rows = rows.append_column(START, starts).append_column(END, ends)
    found = rows.group_by([START, END, ORIGIN], use_threads=False).aggregate(_OF_ORIGIN)
    whole = found.group_by([START], use_threads=False).aggregate([("offset_count", "sum")])
    place = pc.index_in(found[START], whole[START])
    messages_each = whole["offset_count_sum"].take(place)
    return _by_window({START: found[START], END: found[END]}, messages_each, found)


def sessions_over(
    tables: MessageTables,
    view: StateView,
    start: Moment | None = None,
    end: Moment | None = None,
    key: Any = None,
) -> pa.Table:
    """Sessions of a join that overlap ``start`` to ``end``, of a key or of all, by start and key: a row for each that
    holds messages of one side, which are what it counts.
    """
    low, high, names = moment_us(start), moment_us(end), tables.session_names
    if key is None:
        first = None if low is None or low == _MOST else (low + 1,)
        parts = [part.select([*names, START, END]) for part in view[ENDS].scan(key_range(first))]
    else:
        values = _values(_public(names), key, "these sessions have no key: remove key=")
        asked = request_row(tables, dict(zip(names, values, strict=True)))
        parts = [view[SESSIONS].ranges(asked).rows.select([*names, START, END])]
    keys = [tables.schema.field(name) for name in names]
    bounds = [pa.field(name, pa.int64()) for name in (START, END)]
    found = pa.concat_tables([pa.schema([*keys, *bounds]).empty_table(), *parts])
    if low is not None:
        found = found.filter(pc.greater(found[END], low))
    if high is not None:
        found = found.filter(pc.less_equal(found[START], high))
    bound = tables.schema.field(tables.position).type
    starts, ends = (found[name].cast(bound) for name in (START, END))
    held = view[tables.name].ranges(found.select(names), starts, ends)
    rows = held.rows.select([ORIGIN, OFFSET]).append_column("window", held.request_index)
    each = rows.group_by(["window", ORIGIN], use_threads=False).aggregate(_OF_ORIGIN)
    window = each["window"]
    counts = np.bincount(held.request_index.to_numpy(), minlength=found.num_rows)
    keys_of = {name: found[name].take(window) for name in _public(names)}
    columns = {START: starts.take(window), END: ends.take(window), **keys_of}
    return _by_window(columns, pa.array(counts[window.to_numpy()]), each)


def _by_window(windows: Mapping[str, Values], events: Values, each: pa.Table) -> pa.Table:
    """``each`` origin in each of these ``windows``, with its offsets, as one row a window, in order."""
    of_origin = {"__origin": each[ORIGIN], "__first": each["offset_min"], "__last": each["offset_max"]}
    rows = pa.table({**windows, "__events": events, **of_origin})
    order = [START, *(name for name in windows if name not in (START, END)), END]
    rows = rows.sort_by([(name, "ascending") for name in (*order, "__origin")])
    number, _ = ranks(rows.select(order))  # which rise with the rows only where no key is text
    heads = np.flatnonzero(np.append(True, number[1:] != number[:-1])[: len(number)])
    lengths = np.diff(np.append(heads, len(number)))
    made = rows.select([*windows, "__events"]).take(pa.array(heads))
    offsets = nested_offsets(rows["__origin"], rows["__first"], rows["__last"], lengths)
    ours = [f"{name}_" if name in windows else name for name in (EVENTS, OFFSETS)]
    return made.append_column("__offsets", offsets).rename_columns([*windows, *ours])


def _bound(tables: MessageTables, time: Moment | None, offset: Moment | None) -> tuple[Any, ...]:
    if not tables.layout.by_time:
        return (offset,)
    if not tables.layout.ordered:
        if offset is not None:
            raise UsageError(
                "the identity of these messages has no order, so it cannot bound them: give bounds of time only",
                code="identity-order",
                layout=tables.layout.name,
            )
        return (moment_us(time),)
    if time is None and offset is not None:
        raise UsageError(
            "messages of this layout are in order of time: an offset bound also needs a time bound",
            code="message-range",
            layout=tables.layout.name,
        )
    return (moment_us(time), offset)


def _public(names: list[str]) -> list[str]:
    return [name for name in names if name != NO_KEY]


def _values(names: list[str], given: Any, none: str) -> tuple[Any, ...]:
    """One value for each of these columns; a single one may stand by itself."""
    values = given if isinstance(given, tuple) else (given,)
    if len(values) != len(names):
        why = "give one value for each of these columns" if names else none
        raise UsageError(why, code="message-range", columns=names, found=len(values))
    return values
