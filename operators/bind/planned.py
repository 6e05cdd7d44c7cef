"""What a start would make of a checkpoint, all of it, whether it would be refused or not. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidestate.operators.bind.evolve import (
    as_begun,
    change_line,
    compare_operator,
    gone_line,
    new_line,
    other_job,
    output_lines,
    refusal,
    stored_stages,
)
from tidestate.operators.bind.evolve_losses import check_operators, holds_rows, without_losses
from tidestate.operators.bind.evolve_readers import refused_behind
from tidestate.operators.bind.setting_change import SettingChange
from tidestate.operators.describe.start_plan import PlannedChange
from tidestate.operators.plan.graph import Graph, Node
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.recovery.start.policy import Dropped
from tidestate.statestore.errors import IncompatibleError, TidestateError


@dataclass
class Comparison:
    """A graph and a checkpoint: all changes, and the errors with which a start would end, the first one first."""

    changes: list[PlannedChange] = field(default_factory=list)
    refusals: list[TidestateError] = field(default_factory=list)


def compare_graph(graph: Graph, head: Manifest, dropped: Dropped) -> Comparison:
    """What `tidestate.operators.bind.evolve.take_over` would do, or why it would not."""
    comparison = Comparison()
    if not set(graph.plans) & set(head.operators):
        comparison.refusals.append(other_job(graph, head))
        return comparison
    try:
        check_operators(head.operators, graph.plans, dropped)
    except IncompatibleError as error:
        comparison.refusals.append(error)
    for name, line in output_lines(head, [*graph.outputs]).items():
        was, now = (name if name in outputs else None for outputs in (head.output_names, graph.outputs))
        comparison.changes.append(PlannedChange(name, "output", was, now, line))
    for node in graph.nodes:
        name = node.plan.name
        stored = head.operators.get(name)
        if stored is None:
            comparison.changes.append(PlannedChange(name, "operator", None, name, new_line(name)))
        else:
            _compare(comparison, node, stored, head.id + 1, dropped)
    if (behind := refused_behind(graph, head.operators, stored_stages(head, graph))) is not None:
        name, change = behind
        comparison.refusals.append(refusal(name, [change]))
        comparison.changes.append(_planned(name, change))
    for name in sorted(set(head.operators) - set(graph.plans)):
        loses = holds_rows(head.operators[name])
        line = gone_line(name, head.id)
        comparison.changes.append(PlannedChange(name, "operator", name, None, line, loses=loses))
    return comparison


def _compare(comparison: Comparison, node: Node, stored: OperatorState, checkpoint_id: int, dropped: Dropped) -> None:
    plan = as_begun(stored, node.plan)
    compared = compare_operator(stored, plan, checkpoint_id, may_change=True)
    changes = compared.changes
    try:
        changes = without_losses(plan.name, stored, changes, dropped)
    except IncompatibleError as error:
        comparison.refusals.append(error)
    refused = [change for change in (*changes, *compared.wrong) if change.refused]
    if refused:
        comparison.refusals.append(refusal(plan.name, refused))
    # What a table lacks follows from a setting that is refused, where there is one: it says why.
    listed = changes if any(change.refused for change in changes) else [*changes, *compared.wrong]
    comparison.changes += [_planned(plan.name, change) for change in listed]


def _planned(operator: str, change: SettingChange) -> PlannedChange:
    line = change_line(operator, change)
    return PlannedChange(
        operator, change.setting, change.was, change.now, line, change.note, change.loses, change.refused
    )
