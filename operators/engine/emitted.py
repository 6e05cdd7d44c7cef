"""What a job emits, as its sinks learn it before it starts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan


def emitted_outputs(graph: Graph) -> list[Emitted]:
    """What sinks get of each output of a job, the last operator's at the end, and the late rows of all operators."""
    return [emitted_by(plan, graph.plans.values()) for plan in graph.outputs.values()]


def emitted_by(plan: Plan, plans: Iterable[Plan] = ()) -> Emitted:
    """The rows of an output of a job, and the late rows of all its ``plans``."""
    late = tuple(each.late_schema for each in plans)
    return Emitted(
        plan.name, plan.delivered_schema, plan.pane_key, plan.retracts, plan.partial_panes, late, plan.has_plain_rows
    )


def fit_as_begun(fit: Callable[[Graph], None], bound_graph: Graph, begun_graph: Graph) -> None:
    """Tell the sinks anew what they get where the root of a job goes by names of columns, as was not known when the
    job was bound.
    """
    if emitted_outputs(begun_graph) != emitted_outputs(bound_graph):
        fit(begun_graph)
