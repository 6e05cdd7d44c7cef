"""From a description and the schema of its input to the plan of an embedded window operator."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
from msgspec import structs

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.custom import BoundRows
from tidestate.operators.bind.columns import input_columns
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Counted, NamedWindow, Sessions, Sliding, Windows
from tidestate.operators.embedded.plan import NUMBER, FromMessages, OperatorPlan, metadata_tables, of_tuples
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.cti_settings import Ctis
from tidestate.operators.progress.watermarks import BufferProgress
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout, Use, choose_layout, parse_layout
from tidestate.statestore.messages.tables import MessageTables, Retention
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.plain import schema_with_fields
from tidestate.statestore.spec.tables import Column


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
    kept = tuple(dict.fromkeys((*description.ledger_columns, origin, offset, *equal)))
    described = structs.replace(description, ledger_columns=kept)
    if description.windows is not None and description.windows.by_offset:
        described = structs.replace(described, offset=offset, origin=origin)
    schema = schema_with_fields(schema, input_columns(described, ()))
    plan = bind_plan(described, schema)
    _check(plan)
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    over_messages = any(isinstance(a, BoundRows) for a in plan.aggregates)
    if plan.triggers.per_element and over_messages:
        raise UsageError("functions over messages see them as they are after a batch", code="trigger-element")
    by_store = described.mode != "discarding" and over_messages
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
    position = ("offset",) if of_tuples(plan.kind) else ("ts", "offset")
    bare = OperatorPlan(
        **values,
        origin=origin,
        offset=offset,
        identities=MessageTables(Layout(position), (), origin=origin_type),
        messages=None,
        metadata=metadata_tables(plan.kind, _window_keys(WindowPlan(**values)), origin_type),
        retention=retention,
    )
    settings: dict[str, Any] = {
        "origin": origin,
        "offset": offset,
        "layout": str(chosen),
        "retention": repr(retention),
    }
    settings |= {"equal": list(equal)} if equal else {}
    full = replace(bare, configuration=plan.configuration | {"operator": settings})
    return replace(full, messages=_messages(full, chosen, equal), aggregates=_aggregates(full)) if chosen else full


def _check(plan: Plan) -> None:
    """Raise `UsageError` for what an embedded operator cannot do."""
    if isinstance(plan.kind, NamedWindow) or plan.added or (plan.by_offset and isinstance(plan.kind, Sessions)):
        raise UsageError(
            "an embedded operator has windows of event time, of offsets, or of counted messages, and sessions of "
            "event time",
            code="operator-window",
        )
    if isinstance(plan.kind, Sliding) and plan.kind.end_column is not None:
        raise UsageError("an embedded operator has each event in the windows of its start", code="operator-window")
    if plan.in_order and isinstance(plan.kind, Counted):
        raise UsageError(
            "an embedded operator numbers messages as they come: give them in their order", code="in-order"
        )
    if isinstance(plan.watermarks.generator, Ctis | BufferProgress):
        raise UsageError("an embedded operator takes no CTIs and no buffers", code="operator-window")


def _layout(kind: Windows, asked: str | None, *, equal: bool) -> Layout:
    counted, sessions = of_tuples(kind), isinstance(kind, Sessions)
    if asked is None:
        use: Use = "join" if equal else "aggregate"
        return choose_layout("tuple" if counted else "time", use, equal=equal, large=equal, session=sessions)
    found = parse_layout(asked)
    if found.by_time == counted:
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


def _window_keys(plan: WindowPlan) -> tuple[Column, ...]:
    return plan.key_columns if plan.sessions else plan.key_specs
