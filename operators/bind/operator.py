"""From a description and the schema of its input to a plan: everything is checked here, before anything happens."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pyarrow as pa

from tidestate.operators.bind.columns import input_columns, key_field, name_taken, require_columns
from tidestate.operators.bind.default_watermark import default_watermarks
from tidestate.operators.bind.edges import bind_edges, takes_edges
from tidestate.operators.bind.messages import bind_messages
from tidestate.operators.bind.named_zones import zones_for
from tidestate.operators.bind.output_origin import check_origin, with_origin
from tidestate.operators.bind.sided import bind_join, bind_overlaps, bind_sessions, bind_union
from tidestate.operators.bind.signs import as_stored, check_signs, says_signed
from tidestate.operators.bind.stages import bind_stages, check_computed
from tidestate.operators.bind.validation import check_signed
from tidestate.operators.bind.windowed import bind_windowed
from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import check_event_time, check_offset
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Rolling
from tidestate.operators.expressions.binding import Zones
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.travelling import TravellingExpression
from tidestate.operators.expressions.tree import ColumnNode, ExprNode, columns_needed
from tidestate.operators.plan.gaps import check_span, check_span_type
from tidestate.operators.plan.input_spec import InputSpec
from tidestate.operators.plan.plan import Plan
from tidestate.operators.rows.deduplicate import UNTIL, DedupPlan
from tidestate.operators.rows.passing import AlteredPlan
from tidestate.operators.windows.edges import EdgePlan
from tidestate.operators.windows.messages.plan import MessagePlan
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.rolling_plan import RollingPlan
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.plain import schema_with_fields
from tidestate.statestore.spec.tables import TIME


def bind_plan(description: Runnable, schema: pa.Schema, *, signed: bool = False, zones: Zones | None = None) -> Plan:
    """Check ``description`` against the input's ``schema``. Raises `UsageError`; nothing has happened then.

    ``signed``: rows whose column ``kind`` says ``retract`` take others back, as the panes of retracting operators do.
    ``zones``: the rules of those that its expressions name, of this installation at a start, of the manifest later.
    """
    description, signed = with_origin(description), signed or says_signed(description)
    check_computed(description, signed=signed)
    own_zones = zones_for(description, zones or {})
    staged = bind_stages(description.stages, schema, own_zones)
    if staged.stages:
        schema = schema_with_fields(staged.schema, input_columns(description, ()))
    plan = _bound(description, schema, signed, own_zones)
    _ = plan.tables, plan.exchanged  # a column that no table can hold is refused here
    plan = staged.read_by(plan)
    check_origin(plan)
    generator = plan.input.watermarks.generator.of_operator(plan.name)
    plan = plan.with_input(watermarks=msgspec.structs.replace(plan.input.watermarks, generator=generator))
    if (plan.renames, plan.zones) == (description.renames, own_zones):
        return plan
    return replace(plan, renames=description.renames, zones=own_zones)


def _bound(description: Runnable, schema: pa.Schema, signed: bool, zones: Zones) -> Plan:
    if signed and not isinstance(description, Union | Altered):
        check_signed(description)
    if signed:
        check_signs(description, schema)
    if isinstance(description, Deduplicate):
        return _bind_dedup(description, schema)
    if isinstance(description, Altered):
        return _bind_altered(description, schema, zones)
    if isinstance(description, Join):
        return bind_join(description, schema)
    if isinstance(description, Union):
        return bind_union(description, schema)
    if isinstance(description, SessionJoin):
        return bind_sessions(description, schema)
    if isinstance(description, OverlapJoin):
        return bind_overlaps(description, schema)
    windowed = of_type(description, Windowed)
    made = RollingPlan if isinstance(windowed.windows, Rolling) else WindowPlan
    plan = bind_windowed(windowed, schema, made, signed=signed, zones=zones)
    if windowed.known is not None:
        return bind_messages(plan, windowed.known, MessagePlan, horizon=windowed.horizon is not None)
    return bind_edges(plan, windowed, EdgePlan) if takes_edges(windowed.windows, windowed.watermarks) else plan


def _bind_altered(description: Altered, schema: pa.Schema, zones: Zones) -> AlteredPlan:
    columns = require_columns(input_columns(description, schema.names), schema)
    times = [description.event_time, *([description.end] if description.end in columns else [])]
    for name in times:
        check_event_time(name, schema)
    if clash := sorted({"reason", "watermark"} & set(columns)):
        raise name_taken("these names are reserved", clash)
    description = as_stored(description, columns)
    if description.offset is not None:
        check_offset(schema, description.offset)
    input_types = {name: schema.field(name).type for name in columns}
    # Tables have no dictionaries.
    plain = {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in input_types.items()}
    types = pa.schema([pa.field(name, TIME if name in times else kind) for name, kind in plain.items()])
    return AlteredPlan(
        name=description.name,
        input=InputSpec(
            event_time=description.event_time,
            schema=types,
            key=(types.field(description.event_time),),
            watermarks=description.watermarks
            or default_watermarks(description.event_time, description.watermark_delay_us),
            order=tuple(name for name in (description.origin, description.offset) if name),
        ),
        configuration=configuration_of(description),
        altered=description,
        shift=_row_span(description.shift_tree, types, zones),
        duration=_row_span(description.duration_tree, types, zones),
        in_order=description.in_order,
    )


def _row_span(tree: ExprNode | None, types: pa.Schema, zones: Zones) -> TravellingExpression | None:
    """What computes the span of each row, over rows with these columns. Raises `UsageError` for what is no span."""
    if tree is None:
        return None
    if isinstance(tree, ColumnNode):
        check_span(types, tree.name, "shifts or durations (a text that is no span names it)", "altered")
    schema = pa.schema([types.field(name) for name in columns_needed(tree)])
    span = TravellingExpression(tree, schema, zones=zones)
    check_span_type(span.type, "shifts or durations", "altered", expression=expression_text(tree)[:500])
    return span


def _bind_dedup(description: Deduplicate, schema: pa.Schema) -> DedupPlan:
    columns = require_columns(input_columns(description, schema.names), schema)
    check_event_time(description.event_time, schema)
    if clash := sorted({"reason", "watermark", UNTIL} & set(columns)):
        raise name_taken("these names are reserved", clash)
    description = as_stored(description, columns)
    fields = [pa.field(name, TIME if name == description.event_time else schema.field(name).type) for name in columns]
    return DedupPlan(
        name=description.name,
        input=InputSpec(
            event_time=description.event_time,
            schema=pa.schema(fields),
            key=tuple(key_field(pa.schema(fields).field(name)) for name in description.on),
            watermarks=description.watermarks
            or default_watermarks(description.event_time, description.watermark_delay_us),
        ),
        allowed_us=description.allowed_lateness_us or 0,
        configuration=configuration_of(description),
        within_us=description.within_us,
        in_order=description.in_order,
        follows=description.allowed_lateness_us is None,
        has_plain_rows=description.signed is False,
    )
