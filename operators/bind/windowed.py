"""Windowed descriptions, merges among them, as plans. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from msgspec.structs import replace

from tidestate.operators.aggregates.aggregate import BoundAggregate, bind
from tidestate.operators.aggregates.derived import Derived
from tidestate.operators.aggregates.derived_results import BoundDerived
from tidestate.operators.aggregates.expressed import expressed, expressions_of
from tidestate.operators.aggregates.signed import linear
from tidestate.operators.aggregates.signed import signed as with_signs
from tidestate.operators.bind.columns import (
    added,
    check_paths,
    input_columns,
    key_field,
    name_taken,
    require_columns,
)
from tidestate.operators.bind.default_watermark import by_side, default_watermarks
from tidestate.operators.bind.edges import check_edges
from tidestate.operators.bind.validation import check_sense
from tidestate.operators.bind.watermark_checks import check_buffers, check_columns_of_sides
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.describe.sides import check_event_time, check_offset
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.describe.windows import (
    PANE_TIME,
    WINDOW_TIMING,
    Counted,
    NamedWindow,
    Sessions,
    Sliding,
    Windows,
)
from tidestate.operators.expressions.binding import Zones
from tidestate.operators.expressions.travelling import TravellingExpression
from tidestate.operators.expressions.tree import ExprNode
from tidestate.operators.plan.gaps import check_gap
from tidestate.operators.plan.input_spec import InputSpec
from tidestate.operators.plan.plan import ONLY, OTHER_BOUNDS, PANE_KIND, RESERVED
from tidestate.operators.progress.generators import Fixed
from tidestate.operators.progress.numbers import MESSAGE_NUMBER, MessageNumbers
from tidestate.operators.progress.watermarks import LIMIT_US, Watermarks
from tidestate.operators.windows.names import END, START
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.shown import PaneCondition
from tidestate.operators.windows.tracked import TrackedOffsets
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME


def bind_windowed(
    description: Windowed, schema: pa.Schema, made: type[WindowPlan] = WindowPlan, *, signed: bool, zones: Zones
) -> WindowPlan:
    """The plan of the window operator, of the class that its windows need. Raises `UsageError`."""
    description = _ordered(description)
    types = _types(description, schema, signed)
    keys = tuple(key_field(schema.field(name)) for name in description.key)
    kind, retained = description.windows or NamedWindow(), description.retained
    lateness_us = None if description.horizon is not None else description.lateness_us
    description = replace(description, signed=signed, allowed_lateness_us=lateness_us)
    # Where offsets stand for times, they say how late is too late.
    late = kind.late
    lacking = added(description)
    place = description.event_time or next(iter(lacking), description.offset or "")
    aggregates = _aggregates(description, types, place, signed, zones)
    plan = made(
        name=description.name,
        kind=kind,
        input=InputSpec(
            event_time=place if late is None else next(iter(lacking), description.offset or ""),
            schema=types,
            key=keys,
            watermarks=_watermarks(description, place, kind),
            future_us=description.future_tolerance_us if late is None else LIMIT_US,
            order=tuple(name for name in (description.origin, description.offset) if name),
            added=lacking,
            signed=signed,
        ),
        aggregates=aggregates,
        allowed_us=description.lateness_us if late is None else late,
        mode=description.mode,
        configuration=configuration_of(description),
        triggers=description.triggers,
        rule=description.late_rule if late is None else "window",
        retain_us=retained.span_us if retained else 0,
        retain_windows=retained.windows if retained else None,
        in_order=description.in_order,
        tracked=_tracked(description, types),
        ledger_timing=description.ledger_timing,
        shown=_shown(description, types, aggregates, zones),
    )
    _check_shown(plan)
    return plan


def _ordered(description: Windowed) -> Windowed:
    """With the offset and origin of its messages for windows of offsets, where it names none."""
    by_offset = description.windows is not None and description.windows.by_offset
    if description.known is None or not by_offset or description.offset is not None:
        return description
    *origins, offset = description.known.identity
    return replace(description, offset=offset, origin=origins[0] if len(origins) == 1 else None)


def _types(description: Windowed, schema: pa.Schema, signed: bool) -> pa.Schema:
    """The columns that are read, as the plan has them, and those it adds."""
    if not description.aggregates:
        raise UsageError(
            "no aggregate is given: say what to compute, such as .aggregate(n=agg.count())", code="no-aggregate"
        )
    check_sense(description)
    check_edges(description)
    if isinstance(description, Merge):
        check_columns_of_sides(description.watermarks, description.sides, schema)
    if isinstance(description, Merge) and not description.sides.same_columns:
        check_buffers(description.watermarks, description.sides.shared, description.name)
    if description.windows is None and not {START, END} <= set(schema.names):
        raise UsageError("no windows are given: add .window(tumbling(…))", code="no-window")
    columns = require_columns(input_columns(description, schema.names, signed=signed), schema)
    lacking = added(description)
    if clash := sorted(set(lacking) & set(schema.names)):
        raise name_taken("this name is reserved", clash)
    bounds = (START, END) if description.windows is None else ()
    end = description.windows.end_column if isinstance(description.windows, Sliding) else None
    times = [name for name in (description.event_time, *bounds, end) if name]
    for name in times:
        if name not in lacking:
            check_event_time(name, schema)
    if isinstance(description.windows, Sessions) and description.windows.gap_column is not None:
        check_gap(schema, description.windows.gap_column)
    _check_order(description, schema)
    read = [pa.field(name, _input_type(name, times, description, schema, signed)) for name in columns]
    return pa.schema(read + [pa.field(name, pa.int64() if name == MESSAGE_NUMBER else TIME) for name in lacking])


def _aggregates(
    description: Windowed, types: pa.Schema, place: str, signed: bool, zones: Zones
) -> tuple[BoundAggregate, ...]:
    """The aggregates over these columns; over rows that may take others back, where ``signed``."""
    of_rows = {name: one for name, one in description.aggregates.items() if not isinstance(one, Derived)}
    if not of_rows:
        raise UsageError("columns are derived of results: give at least one aggregate of rows", code="no-aggregate")
    expressions = [expressions_of(name, aggregate, types, zones) for name, aggregate in of_rows.items()]
    names_of = zip(of_rows, expressions, strict=True)
    aggregates = tuple(bind(name, one.plain, one.types_after(types), place) for name, one in names_of)
    if signed:
        difference = description.mode == "discarding"
        aggregates = tuple(with_signs(bound, adds_up=difference) for bound in aggregates)
        derived_names = [name for name, one in description.aggregates.items() if isinstance(one, Derived)]
        if wrong := [*(bound.name for bound in aggregates if not linear(bound)), *derived_names] * difference:
            raise UsageError(
                'the input retracts rows, and with "discarding" only a count, or a sum of integers or decimals, '
                "can be emitted as a difference: use another accumulation",
                code="signed",
                aggregates=wrong,
            )
    aggregates = _with_derived(description, types, tuple(map(expressed, aggregates, expressions)), zones)
    _check_names(description, aggregates)
    return aggregates


def _pane_columns(description: Windowed, types: pa.Schema, results: Sequence[BoundAggregate]) -> pa.Schema:
    """The columns of panes that expressions of them may read."""
    kind = description.windows
    bound = pa.int64() if kind is not None and (kind.by_offset or isinstance(kind, Counted)) else TIME
    keys = [types.field(name) for name in description.key]
    bounds = [pa.field(START, bound), pa.field(END, bound)]
    return pa.schema([*bounds, *keys, *(pa.field(one.name, one.result_type) for one in results)])


def _with_derived(
    description: Windowed, types: pa.Schema, of_rows: tuple[BoundAggregate, ...], zones: Zones
) -> tuple[BoundAggregate, ...]:
    """All aggregates: those of rows, then those derived of their results, and of others that are derived before."""
    bound = list(of_rows)
    for name, aggregate in description.aggregates.items():
        if isinstance(aggregate, Derived):
            expression = _of_panes(name, aggregate.value, _pane_columns(description, types, bound), zones)
            bound.append(BoundDerived(name, aggregate, pa.null(), expression))
    return tuple(bound)


def _shown(
    description: Windowed, types: pa.Schema, aggregates: Sequence[BoundAggregate], zones: Zones
) -> PaneCondition | None:
    """Which panes are emitted. Raises `UsageError` for a condition that is none."""
    if description.having is None:
        return None
    columns = _pane_columns(description, types, aggregates)
    return PaneCondition(_of_panes("having", description.having, columns, zones, is_condition=True))


def _of_panes(
    name: str, tree: ExprNode, columns: pa.Schema, zones: Zones, *, is_condition: bool = False
) -> TravellingExpression:
    """An expression over columns of panes; errors say what it is of."""
    expression = TravellingExpression(tree, columns, is_condition, zones)
    try:
        _ = expression.bound
    except UsageError as error:
        raise UsageError(error.message, code=error.code, **{**error.context, "setting": name}) from None
    return expression


def _check_shown(plan: WindowPlan) -> None:
    """Raise `UsageError` where panes could stand that do not meet the condition of those that are shown."""
    if plan.shown is None:
        return
    why = ""
    if plan.triggers.per_element:
        why = "panes of single elements are not hidden one by one: use triggers by batch"
    elif plan.repeats and plan.mode == "discarding":
        why = (
            "the panes of a window are parts, which do not add up once some are hidden: use "
            '.accumulation("retracting")'
        )
    elif plan.repeats and plan.mode != "retracting":
        why = (
            "a window may emit several panes, and one that does not hold any longer has to be taken back: use "
            '.accumulation("retracting"), or let each window emit one pane, .allowed_lateness("0 seconds")'
        )
    if why:
        raise UsageError(f"with .having(…) {why}", code="having-mode", operator=plan.name)


def _tracked(description: Windowed, types: pa.Schema) -> TrackedOffsets | None:
    """The offsets that windows store. Raises `UsageError` where there are none, or where others have them."""
    if not description.window_offsets:
        return None
    offset, origin = description.offset, description.origin
    if description.known is not None:
        why = "windows of messages with an identity have their offsets already: remove .window_offsets()"
    elif isinstance(description, Merge):
        why = "offsets of several streams cannot be compared: set .messages(…), which has them by side"
    elif offset is None or description.signed:
        why = "offsets are those of a stream's messages: name their column, stream(offset=…)"
    else:
        return TrackedOffsets(offset, origin, pa.null() if origin is None else types.field(origin).type)
    raise UsageError(why, code="window-offsets", operator=description.name)


def _watermarks(description: Windowed, column: str, kind: Windows) -> Watermarks:
    """As described; by default the largest event time less a delay, or the clock; of rows that name their windows,
    and no event time, the largest start of a window.
    """
    if kind.numbered:
        return Watermarks(MessageNumbers(description.offset or "", description.origin))
    if kind.by_offset:
        # Everything before the watermark has been seen: the offset after the largest is the first that was not.
        return default_watermarks(description.offset or "", -1)
    if description.processing_time:
        return Watermarks(Fixed(0))
    if isinstance(description, Merge):
        return description.watermarks or by_side(description.sides, description.delays_us)
    if description.windows is None and column == PANE_TIME:
        # Rows of a window may come for as long as none of a later one has.
        column = START
    return description.watermarks or default_watermarks(column, description.watermark_delay_us)


def _input_type(
    name: str, times: Sequence[str], description: Windowed, schema: pa.Schema, signed: bool
) -> pa.DataType:
    if name in times:
        return TIME
    if signed and name == PANE_KIND:
        return pa.string()
    last = description.known.identity[-1] if description.known else None
    number = name == description.offset or (name == last and pa.types.is_integer(schema.field(name).type))
    return pa.int64() if number else schema.field(name).type


def _check_order(description: Windowed, schema: pa.Schema) -> None:
    if description.offset is not None:
        check_offset(schema, description.offset)
    if description.origin is not None:
        key_field(schema.field(description.origin))


def _check_names(description: Windowed, aggregates: tuple[BoundAggregate, ...]) -> None:
    state = [column.name for aggregate in aggregates for column in aggregate.state]
    results = [aggregate.name for aggregate in aggregates]
    check_paths(results)
    for names in (state, results):
        taken = [*description.key, *names]
        clash = sorted({n for n in taken if taken.count(n) > 1 or n in RESERVED or n.startswith("__")})
        if clash:
            raise name_taken("these names of keys and results are taken or reserved", clash, verb="with_columns")
    timing = {WINDOW_TIMING} if description.ledger_timing else set()
    clash = sorted(set(input_columns(description, ())) & {"reason", "watermark", ONLY, *OTHER_BOUNDS, *timing})
    if clash:
        raise name_taken("the late ledger uses these names", clash, verb="with_columns")
