"""What a reader of a job's root needs to know, by its descriptions and the form of its state. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tidestate.operators.describe.configuration import description_of
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.operators.windows.tables import aggregates_of
from tidestate.recovery.log.needs import grown_needs
from tidestate.statestore.spec.added import needs_of


def needs_of_graph(graph: Graph) -> tuple[str, ...]:
    """The capabilities of all its operators, see `tidestate.recovery.log.needs`."""
    return grown_needs(*(tuple(_needs_of_plan(plan)) for plan in graph.plans.values()))


def _needs_of_plan(plan: Plan) -> Iterator[str]:
    """By added fields and new structs of the description; and of aggregates whose state has a new form."""
    yield from needs_of(description_of(plan.configuration))
    for aggregate in aggregates_of(plan):
        yield from aggregate.needs
    if isinstance(plan, MessageWindows) and not plan.known_by.ordered:
        yield "unordered-identity/1"
