"""Reading a message store: the messages of windows, sessions and equal fields, for many requests at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.retention import position_column
from tidestate.statestore.messages.tables import BOUND_NAMES, MESSAGE_TIME, OFFSET, MessageTables
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import Ranges
from tidestate.statestore.spec.keyrange import Key, KeyRange, as_scalar, key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.layers import assign_keys

FIRST, LAST = -(2**63), 2**63 - 1


def get_messages(
    tables: MessageTables,
    view: StateView,
    start: Key | None = None,
    end: Key | None = None,
    *,
    session: Key | None = None,
    equal: Key | None = None,
) -> pa.Table:
    """Messages from ``start`` to ``end``, both inclusive, in order of (time, offset, origin).

    A bound is ``(time, offset)`` or ``(time,)``, in layouts without time ``(offset,)``; None is no bound. ``session``
    and ``equal`` are values of all session key and equality columns. Columns: ``tables.schema``. Raises `UsageError`.
    """
    return messages_for(tables, view, _request(tables, start, end, session, equal)).rows


def scan_messages(
    tables: MessageTables,
    view: StateView,
    start: Key | None = None,
    end: Key | None = None,
    *,
    session: Key | None = None,
    equal: Key | None = None,
) -> Iterator[pa.Table]:
    """As `get_messages`, in the order of the store's key, in tables of bounded size; those of a key in one table."""
    request = _request(tables, start, end, session, equal)
    ask = _Requests(tables, _checked(tables, request))
    if ask.prefix or not ask.rows.num_rows:
        yield messages_for(tables, view, request).rows
        return
    for part in view[tables.messages.name].scan(_span(tables, ask)):
        rows = part.select(tables.schema.names)
        keep = ask.wants(Ranges(pa.array(np.zeros(rows.num_rows, np.int64)), rows))
        yield rows if keep.all() else rows.filter(pa.array(keep))


def messages_for(tables: MessageTables, view: StateView, requests: pa.Table) -> Ranges:
    """For each row of ``requests`` its messages, in order of (time, offset, origin), or (offset, origin) by tuples.

    ``requests`` may have the session key columns, the equality columns, and the inclusive bounds ``start_time``,
    ``start_offset``, ``end_time``, ``end_offset`` (int64 or of the time column's type; null: none); one column at
    least. A null in a session key or an equality column equals nothing. A request that does not give what leads the
    key reads the whole store (or its whole session). Raises `UsageError`; nothing has happened then.
    """
    ask = _Requests(tables, _checked(tables, requests))
    found = _candidates(tables, view, ask)
    keep = ask.wants(found)
    request_index, rows = np.asarray(found.request_index), found.rows.select(tables.schema.names)
    if not keep.all():
        request_index, rows = request_index[keep], rows.filter(pa.array(keep))
    if not ask.reads_in_order:
        order = _order(tables, request_index, rows)
        request_index, rows = request_index[order.to_numpy()], rows.take(order)
    return Ranges(pa.array(ask.number[request_index], pa.int64()), rows)


@dataclass(frozen=True)
class _Requests:
    """Requests without those that can find nothing, and their bounds as numbers: no bound is an end of the line."""

    tables: MessageTables
    every: pa.Table

    @cached_property
    def names(self) -> list[str]:
        """Session key and equality columns that are given, in the order of the layout's key."""
        tables = self.tables
        return [name for name in (*tables.session_names, *tables.equal_names) if name in self.every.column_names]

    @cached_property
    def number(self) -> Numbers:
        known = np.ones(self.every.num_rows, bool)
        for name in self.names:
            known &= np.asarray(self.every[name].is_valid())
        return np.flatnonzero(known)

    @cached_property
    def rows(self) -> pa.Table:
        return self.every.take(pa.array(self.number))

    @cached_property
    def prefix(self) -> list[str]:
        """The leading key columns that are given."""
        lead = self.tables.lead
        return [name for place, name in enumerate(lead) if set(lead[: place + 1]) <= set(self.names)]

    @property
    def bounded(self) -> bool:
        """Whether the position follows what is given, so that bounds narrow the read."""
        return self.prefix == self.tables.lead

    @property
    def reads_in_order(self) -> bool:
        """Whether the messages of a request come in order as they are stored."""
        parts = self.tables.layout.parts
        split = "ts" in parts and "eq" in parts and parts.index("ts") < parts.index("eq")
        return self.bounded and (not split or set(self.tables.equal_names) <= set(self.names))

    @cached_property
    def start(self) -> Numbers:
        return self._bound(f"start_{self.tables.position}", FIRST)

    @cached_property
    def end(self) -> Numbers:
        return self._bound(f"end_{self.tables.position}", LAST)

    def interval(self) -> tuple[pa.Array, pa.Array]:
        """Bounds of the position as columns, the upper one exclusive; null where there is none."""
        kind = self.tables.schema.field(self.tables.position).type
        least, most = _limits(kind)
        lower = position_column(np.clip(self.start, least, most), kind, self.start > least)
        # A bound that the type cannot hold lets rows through here; `wants` takes them out.
        end = np.clip(self.end, least, most)
        upper = position_column(np.where(end < most, end, 0) + 1, kind, end < most)
        return lower, upper

    def wants(self, found: Ranges) -> npt.NDArray[np.bool_]:
        """Which of the rows lie within the exact bounds of their request and have the values it gives."""
        request_index, rows = np.asarray(found.request_index), found.rows
        place = positions(rows[self.tables.position])
        start, end = self.start[request_index], self.end[request_index]
        keep = (place >= start) & (place <= end)
        if self.tables.layout.by_time and self.tables.layout.ordered:
            offset = rows[OFFSET].to_numpy()
            keep &= (place > start) | (offset >= self._bound("start_offset", FIRST)[request_index])
            keep &= (place < end) | (offset <= self._bound("end_offset", LAST)[request_index])
        for name in self.names:
            if name not in self.prefix:
                keep &= np.asarray(pc.equal(rows[name], self.rows[name].take(pa.array(request_index))))
        return np.asarray(keep, bool)

    def _bound(self, name: str, default: int) -> Numbers:
        if name not in self.rows.column_names:
            return np.full(self.rows.num_rows, default, np.int64)
        column = self.rows[name]
        whole = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
        numbers: Numbers = pc.fill_null(whole.cast(pa.int64()), default).to_numpy()
        return numbers


def _candidates(tables: MessageTables, view: StateView, ask: _Requests) -> Ranges:
    """Rows that a request may want, as narrow as the key allows."""
    lower, upper = ask.interval()
    if not ask.rows.num_rows:
        return Ranges(pa.array([], pa.int64()), tables.schema.empty_table())
    if ask.prefix:
        bounds = (lower, upper) if ask.bounded else (None, None)
        return view[tables.messages.name].ranges(ask.rows.select(ask.prefix), *bounds)
    return _shared(tables, view, ask, lower, upper)


def _shared(tables: MessageTables, view: StateView, ask: _Requests, lower: pa.Array, upper: pa.Array) -> Ranges:
    """One read of all positions that are requested, then the share of each request."""
    # Where something else leads, all is read anyway; unordered is cheaper, and a message never comes in parts.
    parts = view[tables.messages.name].scan(_span(tables, ask), folded=not tables.lead)
    columns = [*ask.names, tables.position]
    rest = [name for name in tables.schema.names if name not in columns]
    rows = pa.concat_tables([tables.messages.schema.empty_table(), *parts]).select([*columns, *rest])
    if tables.lead:
        place = positions(rows[tables.position])
        inside = (place >= ask.start.min()) & (place <= ask.end.max())
        rows = rows.filter(pa.array(inside)).sort_by(tables.position)
    if ask.rows.num_rows == 1 and not ask.names:
        return Ranges(pa.array(np.zeros(rows.num_rows, np.int64)), rows)
    return assign_keys(tables.messages, rows, ask.rows.select(ask.names), lower, upper)


def _span(tables: MessageTables, ask: _Requests) -> KeyRange:
    """All positions that are requested, where these lead the key."""
    first = int(ask.start.min()) if ask.bounded else FIRST
    last = int(ask.end.max()) if ask.bounded else LAST
    least, most = _limits(tables.schema.field(tables.position).type)
    low = None if first <= least else (min(first, most),)
    high = None if last >= most else (max(last, least - 1) + 1,)
    return key_range(low, high)


def _order(tables: MessageTables, request_index: Numbers, rows: pa.Table) -> pa.Array:
    keys = [*([tables.position] if tables.layout.by_time else []), *tables.identity_names]
    sortable = rows.select(keys).append_column("__request", pa.array(request_index))
    return pc.sort_indices(sortable, sort_keys=[(name, "ascending") for name in ("__request", *keys)])


def _checked(tables: MessageTables, requests: pa.Table) -> pa.Table:
    """Requests with the types of the store's columns. Raises `UsageError`."""
    known = {*tables.session_names, *tables.equal_names, *tables.bounds}
    _check(set(requests.column_names) <= known, "requests to this store may only have these columns", sorted(known))
    _check(bool(requests.column_names), "a request needs at least one of these columns", sorted(known))
    for names in (tables.session_names, tables.equal_names):
        given = [name for name in names if name in requests.column_names]
        _check(given in ([], names), "give either all of these columns or none of them", names)
    for bound in ("start", "end"):
        paired = f"{bound}_offset" not in requests.column_names or f"{bound}_time" in requests.column_names
        _check(paired or not tables.layout.by_time, "an offset bound also needs a time bound", [f"{bound}_time"])
    return pa.table({name: _typed(tables, name, requests[name]) for name in requests.column_names})


def _typed(tables: MessageTables, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name in BOUND_NAMES and (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        return column.cast(pa.int64())
    try:
        return column.cast(_type_of(tables, name))
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(
            f"a column of the requests has the wrong type ({error})", code="message-range", column=name
        ) from None


def _type_of(tables: MessageTables, name: str) -> pa.DataType:
    """The type of a bound or of a column of messages."""
    if name in BOUND_NAMES:
        name = OFFSET if name.endswith(OFFSET) else MESSAGE_TIME
    return tables.schema.field(name).type


def _request(
    tables: MessageTables, start: Key | None, end: Key | None, session: Key | None, equal: Key | None
) -> pa.Table:
    """A request of one row."""
    names = tables.bounds
    half = len(names) // 2
    values = [*_padded(start, names[:half]), *_padded(end, names[half:])]
    wanted = dict(zip(names, values, strict=True))
    for columns, given in ((tables.session_names, session), (tables.equal_names, equal)):
        if given is not None:
            _check(len(given) == len(columns) > 0, "give one value for each of these columns", columns)
            wanted |= dict(zip(columns, given, strict=True))
    return request_row(tables, wanted)


def request_row(tables: MessageTables, values: dict[str, Any]) -> pa.Table:
    """A request with these values, by the names of columns and bounds. Raises `UsageError` (``message-range``)."""
    columns = {}
    for name, value in values.items():
        kind = pa.int64() if value is None or isinstance(value, int) else _type_of(tables, name)
        kind = kind if name in BOUND_NAMES else _type_of(tables, name)
        try:
            columns[name] = pa.array([as_scalar(value, kind)], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"the value does not fit the type of its column ({error})", code="message-range", column=name
            ) from None
    return pa.table(columns)


def _padded(bound: Key | None, names: Sequence[str]) -> list[Any]:
    given, width = list(bound or ()), len(names)
    _check(len(given) <= width, "a bound has at most one value for each of these columns", list(names))
    return given + [None] * (width - len(given))


def _limits(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest number a position of this type can be."""
    if pa.types.is_integer(kind):
        bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    else:
        bits, signed = (32 if pa.types.is_date32(kind) else 64), True
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _check(holds: bool, message: str, columns: list[str]) -> None:
    if not holds:
        raise UsageError(message, code="message-range", columns=columns)
