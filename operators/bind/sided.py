"""Joins, session joins and unions as plans. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidestate.operators.bind.columns import input_columns, key_field, name_taken, require_columns
from tidestate.operators.bind.default_watermark import by_side
from tidestate.operators.bind.signs import as_stored
from tidestate.operators.bind.watermark_checks import check_buffers, check_columns_of_sides
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import AT, SIDE, SIDES, Sides, check_offset
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windows import Global
from tidestate.operators.joins.overlaps import OverlapPlan
from tidestate.operators.joins.plan import JoinPlan, SessionJoinPlan
from tidestate.operators.plan.gaps import check_gap
from tidestate.operators.plan.input_spec import FUTURE_US, InputSpec
from tidestate.operators.plan.plan import PANE_KIND
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.watermarks import LIMIT_US, Watermarks
from tidestate.operators.rows.passing import UnionPlan
from tidestate.operators.windows.names import END, START
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.tables import OFFSET, ORIGIN
from tidestate.statestore.missing_columns import missing_columns


def bind_join(description: Join, schema: pa.Schema) -> JoinPlan:
    """The plan of a join over rows of ``schema``. Raises `UsageError`."""
    taken = (PANE_KIND, *((START, END) if description.windows is not None else ()))
    types = _side_types(description, schema, taken)
    plan = JoinPlan(
        name=description.name,
        kind=description.windows or Global(),
        input=_input(types, description.on, _watermarks(description)),
        allowed_us=description.allowed_us,
        configuration=configuration_of(description),
        joined=description,
        in_order=description.in_order,
    )
    _check_places(plan, types)
    return plan


def bind_union(description: Union, schema: pa.Schema) -> UnionPlan:
    """The plan of a union over rows of ``schema``. Raises `UsageError`."""
    types = _side_types(description, schema, ())
    description = as_stored(description, types.names)
    for column, what in ((description.offset, OFFSET), (description.origin, ORIGIN)):
        _check_place(types, column, what, description.sides, description.sides.names[0])
    return UnionPlan(
        name=description.name,
        input=_input(types, (AT,), _watermarks(description)),
        configuration=configuration_of(description),
        in_order=description.in_order,
        has_plain_rows=description.signed is False,
    )


def bind_sessions(description: SessionJoin, schema: pa.Schema) -> SessionJoinPlan:
    """A session join. Raises `UsageError`."""
    if description.windows.gap_column is not None:
        check_gap(schema, description.windows.gap_column)
    types = _side_types(description, schema, (START, END, PANE_KIND))
    late = description.windows.late
    allowed_us = description.allowed_us if late is None else late
    plan = SessionJoinPlan(
        name=description.name,
        kind=description.windows,
        input=_input(
            types,
            description.session,
            _of_offsets(description) if description.windows.by_offset else _watermarks(description),
            future_us=FUTURE_US if late is None else LIMIT_US,
            order=(AT,) if description.windows.by_offset else (),
        ),
        allowed_us=allowed_us,
        configuration=configuration_of(description),
        joined=description,
        equal_fields=tuple(key_field(types.field(name)) for name in description.equal),
    )
    _check_places(plan, types)
    return plan


def _watermarks(description: Join | Union | SessionJoin) -> Watermarks:
    return description.watermarks or by_side(description.sides, description.delays_us)


def _of_offsets(description: SessionJoin) -> Watermarks:
    """The smallest of the largest offsets of the sides; the offset after it is the first that may be missing."""
    usual, chosen = by_side(description.sides, (-1,) * len(SIDES)), description.watermarks
    if chosen is None:
        return usual
    if chosen.generator != MaxEventTime(AT) or chosen.by != SIDE:
        raise UsageError(
            "the watermark of sessions of offsets follows the offsets: to exclude idle sides, set "
            ".watermark(idle_timeout=…) on the streams",
            code="offset",
            operator=description.name,
        )
    return Watermarks(usual.generator, chosen.sources, SIDE)


def bind_overlaps(description: OverlapJoin, schema: pa.Schema) -> OverlapPlan:
    """A join by lifetimes. Raises `UsageError`."""
    types = _side_types(description, schema, (PANE_KIND,))
    if description.watermarks is None:
        raise UsageError(
            "a join by lifetimes needs CTIs: set .watermark(watermark.ctis(…)) on the streams",
            code="advance-time",
            operator=description.name,
        )
    for side, events in description.events.items():
        for what, column in zip((OFFSET, ORIGIN), reversed(events.order), strict=False):
            _check_place(types, column, what, description.sides, side)
    return OverlapPlan(
        name=description.name,
        input=_input(types, description.on, description.watermarks),
        configuration=configuration_of(description),
        joined=description,
        in_order=True,
    )


def _input(types: pa.Schema, key: Sequence[str], watermarks: Watermarks, **more: Any) -> InputSpec:
    """The rows of the one stream, by these columns."""
    fields = tuple(key_field(types.field(name)) for name in key)
    return InputSpec(event_time=AT, schema=types, key=fields, watermarks=watermarks, **more)


def _check_places(plan: JoinPlan | SessionJoinPlan, types: pa.Schema) -> None:
    """Check that offsets and origins of the sides are there, and can be ones."""
    for side in plan.joined.sides.names:
        for what in (OFFSET, ORIGIN):
            _check_place(types, plan.given(side, what), what, plan.joined.sides, side)


def _check_place(types: pa.Schema, column: str | None, what: str, sides: Sides, side: str) -> None:
    """Check that a side's offset or origin is there, and can be one."""
    if column is None:
        return
    if column not in types.names:
        there = sides.columns_of(side, types)
        raise missing_columns("a side lacks columns", [sides.own(side, column)], there, side=side)
    if what == OFFSET:
        check_offset(types, column)
    if what == ORIGIN:
        key_field(types.field(column))


def _side_types(
    description: Join | Union | SessionJoin | OverlapJoin, schema: pa.Schema, taken: tuple[str, ...]
) -> pa.Schema:
    """The one stream's columns, plain where they are dictionaries: as tables have them."""
    # Of a union all columns are shared.
    check_buffers(description.watermarks, schema.names if isinstance(description, Union) else (), description.name)
    check_columns_of_sides(description.watermarks, description.sides, schema)
    columns = require_columns(input_columns(description, schema.names), schema)
    description.sides.check_time(AT, schema)
    if clash := sorted({"reason", "watermark", *taken} & set(columns)):
        raise name_taken("these names are reserved", clash)
    types = [schema.field(name).type for name in columns]
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in types]
    pairs = zip(columns, plain, strict=True)
    return pa.schema([pa.field(name, description.sides.time_type if name == AT else kind) for name, kind in pairs])
