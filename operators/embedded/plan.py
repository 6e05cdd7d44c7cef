"""The plan of a window operator: the general one, and beside its tables those of messages and of window metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidestate.operators.aggregates import BoundAggregate
from tidestate.operators.aggregates.custom import BoundRows
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Counted, Given, Global, Sessions, Sliding, Windows, by_offset
from tidestate.operators.embedded.window_metadata import WindowTables
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.watermarks import BufferProgress
from tidestate.operators.windows.assignment import FIRST_US, LAST_US
from tidestate.operators.windows.general.names import ALONE
from tidestate.operators.windows.general.plan import GeneralPlan
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout, Use, choose_layout, parse_layout
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN, MessageTables, Retention
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.changes import Ranges
from tidestate.statestore.spec.lists import nested
from tidestate.statestore.spec.tables import TIME, Column, TableSpec

NUMBER = "_number"
"""Of messages in counted windows: which of its key it is."""
METADATA = "metadata"
"""The name of the tables of window metadata."""
Read = Callable[[pa.Table], Ranges]
"""The messages of each of some windows: rows with window bounds and key, as the groups table has them."""


def _unread(windows: pa.Table) -> Ranges:
    raise UsageError("messages are read within a step only", code="message-range", windows=windows.num_rows)


@dataclass(frozen=True)
class FromMessages(BoundAggregate):
    """A function over the rows of a window, read from the message store when the window shows a pane."""

    rows: BoundRows
    columns: tuple[str, ...]
    """Of the message store, one for each that the function reads."""
    read: Read = _unread

    @property
    def state(self) -> tuple[Column, ...]:
        """Nothing of its own: the messages are the state."""
        return ()

    @property
    def result_type(self) -> pa.DataType:
        """As declared."""
        return self.rows.result_type

    def lift(self, events: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        """Nothing."""
        return []

    def finish(self, partials: pa.Table) -> pa.Array | pa.ChunkedArray:
        """By the function, over all messages of these windows in order of (time, offset, origin)."""
        found = self.read(partials)
        lengths = np.bincount(np.asarray(found.asker), minlength=partials.num_rows).astype(np.int64)
        lists = [
            nested(found.rows[name].combine_chunks(), lengths, kept.arrow)
            for name, kept in zip(self.columns, self.rows.state, strict=True)
        ]
        return self.rows.finish(pa.table(lists, names=[column.name for column in self.rows.state]))


@dataclass(frozen=True, kw_only=True)
class OperatorPlan(GeneralPlan):
    """``messages`` is None where nothing needs the messages again: then only their identities are kept."""

    origin: str
    offset: str
    identities: MessageTables
    messages: MessageTables | None
    metadata: WindowTables
    retention: Retention | None

    @property
    def named_by(self) -> list[str]:
        """With the columns of its place in the input."""
        return [*super().named_by, self.origin, self.offset]

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        kept = self.messages.specs if self.messages else (self.identities.seen, self.identities.marks)
        return (*super().tables, *kept, *self.metadata.specs)

    @property
    def layout(self) -> Layout | None:
        """The key layout of the messages."""
        return self.messages.layout if self.messages else None

    def reading(self, read: Read) -> OperatorPlan:
        """The same plan with its functions over messages reading by ``read``."""
        given = tuple(replace(a, read=read) if isinstance(a, FromMessages) else a for a in self.aggregates)
        return replace(self, aggregates=given)

    def message_column(self, name: str) -> str:
        """What an input column is called in the message store."""
        return {self.event_time: MESSAGE_TIME, self.origin: ORIGIN, self.offset: OFFSET}.get(name, name)

    def as_messages(self, rows: pa.Table) -> pa.Table:
        """Input rows with the columns of the message store."""
        rows = rows.rename_columns([self.message_column(name) for name in rows.column_names])
        if self.by_offset:
            rows = rows.append_column(MESSAGE_TIME, rows[OFFSET].cast(TIME))
        if self.messages is not None and self.messages.layout.by_session and not self.key_names:
            rows = rows.append_column(ALONE, pa.array(np.zeros(rows.num_rows, np.int8)))
        return rows


def bind_operator(
    description: Windowed,
    schema: pa.Schema,
    *,
    origin: str,
    offset: str,
    retention: Retention | None,
    layout: str | None,
    equal: tuple[str, ...] = (),
) -> OperatorPlan:
    """Check everything against the input's ``schema``. Raises `UsageError`; nothing has happened then."""
    kept = tuple(dict.fromkeys((*description.lateness.keep, origin, offset, *equal)))
    told = replace(description, lateness=replace(description.lateness, keep=kept))
    if description.windows is not None and by_offset(description.windows):
        told = replace(told, offset=offset, origin=origin)
    plan = bind_plan(told, schema)
    if isinstance(plan.kind, Given) or plan.added or (plan.by_offset and isinstance(plan.kind, Sessions)):
        raise UsageError(
            "the operator fed by hand has windows of event time, of offsets, or of counted messages, and sessions of "
            "event time",
            code="operator-window",
        )
    if plan.in_order and isinstance(plan.kind, Counted):
        raise UsageError(
            "the operator fed by hand numbers messages as they come: give them in their order", code="in-order"
        )
    if isinstance(plan.watermarks.generator, Ctis | BufferProgress):
        raise UsageError("the operator fed by hand knows no CTIs and no buffers", code="operator-window")
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    over_messages = any(isinstance(a, BoundRows) for a in plan.aggregates)
    if plan.triggers.per_element and over_messages:
        raise UsageError("functions over messages see them as they are after a batch", code="trigger-element")
    by_store = told.mode != "discarding" and over_messages
    if plan.in_order and by_store and (plan.triggers.early or plan.triggers.when):
        raise UsageError("functions over messages see those that are held: leave early panes out", code="in-order")
    wanted = by_store or retention is not None or layout is not None or bool(equal)
    chosen = _layout(plan.kind, layout, equal=bool(equal)) if wanted else None
    if chosen and equal and plan.key_names and not chosen.by_session:
        raise UsageError(
            "the equal field of these windows is their key: leave equal= out, or take a layout with a session key",
            code="message-layout",
            layout=chosen.name,
        )
    origin_type = type_text(plan.input_schema.field(origin).type)
    position = ("offset",) if _of_tuples(plan.kind) else ("ts", "offset")
    bare = OperatorPlan(
        **values,
        origin=origin,
        offset=offset,
        identities=MessageTables(Layout(position), (), origin=origin_type),
        messages=None,
        metadata=metadata_tables(plan.kind, _window_keys(GeneralPlan(**values)), origin_type),
        retention=retention,
    )
    said: dict[str, Any] = {"origin": origin, "offset": offset, "layout": str(chosen), "retention": repr(retention)}
    said |= {"equal": list(equal)} if equal else {}
    full = replace(bare, configuration=description.describe() | {"operator": said})
    return replace(full, messages=_messages(full, chosen, equal), aggregates=_aggregates(full)) if chosen else full


def _of_tuples(kind: Windows) -> bool:
    """Whether windows are of messages, by number or by offset."""
    return isinstance(kind, Counted) or by_offset(kind)


def _layout(kind: Windows, asked: str | None, *, equal: bool) -> Layout:
    of_tuples, sessions = _of_tuples(kind), isinstance(kind, Sessions)
    if asked is None:
        use: Use = "join" if equal else "aggregate"
        return choose_layout("tuple" if of_tuples else "time", use, equal=equal, large=equal, session=sessions)
    found = parse_layout(asked)
    if found.by_time == of_tuples:
        raise UsageError(
            "messages of count windows are ordered by offset, those of other windows by time",
            code="message-layout",
            layout=asked,
        )
    return found


def _messages(plan: OperatorPlan, layout: Layout, equal: tuple[str, ...]) -> MessageTables:
    fields = tuple(Column(name, type_text(plan.input_schema.field(name).type)) for name in equal)
    equals = fields or (() if layout.by_session else plan.key_specs)
    keys = () if not layout.by_session else plan.key_columns
    own = {plan.event_time, plan.origin, plan.offset, *(column.name for column in (*keys, *equals))}
    payload = [Column(field.name, type_text(field.type)) for field in plan.input_schema if field.name not in own]
    number = [Column(NUMBER, "int64")] if plan.by_number else []
    return MessageTables(
        layout,
        tuple(payload + number),
        equal=equals,
        session=keys,
        retention=plan.retention or Retention(),
        origin=plan.identities.origin,
    )


def _aggregates(plan: OperatorPlan) -> tuple[BoundAggregate, ...]:
    if plan.mode == "discarding":
        return plan.aggregates  # a pane holds what is new: the rows since the last one are state of the window
    return tuple(_from_messages(plan, a) if isinstance(a, BoundRows) else a for a in plan.aggregates)


def _from_messages(plan: OperatorPlan, rows: BoundRows) -> FromMessages:
    columns = tuple(plan.message_column(name) for name in rows.own.reads)
    return FromMessages(rows.name, rows.aggregate, rows.input_type, rows, columns)


def _window_keys(plan: GeneralPlan) -> tuple[Column, ...]:
    return plan.key_columns if plan.sessions else plan.key_specs


def metadata_tables(kind: Windows, keys: tuple[Column, ...], origin: str) -> WindowTables:
    """Of windows of this kind, by these key columns, in the order of the windows' table."""
    if isinstance(kind, Sessions):
        return WindowTables("time", None, keys, origin=origin, name=METADATA)
    if _of_tuples(kind):
        assert isinstance(kind, Counted | Sliding)
        return WindowTables("tuple", _length(kind), keys, origin=origin, name=METADATA)
    assert isinstance(kind, Global | Sliding)
    size = LAST_US - FIRST_US if isinstance(kind, Global) else kind.size
    return WindowTables("time", size, keys, origin=origin, name=METADATA)


def _length(kind: Counted | Sliding) -> int:
    return kind.count if isinstance(kind, Counted) else kind.size
