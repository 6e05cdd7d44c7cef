"""What a manifest says of an operator, as tables and plans to read its state by: no description is needed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Aggregate, BoundAggregate
from tidestate.operators.aggregates.arithmetic import Plain, Variance
from tidestate.operators.aggregates.collection import ListAggregate, Quantile
from tidestate.operators.aggregates.distinct import Distinct, Top
from tidestate.operators.aggregates.selection import Choice
from tidestate.operators.aggregates.sketches import Sketch
from tidestate.operators.aggregates.timestamps import EndOfWindow
from tidestate.operators.bind.default_watermark import default_watermarks
from tidestate.operators.bind.evolve_columns import Configuration
from tidestate.operators.describe.sides import LEFT, RIGHT
from tidestate.operators.describe.triggers import DEFAULT
from tidestate.operators.describe.windows import Counted, Global, NamedWindow, Sessions, Sliding, Windows
from tidestate.operators.embedded.plan import METADATA, metadata_tables
from tidestate.operators.embedded.window_metadata import START, WindowTables
from tidestate.operators.joins.names import kept_as
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.general.names import GROUPS, NO_KEY
from tidestate.operators.windows.general.plan import GeneralPlan
from tidestate.operators.windows.slices.plan import SlicePlan
from tidestate.operators.windows.slices.succession import SucceedingPlan
from tidestate.operators.windows.slices.tables import FIRED, SLICES
from tidestate.statestore.durations import span_us
from tidestate.statestore.errors import CorruptionError, InvariantError, TidestateError, UsageError, invariant
from tidestate.statestore.messages.keys import parse_layout
from tidestate.statestore.messages.tables import MESSAGE_TIME, ORIGIN, MessageTables
from tidestate.statestore.spec.tables import TIME, TableSpec

MESSAGES = "messages"
_CLASSES: dict[str, type[Aggregate]] = {
    **dict.fromkeys(("count", "sum", "min", "max", "mean"), Plain),
    **dict.fromkeys(("variance", "stddev"), Variance),
    **dict.fromkeys(("first", "last", "earliest", "latest", "arg_min", "arg_max"), Choice),
    **dict.fromkeys(("list", "sorted_list"), ListAggregate),
    **dict.fromkeys(("quantile", "median"), Quantile),
    **dict.fromkeys(("set", "count_distinct", "count_by_value"), Distinct),
    "top_n": Top,
    "count_distinct_approx": Sketch,
    "end_of_window": EndOfWindow,
}


@contextmanager
def of_manifest(operator: str) -> Iterator[None]:
    """For whatever goes by a stored configuration: one that no job of ours has written is `CorruptionError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, InvariantError) as error:
        if isinstance(error, TidestateError) and not isinstance(error, InvariantError):
            raise
        raise CorruptionError(
            f"the manifest says of an operator what no job writes ({type(error).__name__}: {error}): put back a good "
            "copy, or run tidestate repair ROOT --to newest-good",
            code="manifest-damaged",
            operator=operator,
        ) from None


def windows_from(told: Configuration | None) -> Windows:
    """The windows that `describe` told of."""
    if told is None:
        return NamedWindow()
    kind = told["kind"]
    if kind in ("tumbling", "sliding"):
        return Sliding(*(span_us(told[name]) for name in ("size", "slide", "offset")))
    if kind == "offsets":
        return Sliding(told["count"], told["step"], told.get("start", 0), told["late"])
    if kind == "session":
        if "offsets" in told:
            return Sessions(told["offsets"], late=told["late"])
        return Sessions(span_us(told["gap"])) if "gap" in told else Sessions(gap_column=told["gap_column"])
    return (
        Counted(told["count"], told["step"]) if kind == "count" else Global() if kind == "global" else NamedWindow()
    )


def metadata_from(configuration: Configuration, tables: tuple[TableSpec, ...]) -> WindowTables | None:
    """The window metadata of an operator fed by hand; None where there is none."""
    specs = {spec.name: spec for spec in tables}
    if METADATA not in specs:
        return None
    keys = tuple(column for column in specs[METADATA].key if column.name != START)
    found = metadata_tables(windows_from(configuration["window"]), keys, specs[f"{METADATA}_offsets"].key[-1].type)
    invariant(all(spec in tables for spec in found.specs), "window metadata lies in the tables it was told to")
    return found


def stores_from(configuration: Configuration, tables: tuple[TableSpec, ...]) -> dict[str, MessageTables]:
    """The message stores of an operator by side; of one that has no sides under the empty name."""
    specs = {spec.name: spec for spec in tables}
    if METADATA in specs:
        said = configuration["operator"]
        if MESSAGES not in specs:
            return {}
        by_session = said["layout"].startswith("<session>")
        keys = [column.name for column in _window_key(specs, METADATA)]
        equal = said.get("equal", [] if by_session else keys)
        return {"": _store(specs[MESSAGES], said["layout"], keys if by_session else [], equal)}
    if isinstance(configuration.get("layout"), list) and {LEFT, RIGHT} <= set(specs):
        layouts = zip((LEFT, RIGHT), configuration["layout"], strict=True)
        by_session = configuration.get("session")
        equal = [kept_as(name) for name in configuration["on"] if name not in (by_session or ())]
        session = [] if by_session is None else [kept_as(name) for name in by_session] or [NO_KEY]
        return {side: _store(specs[side], layout, session, equal) for side, layout in layouts}
    return {}


def side_windows(configuration: Configuration, side: str) -> Sliding | None:
    """The windows of a side of a join; None where one holds all. Raises `UsageError` where there are none."""
    own, common = configuration.get("windows"), configuration.get("window")
    if own is None and common is None:
        raise UsageError(
            "this join goes by the distance of rows, not by windows: ask for its messages",
            code="query-windows",
            within=configuration.get("within"),
        )
    told = common if own is None else own[(LEFT, RIGHT).index(side)]
    if told is None:
        return None
    return _sliding(windows_from(told))


def _sliding(found: Windows) -> Sliding:
    if not isinstance(found, Sliding):
        raise InvariantError("these windows are of one size", code="invariant", found=repr(found))
    return found


def plan_from(name: str, configuration: Configuration, tables: tuple[TableSpec, ...]) -> Plan:
    """A plan that can read the windows of an operator, and do nothing else.

    Raises `UsageError` where there are no windows, or aggregates that only the description knows.
    """
    specs = {spec.name: spec for spec in tables}
    simple = SLICES in specs and GROUPS not in specs
    if not simple and GROUPS not in specs:
        raise UsageError("this operator has no windows with values", code="query-windows", operator=name)
    stored = specs[SLICES if simple else GROUPS]
    shown = specs[FIRED] if simple else stored
    place = configuration["event_time"] or ""
    retained = configuration.get("retained") or {}
    span = retained.get("span")
    keys = [pa.field(key, stored.schema.field(key).type) for key in configuration["key"]]
    plan = SlicePlan if simple else SucceedingPlan if SLICES in specs else GeneralPlan
    kind = windows_from(configuration["window"])
    return plan(
        name=name,
        kind=_sliding(kind) if SLICES in specs else kind,
        event_time=place,
        input_schema=pa.schema([]),
        key_fields=tuple(keys),
        aggregates=tuple(
            _bound(one, told, place, stored, shown.schema.field(one if simple else f"_last_{one}").type)
            for one, told in configuration["aggregates"].items()
        ),
        watermarks=default_watermarks(place, 0),
        allowed_us=span_us(configuration["allowed_lateness"]),
        future_us=0,
        mode=configuration["accumulation"],
        configuration=dict(configuration),
        triggers=DEFAULT,
        rule=configuration["late_rule"],
        retain_us=0 if not retained else None if span is None else span_us(span),
        retain_windows=retained.get("windows"),
        signed=bool(configuration.get("signed")),
    )


def _window_key(specs: Mapping[str, TableSpec], name: str) -> list[Any]:
    return [column for column in specs[name].key if column.name != START]


def _store(spec: TableSpec, layout: str, session: list[str], equal: list[str]) -> MessageTables:
    columns = {column.name: column for column in (*spec.key, *spec.values)}
    own = {MESSAGE_TIME, *session, *equal}
    found = MessageTables(
        parse_layout(layout.replace("<", "").replace(">", "")),
        tuple(column for column in spec.values if column.name not in own),
        equal=tuple(columns[name] for name in equal),
        session=tuple(columns[name] for name in session),
        time=columns[MESSAGE_TIME].type,
        origin=columns[ORIGIN].type,
        name=spec.name,
        partition_by=spec.partition_by,
    )
    invariant(found.messages == spec, "messages lie in the table they were told to", table=spec.name)
    return found


def _bound(name: str, told: Configuration, place: str, stored: TableSpec, result: pa.DataType) -> BoundAggregate:
    """An aggregate over columns of such types that its state and result are as they are stored."""
    kind = _CLASSES.get(told["function"])
    if kind is not None and set(told) <= set(kind.__dataclass_fields__):
        aggregate = kind(**told)
        for types in _types(aggregate, place, stored, result):
            try:
                bound = aggregate.bind(name, types, place)
            except UsageError:
                continue
            if set(bound.state) <= set(stored.values) and bound.result_type == result:
                return bound
    raise UsageError(
        "only its description knows how this aggregate is computed: give description= and schema=",
        code="query-description",
        aggregate=name,
        function=told["function"],
    )


def _types(aggregate: Aggregate, place: str, stored: TableSpec, result: pa.DataType) -> Iterator[pa.Schema]:
    """What the input columns of an aggregate may have been: all that its state is made of, and plain numbers."""
    own = [column.arrow for column in stored.values]
    inner = [kind.value_type for kind in own if pa.types.is_list(kind) or pa.types.is_large_list(kind)]
    numbers = [pa.int64(), pa.float64(), pa.uint64(), *(pa.decimal128(38, scale) for scale in range(38))]
    likely = list(dict.fromkeys([result, *own, *inner, *numbers, pa.string()]))
    names = [name for name in dict.fromkeys(aggregate.columns) if name != place]
    for types in product(likely, repeat=len(names)):
        yield pa.schema([*zip(names, types, strict=True), *([(place, TIME)] if place else [])])
