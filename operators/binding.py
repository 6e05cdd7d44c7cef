"""From a description and the schema of its input to a plan: everything is checked here, before anything happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from operators.aggregates import BoundAggregate, bind, inputs
from operators.aggregates.signed import linear
from operators.aggregates.signed import signed as with_signs
from operators.dedup.description import Deduplicated
from operators.dedup.plan import UNTIL, DedupPlan
from operators.description import DISCARDING, Accumulation, Runnable, Windowed
from operators.general.names import END, START
from operators.general.plan import GeneralPlan
from operators.joins.description import Joined
from operators.joins.plan import JoinPlan
from operators.merging.delays import by_side
from operators.merging.description import Merged, SessionJoined, Unioned
from operators.merging.sessions import SessionJoinPlan
from operators.merging.union import UnionPlan
from operators.plan import ONLY, PANE_KIND, PANE_TIME, PROCESSING_TIME, RESERVED, Plan
from operators.progress.generators import Fixed, IngestionTime
from operators.sense import check_sense, check_signed
from operators.sides import AT, SIDE
from operators.slices.plan import SlicePlan
from operators.transition import LIMIT_US
from operators.triggers import DEFAULT
from operators.watermarks import Watermarks, default_watermarks
from operators.windows import Given, Global, Sessions, Sliding
from statestore.errors import UsageError
from statestore.messages.tables import OFFSET, ORIGIN
from statestore.tables import TIME


def input_columns(description: Runnable, available: Sequence[str], *, signed: bool = False) -> list[str]:
    """The input columns a description reads, each once, of those that are there; ``signed``: whether rows retract."""
    if isinstance(description, Deduplicated):
        return list(dict.fromkeys([*available, description.event_time, *description.on, *_claimed(description)]))
    if isinstance(description, Joined):
        return list(dict.fromkeys([*available, SIDE, AT, *description.on, *_claimed(description)]))
    if isinstance(description, Unioned | SessionJoined):
        shared = description.sides.shared
        return list(dict.fromkeys([*available, SIDE, AT, *shared, *_claimed(description)]))
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
        *([PANE_KIND] if signed or (kind is None and PANE_KIND in available) else []),
        *_claimed(description),
        *description.lateness.keep,
    ]
    return [name for name in dict.fromkeys(wanted) if name not in added]


def bind_plan(description: Runnable, schema: pa.Schema, *, signed: bool = False) -> Plan:
    """Check ``description`` against the input's ``schema``. Raises `UsageError`; nothing has happened then.

    ``signed``: rows whose column ``kind`` says ``retract`` take others back, as the panes of retracting operators do.
    """
    if signed and not isinstance(description, Unioned):
        check_signed(description)
    if isinstance(description, Deduplicated):
        return _bind_dedup(description, schema)
    if isinstance(description, Joined):
        return _bind_join(description, schema)
    if isinstance(description, Unioned):
        return _bind_union(description, schema)
    if isinstance(description, SessionJoined):
        return _bind_sessions(description, schema)
    assert isinstance(description, Windowed)
    if not description.aggregates:
        raise UsageError("say what to compute: .aggregate(n=count())", code="no-aggregate")
    check_sense(description)
    if description.windows is None and not {START, END} <= set(schema.names):
        raise UsageError("say which windows: .window(tumbling(...))", code="no-window")
    columns = input_columns(description, schema.names, signed=signed)
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
        [pa.field(name, _input_type(name, times, description, schema, signed)) for name in columns]
        + [pa.field(name, TIME) for name in added]
    )
    place = description.event_time or next(iter(added), description.offset or "")
    aggregates = tuple(
        bind(name, one, types, description.event_time or place) for name, one in description.aggregates
    )
    if signed:
        aggregates = _with_signs(aggregates, description.mode)
    _check_names(description, aggregates)
    kind, lateness = description.windows or Given(), description.lateness
    late = kind.late if isinstance(kind, Sliding | Sessions) else None
    retained = description.retained
    operator = SlicePlan if _is_simple(description) and not signed else GeneralPlan
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
        configuration=description.describe() | ({"signed": True} if signed else {}),
        triggers=description.triggers,
        rule=lateness.rule if late is None else "window",
        order=tuple(name for name in (description.origin, description.offset) if name),
        added=added,
        retain_us=retained.span_us if retained else 0,
        retain_windows=retained.windows if retained else None,
        signed=signed,
    )
    _ = plan.tables, plan.exchanged  # a column that no table can hold is refused here
    return plan


def _with_signs(aggregates: tuple[BoundAggregate, ...], mode: Accumulation) -> tuple[BoundAggregate, ...]:
    """The aggregates over rows that may take others back."""
    over = tuple(with_signs(bound, adds_up=mode == DISCARDING) for bound in aggregates)
    if wrong := [bound.name for bound in over if mode == DISCARDING and not linear(bound)]:
        raise UsageError(
            "its input takes rows back: of that only a count, or a sum of whole numbers or decimals, can show what "
            "is new alone; take another accumulation",
            code="signed",
            aggregates=wrong,
        )
    return over


def _claimed(description: Runnable) -> list[str]:
    """Columns that the watermark is claimed by."""
    if description.watermarks:
        return description.watermarks.columns
    return [SIDE] if isinstance(description, Merged) else []


def _watermarks(description: Windowed | Deduplicated, column: str) -> Watermarks:
    """As described; by default the largest event time less a delay, or the clock."""
    if isinstance(description, Windowed) and description.processing_time:
        return Watermarks(Fixed(0))
    if isinstance(description, Merged):
        return description.watermarks or by_side(description.sides, description.delays_us)
    return description.watermarks or default_watermarks(column, description.watermark_delay_us)


def _added(description: Windowed) -> tuple[str, ...]:
    """The column of times that the input lacks, if it lacks one that is needed."""
    if description.processing_time:
        return (PROCESSING_TIME,)
    if description.watermarks and isinstance(description.watermarks.generator, IngestionTime):
        return (description.watermarks.generator.column,)
    return (PANE_TIME,) if description.windows is None and description.event_time is None else ()


def _input_type(
    name: str, times: Sequence[str], description: Windowed, schema: pa.Schema, signed: bool
) -> pa.DataType:
    if name in times:
        return TIME
    if signed and name == PANE_KIND:
        return pa.string()
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
    taken = (PANE_KIND, *((START, END) if description.windows is not None else ()))
    types = _side_types(description, schema, taken)
    plan = JoinPlan(
        name=description.name,
        kind=description.windows or Global(),
        event_time=AT,
        input_schema=types,
        key_fields=tuple(_key_field(types.field(name)) for name in description.on),
        aggregates=(),
        watermarks=description.watermarks or by_side(description.sides, description.delays_us),
        allowed_us=description.allowed_us,
        future_us=60_000_000,
        mode="discarding",
        configuration=description.describe(),
        triggers=DEFAULT,
        rule="window",
        joined=description,
    )
    for side in description.sides.names:
        for what in (OFFSET, ORIGIN):
            _check_place(types, plan.given(side, what), what)
    positions = tuple((side, _position_of(plan, side)) for side in description.sides.names)
    if description.own is not None:
        plan = replace(plan, watermarks=replace(plan.watermarks, positions=positions, side=SIDE))
    _ = plan.tables, plan.exchanged  # a column that no table can hold is refused here
    return replace(plan, mode="retracting") if plan.takes_back else plan


def _position_of(plan: JoinPlan, side: str) -> str:
    """The column that places the rows of a side."""
    return plan.given(side, OFFSET) or AT if plan.joined.by_offset(side) else AT


def _check_place(types: pa.Schema, column: str | None, what: str) -> None:
    """That a side's offset or origin is there, and can be one."""
    if column is None:
        return
    if column not in types.names:
        raise UsageError("a side lacks columns", code="column-missing", missing=[column])
    if what == OFFSET and not pa.types.is_integer(types.field(column).type):
        raise UsageError(
            "offsets are whole numbers", code="offset", column=column, type=str(types.field(column).type)
        )
    if what == ORIGIN:
        _key_field(types.field(column))


def _bind_union(description: Unioned, schema: pa.Schema) -> UnionPlan:
    types = _side_types(description, schema, ())
    return UnionPlan(
        name=description.name,
        kind=Global(),
        event_time=AT,
        input_schema=types,
        key_fields=(types.field(AT),),
        aggregates=(),
        watermarks=description.watermarks or by_side(description.sides, description.delays_us),
        allowed_us=0,
        future_us=60_000_000,
        mode="retracting" if PANE_KIND in types.names else "discarding",
        configuration=description.describe(),
        triggers=DEFAULT,
        rule="event",
    )


def _bind_sessions(description: SessionJoined, schema: pa.Schema) -> SessionJoinPlan:
    types = _side_types(description, schema, (START, END, PANE_KIND))
    plan = SessionJoinPlan(
        name=description.name,
        kind=description.windows,
        event_time=AT,
        input_schema=types,
        key_fields=tuple(_key_field(types.field(name)) for name in description.session),
        aggregates=(),
        watermarks=description.watermarks or by_side(description.sides, description.delays_us),
        allowed_us=description.allowed_us,
        future_us=60_000_000,
        # A row that is not late is never of a session that was shown.
        mode="retracting" if description.allowed_us else "discarding",
        configuration=description.describe(),
        triggers=DEFAULT,
        rule="window",
        joined=description,
        equal_fields=tuple(_key_field(types.field(name)) for name in description.equal),
    )
    for side in description.sides.names:
        for what in (OFFSET, ORIGIN):
            _check_place(types, plan.given(side, what), what)
    _ = plan.tables, plan.exchanged  # a column that no table can hold is refused here
    return plan


def _side_types(
    description: Joined | Unioned | SessionJoined, schema: pa.Schema, taken: tuple[str, ...]
) -> pa.Schema:
    """The one stream's columns, plain where they are dictionaries: as tables have them."""
    columns = _present(input_columns(description, schema.names), schema)
    _check_event_time(AT, schema)
    if clash := sorted({"reason", "watermark", *taken} & set(columns)):
        raise UsageError("these names are ours: rename the input columns", code="name-taken", names=clash)
    types = [schema.field(name).type for name in columns]
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in types]
    pairs = zip(columns, plain, strict=True)
    return pa.schema([pa.field(name, TIME if name == AT else kind) for name, kind in pairs])


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
    kind = description.windows
    # Where the ledger names the windows that refused an event.
    named = description.triggers.finishes or (isinstance(kind, Sliding) and kind.size > kind.slide)
    given = {START, END} if kind is not None and named else set()
    clash = sorted(set(input_columns(description, ())) & ({"reason", "watermark", ONLY} | given))
    if clash:
        raise UsageError("the late ledger uses these names: rename the input columns", code="name-taken", names=clash)
