"""From a description and the schema of its input to a plan: everything is checked here, before anything happens."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from operators.aggregates import BoundAggregate, bind, inputs
from operators.dedup.description import Deduplicated
from operators.dedup.plan import UNTIL, DedupPlan
from operators.description import Runnable, Windowed
from operators.general.names import END, START
from operators.general.plan import GeneralPlan
from operators.joins.description import Joined
from operators.joins.plan import JoinPlan
from operators.plan import ONLY, PANE_KIND, PANE_TIME, PROCESSING_TIME, RESERVED, Plan
from operators.progress.generators import Fixed, IngestionTime, MaxEventTime
from operators.progress.tracker import Sources
from operators.sense import check_sense
from operators.sides import AT, SIDE
from operators.slices.plan import SlicePlan
from operators.transition import LIMIT_US
from operators.triggers import DEFAULT
from operators.watermarks import Watermarks, default_watermarks
from operators.windows import Given, Global, Sessions, Sliding
from statestore.errors import UsageError
from statestore.tables import TIME


def input_columns(description: Runnable, available: Sequence[str]) -> list[str]:
    """The input columns a description reads, each once, of those that are there."""
    if isinstance(description, Deduplicated):
        return list(dict.fromkeys([*available, description.event_time, *description.on, *_claimed(description)]))
    if isinstance(description, Joined):
        return list(dict.fromkeys([*available, SIDE, AT, *description.on, *_claimed(description)]))
    assert isinstance(description, Windowed)
    kind = description.windows
    added = _added(description)
    wanted = [
        *([description.event_time] if description.event_time else []),
        *description.key,
        *inputs(description.aggregates),
        *([kind.gap_column] if isinstance(kind, Sessions) and kind.gap_column else []),
        *(name for name in (description.origin, description.offset) if name),
        *((START, END) if kind is None else ()),
        *([PANE_KIND] if kind is None and PANE_KIND in available else []),
        *_claimed(description),
        *description.lateness.keep,
    ]
    return [name for name in dict.fromkeys(wanted) if name not in added]


def bind_plan(description: Runnable, schema: pa.Schema) -> Plan:
    """Check ``description`` against the input's ``schema``. Raises `UsageError`; nothing has happened then."""
    if isinstance(description, Deduplicated):
        return _bind_dedup(description, schema)
    if isinstance(description, Joined):
        return _bind_join(description, schema)
    assert isinstance(description, Windowed)
    if not description.aggregates:
        raise UsageError("say what to compute: .aggregate(n=count())", code="no-aggregate")
    check_sense(description)
    if description.windows is None and not {START, END} <= set(schema.names):
        raise UsageError("say which windows: .window(tumbling(...))", code="no-window")
    columns = input_columns(description, schema.names)
    _present(columns, schema)
    added = _added(description)
    if clash := sorted(set(added) & set(schema.names)):
        raise UsageError("this name is ours: rename the input column", code="name-taken", names=clash)
    times = [
        name for name in (description.event_time, *((START, END) if description.windows is None else ())) if name
    ]
    for name in times:
        if name not in added:
            _check_event_time(name, schema)
    keys = tuple(_key_field(schema.field(name)) for name in description.key)
    _check_order(description, schema)
    types = pa.schema(
        [pa.field(name, _input_type(name, times, description, schema)) for name in columns]
        + [pa.field(name, TIME) for name in added]
    )
    place = description.event_time or next(iter(added), description.offset or "")
    aggregates = tuple(
        bind(name, one, types, description.event_time or place) for name, one in description.aggregates
    )
    _check_names(description, aggregates)
    kind, lateness = description.windows or Given(), description.lateness
    late = kind.late if isinstance(kind, Sliding | Sessions) else None
    retained = description.retained
    operator = SlicePlan if _is_simple(description) else GeneralPlan
    plan = operator(
        name=description.name,
        kind=kind,
        event_time=place if late is None else description.offset or "",
        input_schema=types,
        key_fields=keys,
        aggregates=aggregates,
        # Everything before the watermark has been seen: the offset after the largest is the first that was not.
        watermarks=_watermarks(description, place)
        if late is None
        else default_watermarks(description.offset or "", -1),
        allowed_us=lateness.allowed_us if late is None else late,
        future_us=lateness.future_us if late is None else LIMIT_US,
        mode=description.mode,
        configuration=description.describe(),
        triggers=description.triggers,
        rule=lateness.rule if late is None else "window",
        order=tuple(name for name in (description.origin, description.offset) if name),
        added=added,
        retain_us=retained.span_us if retained else 0,
        retain_windows=retained.windows if retained else None,
    )
    _ = plan.tables, plan.exchanged  # a column that no table can hold is refused here
    return plan


def _claimed(description: Runnable) -> list[str]:
    """Columns that the watermark is claimed by."""
    return description.watermarks.columns if description.watermarks else []


def _watermarks(description: Windowed | Deduplicated, column: str) -> Watermarks:
    """As described; by default the largest event time less a delay, or the clock."""
    if isinstance(description, Windowed) and description.processing_time:
        return Watermarks(Fixed(0))
    return description.watermarks or default_watermarks(column, description.watermark_delay_us)


def _added(description: Windowed) -> tuple[str, ...]:
    """The column of times that the input lacks, if it lacks one that is needed."""
    if description.processing_time:
        return (PROCESSING_TIME,)
    if description.watermarks and isinstance(description.watermarks.generator, IngestionTime):
        return (description.watermarks.generator.column,)
    return (PANE_TIME,) if description.windows is None and description.event_time is None else ()


def _input_type(name: str, times: Sequence[str], description: Windowed, schema: pa.Schema) -> pa.DataType:
    if name in times:
        return TIME
    return pa.int64() if name == description.offset else schema.field(name).type


def _check_order(description: Windowed, schema: pa.Schema) -> None:
    if description.offset is not None and not pa.types.is_integer(schema.field(description.offset).type):
        raise UsageError(
            "offsets are whole numbers",
            code="offset",
            column=description.offset,
            type=str(schema.field(description.offset).type),
        )
    if description.origin is not None:
        _key_field(schema.field(description.origin))


def _bind_join(description: Joined, schema: pa.Schema) -> JoinPlan:
    columns = _present(input_columns(description, schema.names), schema)
    _check_event_time(AT, schema)
    if clash := sorted({"reason", "watermark", "kind"} & set(columns)):
        raise UsageError("these names are ours: rename the input columns", code="name-taken", names=clash)
    types = pa.schema([pa.field(name, TIME if name == AT else schema.field(name).type) for name in columns])
    by_side = Watermarks(MaxEventTime(AT, description.watermark_delay_us), Sources(description.sides.names), SIDE)
    return JoinPlan(
        name=description.name,
        kind=description.windows or Global(),
        event_time=AT,
        input_schema=types,
        key_fields=tuple(_key_field(types.field(name)) for name in description.on),
        aggregates=(),
        watermarks=description.watermarks or by_side,
        allowed_us=description.allowed_us,
        future_us=60_000_000,
        mode="discarding",
        configuration=description.describe(),
        triggers=DEFAULT,
        rule="window",
        joined=description,
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
        watermarks=_watermarks(description, description.event_time),
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
    kind = description.windows
    simple = isinstance(kind, Sliding) and not kind.by_offset and description.triggers == DEFAULT
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
    given = {START, END} if description.windows is not None else set()
    clash = sorted(set(input_columns(description, ())) & ({"reason", "watermark", ONLY} | given))
    if clash:
        raise UsageError("the late ledger uses these names: rename the input columns", code="name-taken", names=clash)
