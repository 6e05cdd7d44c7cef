"""Columns that an operator hands on to others, whose state is kept by them: computed in another way, they would meet
state of their old values. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidestate.operators.bind.evolve_stages import computing, kept_by
from tidestate.operators.bind.setting_change import SettingChange
from tidestate.operators.describe.configuration import description_of
from tidestate.operators.describe.stages import Compute, Select, Stage, StoredStage, derivation
from tidestate.operators.expressions.tree import columns_needed
from tidestate.operators.plan.graph import Feed, Graph, Node
from tidestate.operators.windows.tables import GroupTables
from tidestate.recovery.log.manifest import OperatorState

StagesOf: TypeAlias = Mapping[str, Sequence[StoredStage]]
"""The stages of operators, by name."""


def refused_behind(
    graph: Graph, operators: Mapping[str, OperatorState], stages_then: StagesOf
) -> tuple[str, SettingChange] | None:
    """The first operator of ``graph`` whose state is kept by a column that one in front of it computes in another way
    than when its stored state was made, with that change; None where there is none. ``stages_then``: those of the
    stored ``operators``.
    """
    differing: dict[str, set[str]] = {}
    for node in graph.nodes:
        plan, stored = node.plan, operators.get(node.plan.name)
        stages = computing(description_of(plan.configuration).stages)
        changed = set[str]()
        for index, feed in enumerate(node.feeds):
            handed = differing.get(feed.origin, set()) | _computed_before(graph, stages_then, stored, index)
            if stored is not None and (column := next((n for n in _kept_of(node, feed) if n in handed), None)):
                return plan.name, _change(column, feed.origin)
            changed |= {_as_read(node, feed, name) for name in handed}
        changed = _through(stages, changed)
        if stored is not None and (column := next((name for name in kept_by(plan) if name in changed), None)):
            return plan.name, _change(column, node.feeds[0].origin)
        if not isinstance(plan, GroupTables):
            # An operator that is new stands for none that computed anything.
            before = [] if stored is None else computing(stages_then[plan.name])
            changed |= {n for n in plan.input.schema.names if derivation(before, n) != derivation(stages, n)}
        differing[plan.name] = set() if isinstance(plan, GroupTables) else changed
    return None


def _computed_before(graph: Graph, stages_then: StagesOf, reader: OperatorState | None, index: int) -> set[str]:
    """What a reader's input was computed by in an operator that has gone, and is not there any more."""
    origin = reader.inputs[index] if reader is not None and index < len(reader.inputs) else ""
    if origin in graph.plans or origin not in stages_then:
        return set()
    return {name for stage in computing(stages_then[origin]) for name in stage.makes}


def _change(column: str, origin: str) -> SettingChange:
    why = f"state is kept by {column}, which {origin}, in front of it, would compute in another way"
    return SettingChange(f"column {column}", "as it was computed", "computed in another way", refused=why)


def _kept_of(node: Node, feed: Feed) -> list[str]:
    """Those of one side, as they are called there, which have other names where the sides are one."""
    if node.sides is None or feed.side is None:
        return []
    keys = [node.sides.own(feed.side, name) for name in node.plan.input.key_names]
    return [feed.time, *node.order_of(feed).columns, *keys]


def _as_read(node: Node, feed: Feed, name: str) -> str:
    return name if node.sides is None or feed.side is None else node.sides.prefixed(feed.side, name)


def _through(stages: Sequence[Stage], changed: set[str]) -> set[str]:
    """The columns after the stages whose values follow from ``changed`` ones before them."""
    for stage in stages:
        if not isinstance(stage, Compute):
            continue
        made = {name for name, tree in stage.columns.items() if changed & set(columns_needed(tree))}
        changed = (changed - set(stage.columns)) | made
        if isinstance(stage, Select):
            changed &= set(stage.after(changed))
    return changed
