"""Windows whose messages are known by an identity, as plans. Pure."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.bind.columns import key_field
from tidestate.operators.describe.windowed import KnownMessages
from tidestate.operators.describe.windows import Counted, NamedWindow, Sessions, Windows
from tidestate.operators.windows.messages.identity import Identity
from tidestate.operators.windows.messages.tables import (
    NUMBER,
    FromMessages,
    MessageWindows,
    metadata_tables,
    of_tuples,
)
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout, Use, choose_layout, parse_layout
from tidestate.statestore.messages.tables import MessageTables, Retention
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import Column

_P = TypeVar("_P", bound=MessageWindows)


def bind_messages(plan: GroupTables, known: KnownMessages, made: type[_P], *, horizon: bool) -> _P:
    """A ``plan`` as one of this class, whose messages are known by an identity. Raises `UsageError`; nothing has
    happened then.
    """
    identity = _identity(plan, known)
    _check(plan)
    if not identity.ordered:
        _check_unordered(plan, known)
    if plan.kind.numbered:
        _check_numbered(known)
    if plan.by_number and plan.input.order:
        plan = plan.with_input(order=_numbered_by(plan, identity))
    reading = _reads_messages(plan)
    whole = tuple(a for a in plan.aggregates if reading and _keeps_all(a))
    wanted = bool(whole) or known.retention is not None or known.layout is not None or bool(known.equal)
    chosen = _layout(plan.kind, known.layout, equal=bool(known.equal), ordered=identity.ordered) if wanted else None
    if chosen and known.equal and plan.input.key_names and not chosen.by_session:
        raise UsageError(
            "equal= names the key of these windows: remove equal= or choose a layout with a session key",
            code="message-layout",
            layout=chosen.name,
        )
    by, position = plan.partition_by, Layout(("ts", "offset") if _forgets_by_time(plan) else ("offset",))
    position = position if identity.ordered else position.unordered
    window_keys = plan.key_columns if plan.sessions else plan.input.key_specs
    bare = made(
        **{field.name: getattr(plan, field.name) for field in fields(plan)},
        known_by=identity,
        identities=MessageTables(position, (), plan.input.key_specs, origin=identity.origin_type, partition_by=by),
        messages=None,
        metadata=replace(
            metadata_tables(plan.kind, window_keys, identity.origin_type, by),
            refuses=plan.overlapping,
            ordered=identity.ordered,
        ),
        retention=known.retention,
        horizon=horizon and known.retention is not None and known.retention.by_size,
    )
    if chosen is None:
        return bare
    if whole:
        _check_shown_again(plan)
    return replace(
        bare,
        messages=_messages(bare, chosen, known.equal),
        aggregates=tuple(_from_messages(bare, a) if a in whole else a for a in plan.aggregates),
    )


def _identity(plan: GroupTables, known: KnownMessages) -> Identity:
    """The columns of the identity. Raises `UsageError` for types that cannot be one."""
    if not pa.types.is_integer(plan.input.schema.field(known.identity[-1]).type):
        return Identity(tuple(key_field(plan.input.schema.field(name)) for name in known.identity), None)
    *origins, offset = known.identity
    fields_of = tuple(key_field(plan.input.schema.field(name)) for name in origins)
    wrong = [one.name for one in fields_of if not (pa.types.is_string(one.type) or pa.types.is_integer(one.type))]
    if len(origins) > 1 and wrong:
        raise UsageError(
            "the origin columns of an identity must be text or integers: cast the others",
            code="message-identity",
            columns=wrong,
        )
    if plan.by_offset and plan.input.order[-1] != offset:
        raise UsageError(
            "windows of offsets must use the offset of the identity, but stream(offset=…) names another column",
            code="message-identity",
            offset=plan.input.order[-1],
            identity=known.identity,
        )
    return Identity(fields_of, offset)


def _numbered_by(plan: GroupTables, identity: Identity) -> tuple[str, ...]:
    """The columns by which counted windows number messages: all of the identity. Raises `UsageError` where
    ``origin=`` and ``offset=`` of the input say another order.
    """
    if identity.columns[-len(plan.input.order) :] != list(plan.input.order):
        raise UsageError(
            "counted windows number messages by their identity, but stream(origin=…, offset=…) names another "
            "order: remove one of the two, or end the identity with the same columns",
            code="message-identity",
            order=plan.input.order,
            identity=identity.columns,
        )
    return tuple(identity.columns)


def _reads_messages(plan: GroupTables) -> bool:
    """Whether functions of all rows of a window read the message store: not where a pane is of some of the messages
    only, those that are new, those before an element or before its trigger finished, those whose turn has come, or
    those that no other takes back; and not where bounds do not say which messages are of a window: by lifetime, of
    sessions of any gap that overlap others which are closed, or of numbers that are not stored with messages.
    """
    triggers = plan.triggers
    some = plan.mode == "discarding" or triggers.per_element or triggers.finishes or plan.input.signed
    held = plan.in_order and (triggers.early is not None or triggers.when is not None)
    overlap = plan.sessions and not plan.in_cells and plan.rule == "window"
    return not (some or held or overlap or plan.touching or plan.kind.numbered)


def _keeps_all(bound: BoundAggregate) -> bool:
    """Whether its state has something of every event."""
    return any(column.combiner == "append" for column in bound.state)


def _forgets_by_time(plan: GroupTables) -> bool:
    """Whether lateness says how long an identity is known, so that it is forgotten by its time and not its offset."""
    timed = plan.input.event_time not in plan.input.added and plan.input.event_time not in plan.input.order
    # Where messages are numbered, the number stands for the time.
    return not of_tuples(plan.kind) or plan.kind.numbered or (plan.by_number and timed and plan.rule == "event")


def _check(plan: GroupTables) -> None:
    """Raise `UsageError` for windows whose messages are not known."""
    if isinstance(plan.kind, NamedWindow):
        raise UsageError(
            "windows that the rows themselves name may overlap in any way, so messages cannot be assigned to "
            "them: set .messages(…) on the operator that makes these panes",
            code="operator-window",
        )
    if plan.rolling:
        raise UsageError(
            "rolling windows do not know messages by an identity: remove .messages(…), and run them on Spark or "
            "standalone, not by hand",
            code="rolling-window",
        )
    if plan.in_order and isinstance(plan.kind, Counted):
        raise UsageError(
            "messages with an identity are numbered in order of arrival: remove .in_order()", code="in-order"
        )


def _check_shown_again(plan: GroupTables) -> None:
    """Raise `UsageError` where a window that reads its messages, and whose lost ones were put back, could not be
    judged again by the condition of panes that are shown.
    """
    if plan.shown is None:
        return
    why, triggers = "", plan.triggers
    if plan.mode != "retracting":
        why = (
            "its pane has to be taken back if it does not hold any longer once lost messages are there again: use "
            '.accumulation("retracting")'
        )
    elif triggers.closing == "never" and (triggers.when is not None or triggers.on_time == "never"):
        # Such a window has nothing pending once it is closed, whether a pane of it was due or not.
        why = (
            "it is not known of a closed one whether a pane was due, and so whether to show it once lost messages "
            'are there again: use .trigger(closing="if_new") or "always"'
        )
    if why:
        raise UsageError(
            f"with .having(…) of a window with aggregates that read stored messages {why}; or use aggregates that do "
            "not keep each value",
            code="having-mode",
            operator=plan.name,
        )


def _check_unordered(plan: GroupTables, known: KnownMessages) -> None:
    """Raise `UsageError` for what goes by the order of messages, where their identity has none."""
    if of_tuples(plan.kind):
        raise UsageError(
            "windows of messages or of offsets need an identity that ends in an integer column, by which messages "
            "are numbered: use windows of time, or another identity",
            code="identity-order",
            identity=known.identity,
        )
    if known.retention is not None and known.retention.by_size:
        raise UsageError(
            "a retention by number or size keeps the messages with the last offsets, and this identity has no "
            "offset: use a retention by time, or an identity that ends in an integer column",
            code="identity-order",
            identity=known.identity,
        )


def _check_numbered(known: KnownMessages) -> None:
    """Raise `UsageError` where messages are to be stored that lie in windows of their numbers."""
    if known.retention is not None or known.layout is not None or known.equal:
        raise UsageError(
            "sessions of messages know messages by their identity, but store none: remove retain=, layout= and "
            "equal=, or use sessions of offsets, offset_sessions(…)",
            code="message-sessions",
        )


def _layout(kind: Windows, asked: str | None, *, equal: bool, ordered: bool) -> Layout:
    counted, sessions = of_tuples(kind), isinstance(kind, Sessions)
    if asked is None:
        use: Use = "join" if equal else "aggregate"
        chosen = choose_layout("tuple" if counted else "time", use, equal=equal, large=equal, session=sessions)
        return chosen if ordered else chosen.unordered
    found = parse_layout(asked)
    if found.ordered != ordered:
        raise UsageError(
            "use a layout that ends in _offset if the identity ends in an integer column, and one that ends in "
            "_id if not",
            code="message-layout",
            layout=asked,
        )
    if found.by_time == counted:
        raise UsageError(
            "messages of count windows need a layout in order of offset, those of other windows one in order of time",
            code="message-layout",
            layout=asked,
        )
    return found


def _messages(plan: MessageWindows, layout: Layout, equal: tuple[str, ...]) -> MessageTables:
    fields = tuple(Column(name, type_text(plan.input.schema.field(name).type)) for name in equal)
    equals = fields or (() if layout.by_session else plan.input.key_specs)
    keys = () if not layout.by_session else plan.key_columns
    position = {plan.input.event_time, plan.known_by.origin, plan.known_by.offset}
    if both := position & {column.name for column in (*keys, *equals)}:
        raise UsageError(
            "stored messages have their own columns for time and identity: add a copy of the column under another "
            "name, and use that in the key or in equal=",
            code="message-identity",
            columns=sorted(both),
        )
    own = position | {column.name for column in (*keys, *equals)}
    payload = [Column(field.name, type_text(field.type)) for field in plan.input.schema if field.name not in own]
    number = [Column(NUMBER, "int64")] if plan.by_number else []
    return MessageTables(
        layout,
        tuple(payload + number),
        equal=equals,
        session=keys,
        retention=plan.retention or Retention(),
        origin=plan.identities.origin,
        partition_by=plan.partition_by,
    )


def _from_messages(plan: MessageWindows, bound: BoundAggregate) -> FromMessages:
    names = tuple((name, plan.message_column(name)) for name in bound.aggregate.columns)
    turn = (plan.input.event_time, *plan.known_by.columns) if plan.in_order else ()
    by = tuple(plan.message_column(name) for name in turn)
    return FromMessages(bound.name, bound.aggregate, bound.input_type, bound, names, by)
