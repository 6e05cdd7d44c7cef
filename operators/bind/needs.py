"""What a reader of a job's root needs to know, by its descriptions and the form of its state. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tidestate.operators.describe.configuration import description_of
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.operators.windows.names import EDGES
from tidestate.operators.windows.tables import GroupTables, aggregates_of
from tidestate.recovery.log.manifest_file import grown_needs
from tidestate.statestore.spec.added import needs_of


def needs_of_graph(graph: Graph) -> tuple[str, ...]:
    """The capabilities of all its operators and of its outputs, see `tidestate.recovery.log.manifest_file`."""
    several = ("several-outputs/1",) if graph.several else ()
    return grown_needs(several, *(tuple(_needs_of_plan(plan)) for plan in graph.plans.values()))


def _needs_of_plan(plan: Plan) -> Iterator[str]:
    """By added fields and new structs of the description; and of aggregates whose state has a new form."""
    yield from needs_of(description_of(plan.configuration))
    for aggregate in aggregates_of(plan):
        yield from aggregate.needs
    if isinstance(plan, GroupTables) and plan.triggers.per_element and not _counts_in_order(plan):
        yield "panes-by-element/1"
    if isinstance(plan, GroupTables) and any(spec.name == EDGES for spec in plan.tables):
        yield "edges-in-windows/1"
    if any(isinstance(claimant, BufferProgress) for claimant in plan.input.watermarks.generator.of_sides.values()):
        yield "buffers-by-side/1"
    if isinstance(plan, MessageWindows) and not plan.known_by.ordered:
        yield "unordered-identity/1"
    if plan.zones:
        yield "zones/1"


def _counts_in_order(plan: GroupTables) -> bool:
    """Whether panes of elements are those that every version makes: by number, in the order of offsets."""
    triggers = plan.triggers
    if triggers.when is not None:
        return bool(plan.input.order)
    by_number = all(trigger.by_number for trigger in (triggers.early, triggers.late) if trigger is not None)
    return bool(plan.input.order) and not plan.sessions and by_number
