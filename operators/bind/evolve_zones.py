"""By which rules of time zones a job goes on when its installation has others than its manifest.

The first start takes the rules of its installation, and the manifest keeps them. A later start with other rules may
take them only where nothing that the state holds, or will still meet, differs by them: else the rows of one local day
before the start and those after it would have two keys. All operators of a job go by the same rules. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidestate.operators.aggregates.derived_results import BoundDerived
from tidestate.operators.aggregates.expressed import BoundExpressed, Expressions
from tidestate.operators.bind.named_zones import zoned_calls
from tidestate.operators.describe.configuration import description_of
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.expressions.binding import Zones
from tidestate.operators.expressions.travelling import TravellingExpression
from tidestate.operators.expressions.tree import CallNode, ColumnNode, LiteralNode
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import BOUNDS, Plan
from tidestate.operators.rows.deduplicate import DedupPlan
from tidestate.operators.rows.passing import AlteredPlan, UnionPlan
from tidestate.operators.stages.compute import BoundCompute, BoundFilter
from tidestate.operators.stages.expectations import BoundExpectations
from tidestate.operators.windows.shown import PaneCondition
from tidestate.operators.windows.tables import GroupTables
from tidestate.recovery.log.manifest import Manifest, OperatorState

_ALL_TIMES = (-(2**62), 2**62)
_DAY_US = 86_400_000_000
_YEAR_US = 367 * _DAY_US
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ZoneChange:
    """A zone whose rules in the manifest are not those of this installation. ``at_us``: from where on they first
    differ, with the offsets by either, ``was_us`` and ``now_us``; of rules that are not ``taken`` the first that the
    state may meet.
    """

    zone: str
    at_us: int
    was_us: int
    now_us: int
    taken: bool

    @property
    def line(self) -> str:
        """What is written of it."""
        differs = f"from {_moment(self.at_us)} on they have UTC{_offset(self.now_us)}, not UTC{_offset(self.was_us)}"
        if self.taken:
            return f"time zone {self.zone}: the rules of this installation hold from now on: {differs}"
        return (
            f"time zone {self.zone}: this installation has other rules than the checkpoint, which the job keeps, as "
            f"it has state that the others would split: {differs}; the next start looks again"
        )


def zone_texts(plan: Plan) -> dict[str, str]:
    """The rules of an operator as its manifest has them."""
    return {name: rules.text for name, rules in plan.zones.items()}


def with_zones(plan: Plan, zones: Zones) -> Plan:
    """The plan as it computes by these rules; a zone that is not among them keeps its own."""
    own_zones = {name: zones.get(name, rules) for name, rules in plan.zones.items()}
    if own_zones == plan.zones:
        return plan
    plan = replace(plan, zones=own_zones)
    if (stages := plan.input.stages) is not None:
        plan = plan.with_input(stages=replace(stages, steps=tuple(_ruled(step, own_zones) for step in stages.steps)))
    if isinstance(plan, GroupTables):
        aggregates = tuple(_ruled(bound, own_zones) for bound in plan.aggregates)
        plan = replace(plan, aggregates=aggregates, shown=_ruled(plan.shown, own_zones))
    if isinstance(plan, AlteredPlan):
        plan = replace(plan, shift=_ruled(plan.shift, own_zones), duration=_ruled(plan.duration, own_zones))
    return plan


def by_zones(graph: Graph, zones: Zones) -> Graph:
    """The graph as it computes by these rules."""
    return graph.with_plans({name: with_zones(plan, zones) for name, plan in graph.plans.items()})


def follow_zones(graph: Graph, head: Manifest, stored_rules: Zones) -> tuple[Graph, list[ZoneChange]]:
    """A graph that was bound to the rules of this installation, by those that the job goes on with from ``head``,
    which has ``stored_rules``; and what differs.
    """
    rules_by_zone, changes = {**stored_rules}, list[ZoneChange]()
    for name, stored in stored_rules.items():
        rules = next((plan.zones[name] for plan in graph.plans.values() if name in plan.zones), stored)
        if (anywhere := stored.first_difference(rules, *_ALL_TIMES)) is None:
            continue
        span = _times_met(graph, head, name)
        difference = None if span is None else stored.first_difference(rules, *span)
        if difference is None:
            rules_by_zone[name] = rules
        changes.append(ZoneChange(name, *(difference or anywhere), taken=difference is None))
    return by_zones(graph, rules_by_zone), changes


def _times_met(graph: Graph, head: Manifest, zone: str) -> tuple[int, int] | None:
    """Between which times rules of a zone must agree for what the state has, and still meets, to be the same by
    either; None where there is no such state.
    """
    plans = graph.plans.values()
    fresh = all(state.progress is None and state.watermark_us is None for state in head.operators.values())
    if not any(plan.tables for plan in plans) or (fresh and head.max_event_us is None):
        return None
    calls = {plan.name: _calls_of(plan, zone) for plan in plans}
    made_names = {
        name for plan in plans for stage in description_of(plan.configuration).stages for name in stage.makes
    }
    for plan in plans:
        if not all(_is_of({plan.input.event_time, *BOUNDS} - made_names, call) for call in calls[plan.name]):
            return _ALL_TIMES  # a column may hold any time, whenever its row came
    # A truncated time is that of an earlier moment, whose offset counts.
    truncates = any(call.function == "date_trunc" for each in calls.values() for call in each)
    first = min(_first_met(plan, head.operators.get(plan.name)) for plan in plans)
    reaches = [_reach(plan) for plan in plans]
    if head.max_event_us is None or None in reaches:
        return first - _YEAR_US, _ALL_TIMES[1]
    after = head.max_event_us + sum(reach or 0 for reach in reaches) + _DAY_US
    return first - (_YEAR_US if truncates else _DAY_US), after


def _calls_of(plan: Plan, zone: str) -> list[CallNode]:
    return [call for call in zoned_calls(description_of(plan.configuration)) if call.zone == zone]


def _is_of(times: set[str], call: CallNode) -> bool:
    """Whether a call takes nothing but these columns as they are."""
    return all(
        isinstance(arg, LiteralNode) or (isinstance(arg, ColumnNode) and arg.name in times) for arg in call.args
    )


def _first_met(plan: Plan, stored: OperatorState | None) -> int:
    """No state is of rows before this, and none that comes meets any."""
    if stored is None:
        return _ALL_TIMES[1]  # it begins without state
    if not _is_fixed(plan) or stored.watermark_us is None:
        return _ALL_TIMES[0]
    expired_us = plan.expired_at(stored.watermark_us)
    return max(_ALL_TIMES[0], expired_us - (_reach(plan) or 0))


def _reach(plan: Plan) -> int | None:
    """How far times of what it emits may be after those of its rows; None if that is not known."""
    if isinstance(plan, GroupTables) and isinstance(plan.kind, Sliding) and _is_fixed(plan):
        return plan.kind.size
    return 0 if isinstance(plan, DedupPlan | UnionPlan) else None


def _is_fixed(plan: Plan) -> bool:
    kind = plan.kind if isinstance(plan, GroupTables) else None
    return isinstance(kind, Sliding) and kind.end_column is None and not plan.by_offset


def _ruled(part: Any, zones: Zones) -> Any:
    """A stage, an aggregate, a condition or a span of a plan by these rules, where it goes by any."""
    if isinstance(part, TravellingExpression | Expressions | BoundCompute | BoundFilter | BoundExpectations):
        return replace(part, zones=zones)
    if isinstance(part, BoundExpressed):
        return replace(part, expressions=_ruled(part.expressions, zones))
    if isinstance(part, BoundDerived):
        return replace(part, expression=_ruled(part.expression, zones))
    return PaneCondition(_ruled(part.condition, zones)) if isinstance(part, PaneCondition) else part


def _moment(time_us: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).isoformat()
    except OverflowError:
        return "the beginning"


def _offset(offset_us: int) -> str:
    minutes, seconds = divmod(abs(offset_us) // 1_000_000, 60)
    return f"{'-' if offset_us < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}" + (
        f":{seconds:02d}" * bool(seconds)
    )
