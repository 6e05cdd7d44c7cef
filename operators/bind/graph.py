"""From a description and the schemas of its streams to a graph: checked here, before anything happens."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace as replace_fields
from functools import partial

import pyarrow as pa
from msgspec.structs import replace

from tidestate.operators.bind.columns import input_columns
from tidestate.operators.bind.edges import check_passed_edges
from tidestate.operators.bind.followed_lateness import following
from tidestate.operators.bind.named_zones import zones_named
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.bind.output_origin import with_origins
from tidestate.operators.bind.signs import (
    check_stages,
    knowing_signs,
    says_signed,
    selecting_plain_rows,
    unclear_sides,
)
from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.runs import Schemas
from tidestate.operators.describe.sides import AT
from tidestate.operators.describe.stages import columns_after, columns_before
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.describe.windows import PANE_TIME
from tidestate.operators.expressions.binding import Zones
from tidestate.operators.joins.overlaps import OverlapPlan
from tidestate.operators.joins.plan import JoinPlan
from tidestate.operators.plan.graph import Feed, Graph, Node, downstream_schema, single_operator
from tidestate.operators.plan.plan import PANE_KIND, Plan
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.rows.passing import AlteredPlan
from tidestate.operators.windows.tables import GroupTables
from tidestate.operators.zones.installed import installed_rules
from tidestate.operators.zones.rules import KeptRules, ZoneRules
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import plain_schema, schema_with_fields


def no_kept_rules(_name: str) -> ZoneRules | None:
    """There is no checkpoint with rules of zones."""
    return None


def bind_graph(description: Runnable, schemas: Schemas, fallback: KeptRules = no_kept_rules) -> Graph:
    """Check ``description`` against the schemas of its streams, by name where there are several. A zone that this
    host does not know has the rules of ``fallback``.

    Raises `UsageError`; nothing has happened then.
    """
    return _bound(description, schemas, installed_zones(description, fallback), ())


def _bound(description: Runnable, schemas: Schemas, zones: Zones, by_name: Collection[str]) -> Graph:
    """``by_name``: the operators that have begun when names of columns decided, see
    `tidestate.operators.bind.signs`.
    """
    graph = (
        _bound_chain(description, schemas, zones, by_name)
        if isinstance(description, Chain)
        else _bound_alone(description, schemas, zones, by_name)
    )
    if any(plan.has_plain_rows for plan in graph.plans.values()):
        return replace_fields(graph, bind_by_name=partial(_bound, description, schemas, zones))
    return graph


def _bound_alone(description: Runnable, schemas: Schemas, zones: Zones, by_name: Collection[str]) -> Graph:
    schema = schemas if isinstance(schemas, pa.Schema) else next(iter(schemas.values()))
    _check_followed(description, set())
    signed = says_signed(description)
    if signed:
        _check_signed(description)
    description = knowing_signs(description, signed=signed, by_name=description.name in by_name)
    return single_operator(bind_plan(description, _readable(description, schema, ""), zones=zones))


def _bound_chain(description: Chain, schemas: Schemas, zones: Zones, by_name: Collection[str]) -> Graph:
    given = dict.fromkeys(description.streams, schemas) if isinstance(schemas, pa.Schema) else dict(schemas)
    if set(given) != set(description.streams) or (isinstance(schemas, pa.Schema) and len(given) > 1):
        raise UsageError(
            "give each stream of the job by its name: the first batch must have all of them, even if some are empty",
            code="streams",
            streams=description.streams,
            found=list(given),
        )
    given = {name: _readable(description, schema, name) for name, schema in given.items()}
    nodes: dict[str, Node] = {}
    unclear: dict[str, UsageError] = {}
    read: dict[str, dict[str, None]] = {name: {} for name in given}
    for operator, origins in zip(with_origins(description), description.inputs, strict=True):
        own = {name: given[name] for name in origins if name in given}
        if origins[0] in nodes and nodes[origins[0]].plan.has_plain_rows:
            operator = selecting_plain_rows(operator)
        bound = {name: own[name] if name in own else _of_panes(operator, nodes[name].plan) for name in origins}
        operator, schema = _fitted(operator, origins, bound, nodes)
        signed = says_signed(operator) or any(name in nodes and nodes[name].plan.retracts for name in origins)
        if signed:
            _check_signed(operator)
            _check_identity(operator, origins, nodes)
            if (error := unclear_sides(operator, origins, nodes)) is not None:
                unclear[operator.name] = error
        operator = knowing_signs(operator, signed=signed, by_name=operator.name in by_name)
        for name in origins:
            _check_edges(operator, nodes[name].plan if name in nodes else None)
        plan = following(bind_plan(operator, schema, signed=signed, zones=zones), description)
        node = _node(operator, plan, origins, nodes)
        for feed in node.feeds:
            if feed.origin in nodes:
                _check_upstream(nodes[feed.origin].plan, feed, operator)
        for name in own:
            read[name] |= dict.fromkeys(given[name].names if isinstance(operator, Sided) else plan.input.read_names)
        nodes[operator.name] = node
    streams = {name: tuple(columns) for name, columns in read.items()}
    graph = Graph(tuple(nodes.values()), streams, description.outputs, unclear=unclear)
    _check_orders(graph)
    return graph


def installed_zones(description: Runnable, fallback: KeptRules = no_kept_rules) -> Zones:
    """The rules that a start takes from this installation, of the zones that are named; those of
    ``fallback`` of one that it does not know. Raises `UsageError`.
    """
    return {name: _rules(name, fallback) for name in sorted(zones_named(description))}


def _rules(name: str, fallback: KeptRules) -> ZoneRules:
    try:
        return installed_rules(name)
    except UsageError:
        # The job has begun where the zone was known: what its state was computed by is all that it needs.
        if (rules := fallback(name)) is None:
            raise
        return rules


def _check_orders(graph: Graph) -> None:
    """Check that operators whose time advances by the order of a stream agree about it."""
    for name in graph.streams:
        orders = {order for _, node, _, feed in graph.readers(name) if (order := node.order_of(feed)).columns}
        if len(orders) > 1:
            raise UsageError(
                "operators that advance time by the rows of one stream must use the same order and the same "
                "source column",
                code="chain-order",
                stream=name,
                orders=sorted((*order.columns, order.by or "") for order in orders),
            )


def stream_columns(description: Runnable, name: str, available: list[str]) -> list[str]:
    """The columns of a stream that are read, of those that are there."""
    if not isinstance(description, Chain):
        return _columns_read(description, available)
    found: list[str] = []
    for one, origins in zip(description.operators, description.inputs, strict=True):
        if name in origins:
            found += available if isinstance(one, Sided) else _columns_read(one, available)
    return list(dict.fromkeys(found))


def _columns_read(one: Runnable, available: list[str]) -> list[str]:
    """The columns of its stream that an operator reads, before all stages."""
    return columns_before(one.stages, input_columns(one, columns_after(one.stages, available)))


def _of_panes(one: Runnable, upstream: Plan) -> pa.Schema:
    """What an operator reads of another one's panes."""
    schema = downstream_schema(upstream)
    return schema if isinstance(one, Sided) else schema_with_fields(schema, _columns_read(one, []))


def _readable(description: Runnable, schema: pa.Schema, name: str) -> pa.Schema:
    """The schema of a stream in plain types, with the fields of structs that the description names. Raises
    `UsageError`.
    """
    return schema_with_fields(plain_schema(schema), stream_columns(description, name, []))


def _node(one: Runnable, plan: Plan, origins: tuple[str, ...], nodes: Mapping[str, Node]) -> Node:
    delays = [nodes[name].plan.input.delay_us for name in origins if name in nodes]
    plan = plan.with_input(upstream_delay_us=max(delays, default=0))
    level = 1 + max((nodes[name].level for name in origins if name in nodes), default=0)
    if isinstance(one, Sided):
        pairs = zip(origins, one.sides.names, one.sides.times, strict=True)
        return Node(plan, tuple(Feed(origin, side, time) for origin, side, time in pairs), level, one.sides)
    return Node(plan, (Feed(origins[0], None, plan.input.event_time),), level)


def _fitted(
    one: Runnable, origins: tuple[str, ...], schemas: Mapping[str, pa.Schema], nodes: Mapping[str, Node]
) -> tuple[Runnable, pa.Schema]:
    """The description as it reads these inputs, and the columns of its input."""
    fed = [name for name in origins if name in nodes]
    if isinstance(one, Sided) and one.watermarks is not None and one.watermarks.followed:
        sides = zip(origins, one.sides.names, strict=True)
        _check_followed(one, {side for origin, side in sides if origin in nodes})
    elif fed and one.watermarks is not None:
        raise UsageError(
            "a side that reads an operator has no rows for this watermark, which is over columns or buffers of all "
            "sides: set .watermark(…) on the streams",
            code="chain-watermark",
            operator=one.name,
            inputs=fed,
        )
    if isinstance(one, Sided):
        return one, one.schema(*(schemas[name] for name in origins))
    schema = schemas[origins[0]]
    if not fed or not isinstance(one, Windowed):
        return one, schema
    seen_names = columns_after(one.stages, schema.names)
    if one.windows is not None and one.windows.numbered:
        raise UsageError(
            "sessions of messages number the messages of a stream in the order of their offsets, and the rows of an "
            "operator come in no order: read the stream itself, or use offset_sessions(…)",
            code="message-sessions",
            operator=one.name,
            inputs=fed,
        )
    if one.windows is None:
        # Rows that name their windows lie in them by their last moment, which the plan adds itself; those of a join
        # by the time of the pair, which has a bound.
        if one.event_time is None and isinstance(nodes[fed[0]].plan, JoinPlan | OverlapPlan):
            one = replace(one, event_time=AT)
        return one, pa.schema([field for field in schema if field.name != PANE_TIME])
    timeless = one.event_time is None and not one.processing_time and not one.windows.by_offset
    if timeless and PANE_TIME in seen_names:
        return replace(one, event_time="timestamp" if "timestamp" in seen_names else PANE_TIME), schema
    return one, schema


def _check_followed(one: Runnable, reading: Set[str]) -> None:
    """Check that the sides without a watermark of their own are those that read operators."""
    followed = set(one.watermarks.followed) if one.watermarks is not None else set()
    if followed != reading:
        raise UsageError(
            "each side that reads a stream needs CTI settings and an offset, stream(offset=…); a side that reads "
            "an operator must have neither",
            code="advance-time",
            operator=one.name,
            without=sorted(followed),
            reading=sorted(reading),
        )


def _check_edges(one: Runnable, upstream: Plan | None) -> None:
    """Check that windows by lifetime get no edges from an operator that passes them on."""
    passed = upstream.altered if isinstance(upstream, AlteredPlan) else None
    if passed is not None and not passed.sets_end and isinstance(one, Windowed):
        check_passed_edges(one, passed.watermarks)


def _check_signed(one: Runnable) -> None:
    # A merge reads the column of signs where all its sides share it.
    follows = isinstance(one, Union | Altered) or (isinstance(one, Windowed) and not isinstance(one, Sided))
    if not follows and not (isinstance(one, Merge) and PANE_KIND in one.sides.shared):
        raise UsageError(
            "the input of this operator retracts rows, and only windowed operators of one input can apply "
            "retractions: let the operator before it emit each window once, or only what is new, "
            '.accumulation("discarding")',
            code="chain-retractions",
            operator=one.name,
        )
    check_stages(one)


def _check_identity(one: Runnable, origins: Iterable[str], nodes: Mapping[str, Node]) -> None:
    """Check that messages that are known by an identity are no panes that operators of the job correct: a window's
    second correction has all that the first one has, the pane's number aside, which no operator reads.
    """
    known = one.known if isinstance(one, Windowed) else None
    if known is not None and known.identity and _corrects_panes(origins, nodes):
        raise UsageError(
            "these messages are panes that an operator of the job corrects, and of two corrections of a window the "
            "second would have the identity of the first and be left out as one that comes again: remove "
            '.messages(…), or let the operator emit each window once, .allowed_lateness("0 seconds")',
            code="signed",
            operator=one.name,
            identity=known.identity,
        )


def _corrects_panes(origins: Iterable[str], nodes: Mapping[str, Node]) -> bool:
    """Whether rows of one of these are panes that are taken back, however many operators pass them on."""
    # A stream that retracts has rows of the user's, whose identity may well tell them apart.
    retracting = [nodes[name] for name in origins if name in nodes and nodes[name].plan.retracts]
    return any(
        isinstance(node.plan, GroupTables) or _corrects_panes([feed.origin for feed in node.feeds], nodes)
        for node in retracting
    )


def _check_upstream(upstream: Plan, feed: Feed, one: Runnable) -> None:
    """Check that panes of ``upstream`` add up for who reads them, and that time goes through it."""
    if upstream.output_watermark(0, feed.time) == BEGINNING_US:
        warnings.warn(
            f"{upstream.name} may emit a row of any time until its input ends, so windows of {one.name} that wait "
            "for the watermark fire only then: give both sides bounds, and no update period",
            UserWarning,
            stacklevel=4,
        )
    counted_twice = isinstance(upstream, GroupTables) and upstream.repeats and upstream.mode == "accumulating"
    if not counted_twice or _replaces(upstream, one):
        return
    raise UsageError(
        "the operator before this one may emit several panes of a window, and each would be counted: let it "
        'retract earlier ones, .accumulation("retracting"), or emit only what is new, "discarding", or emit one '
        'pane, .allowed_lateness("0 seconds")',
        code="chain-accumulating",
        operator=one.name,
        reads=upstream.name,
    )


def _replaces(upstream: Plan, one: Runnable) -> bool:
    """Whether the newest pane of a window and key stands for all before it."""
    if not isinstance(one, Windowed) or one.windows is not None or not set(upstream.input.key_names) <= set(one.key):
        return False
    # With a condition an earlier pane that meets it would stand beside a newest one that does not.
    return all(
        aggregate.function in ("last", "latest") and aggregate.condition is None
        for aggregate in one.aggregates.values()
    )
