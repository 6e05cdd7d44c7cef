"""What a job emits, as its sinks learn it before it starts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan


def emitted_outputs(graph: Graph) -> list[Emitted]:
    """What sinks get of each output of a job, the last operator's at the end, and the late rows of all operators."""
    return [emitted_by(plan, graph.plans.values()) for plan in graph.outputs.values()]


def emitted_by(plan: Plan, plans: Iterable[Plan] = ()) -> Emitted:
    """The rows of an output of a job, and the late rows of all its ``plans``."""
    late = tuple(each.late_schema for each in plans)
    return Emitted(plan.name, plan.delivered_schema, plan.pane_key, plan.retracts, plan.partial_panes, late)
