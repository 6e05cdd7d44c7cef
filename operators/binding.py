"""From a description and the schema of its input to a plan: everything is checked here, before anything happens."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from operators.aggregates import BoundAggregate, bind, inputs
from operators.dedup.description import Deduplicated
from operators.dedup.plan import UNTIL, DedupPlan
from operators.description import Runnable, Windowed
from operators.general.plan import GeneralPlan
from operators.plan import RESERVED, Plan
from operators.slices.plan import SlicePlan
from operators.triggers import DEFAULT
from operators.windows import Global, Sessions, Sliding
from statestore.errors import UsageError
from statestore.tables import TIME


def input_columns(description: Runnable, available: Sequence[str]) -> list[str]:
    """The input columns a description reads, each once, of those that are there."""
    if isinstance(description, Deduplicated):
        return list(dict.fromkeys([*available, description.event_time, *description.on]))
    assert isinstance(description, Windowed)
    kind = description.windows
    wanted = [
        description.event_time,
        *description.key,
        *inputs(description.aggregates),
        *([kind.gap_column] if isinstance(kind, Sessions) and kind.gap_column else []),
        *description.lateness.keep,
    ]
    return list(dict.fromkeys(wanted))


def bind_plan(description: Runnable, schema: pa.Schema) -> Plan:
    """Check ``description`` against the input's ``schema``. Raises `UsageError`; nothing has happened then."""
    if isinstance(description, Deduplicated):
        return _bind_dedup(description, schema)
    assert isinstance(description, Windowed)
    if description.windows is None:
        raise UsageError("say which windows: .window(tumbling(...))", code="no-window")
    if not description.aggregates:
        raise UsageError("say what to compute: .aggregate(n=count())", code="no-aggregate")
    columns = input_columns(description, schema.names)
    _present(columns, schema)
    _check_event_time(description.event_time, schema)
    keys = tuple(_key_field(schema.field(name)) for name in description.key)
    fields = [pa.field(name, TIME if name == description.event_time else schema.field(name).type) for name in columns]
    types = pa.schema(fields)
    aggregates = tuple(bind(name, one, types, description.event_time) for name, one in description.aggregates)
    _check_names(description, aggregates)
    operator = SlicePlan if _is_simple(description) else GeneralPlan
    return operator(
        name=description.name,
        kind=description.windows,
        event_time=description.event_time,
        input_schema=types,
        key_fields=keys,
        aggregates=aggregates,
        watermark_delay_us=description.watermark_delay_us,
        allowed_us=description.lateness.allowed_us,
        future_us=description.lateness.future_us,
        mode=description.mode,
        configuration=description.describe(),
        triggers=description.triggers,
        rule=description.lateness.rule,
    )


def _bind_dedup(description: Deduplicated, schema: pa.Schema) -> DedupPlan:
    columns = _present(input_columns(description, schema.names), schema)
    _check_event_time(description.event_time, schema)
    if clash := sorted({"reason", "watermark", UNTIL} & set(columns)):
        raise UsageError("these names are ours: rename the input columns", code="name-taken", names=clash)
    fields = [pa.field(name, TIME if name == description.event_time else schema.field(name).type) for name in columns]
    return DedupPlan(
        name=description.name,
        kind=Global(),
        event_time=description.event_time,
        input_schema=pa.schema(fields),
        key_fields=tuple(_key_field(pa.schema(fields).field(name)) for name in description.on),
        aggregates=(),
        watermark_delay_us=description.watermark_delay_us,
        allowed_us=0,
        future_us=60_000_000,
        mode="discarding",
        configuration=description.describe(),
        triggers=DEFAULT,
        rule="event",
        within_us=description.within_us,
    )


def _is_simple(description: Windowed) -> bool:
    """Whether windows need no look at what is stored: partials are merged blindly, and fire when they are due."""
    simple = isinstance(description.windows, Sliding) and description.triggers == DEFAULT
    return simple and description.lateness.rule == "event"


def _present(columns: list[str], schema: pa.Schema) -> list[str]:
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise UsageError(
            "the input lacks columns that the description names",
            code="column-missing",
            missing=missing,
            input=schema.names,
        )
    return columns


def _check_event_time(column: str, schema: pa.Schema) -> None:
    event_type = schema.field(column).type
    if not pa.types.is_timestamp(event_type) or event_type.tz is None:
        raise UsageError(
            "the event time is a timestamp with a time zone: cast it first",
            code="event-time-type",
            column=column,
            type=str(event_type),
        )


def _key_field(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_floating(kind):
        raise UsageError(
            "a key cannot be a floating-point number (equal keys may differ in their last bit): "
            "round or cast it to an integer, a decimal or text",
            code="key-float",
            column=field.name,
            type=str(kind),
        )
    if pa.types.is_decimal(kind) and kind.scale < 0:
        raise UsageError("a decimal key has no negative scale", code="key-type", column=field.name, type=str(kind))
    text = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal128(kind)
    plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)
    time = pa.types.is_timestamp(kind) and kind.unit != "ns"
    if not (text or plain or time):
        raise UsageError("a key cannot have this type", code="key-type", column=field.name, type=str(kind))
    return pa.field(field.name, kind)


def _check_names(description: Windowed, aggregates: tuple[BoundAggregate, ...]) -> None:
    state = [column.name for aggregate in aggregates for column in aggregate.state]
    results = [aggregate.name for aggregate in aggregates]
    for names in (state, results):
        taken = [*description.key, *names]
        clash = sorted({n for n in taken if taken.count(n) > 1 or n in RESERVED or n.startswith("__")})
        if clash:
            raise UsageError("these names are taken or reserved: choose others", code="name-taken", names=clash)
    clash = sorted(set(input_columns(description, ())) & {"reason", "watermark"})
    if clash:
        raise UsageError("the late ledger uses these names: rename the input columns", code="name-taken", names=clash)
