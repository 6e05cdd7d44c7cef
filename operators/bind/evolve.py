"""A job that goes on from a checkpoint: what it takes over of each operator, and how, or why it cannot. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from tidestate.operators.bind.evolve_columns import aggregates, tables, types
from tidestate.operators.bind.evolve_losses import check_operators, input_columns_changed, without_losses
from tidestate.operators.bind.evolve_readers import refused_behind
from tidestate.operators.bind.evolve_settings import settings
from tidestate.operators.bind.evolve_zones import ZoneChange, follow_zones, zone_texts
from tidestate.operators.bind.followed_lateness import LATENESS, with_lateness
from tidestate.operators.bind.setting_change import AGGREGATES, SettingChange
from tidestate.operators.bind.signs import as_it_began, begun_by_name, line_of
from tidestate.operators.bind.stages import types_after
from tidestate.operators.bind.stored_description import (
    stored_configuration,
    stored_description,
    stored_zones,
    zones_of_job,
)
from tidestate.operators.describe.configuration import description_of
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.renames import named_columns, pending_renames, rename_columns
from tidestate.operators.describe.stages import StoredStage
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.plan.graph import Graph, Node
from tidestate.operators.plan.plan import PANE_KIND, Plan
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.rows.deduplicate import DedupPlan
from tidestate.operators.windows.tables import GroupTables
from tidestate.recovery.log.manifest import InputPosition, Manifest, OperatorState
from tidestate.recovery.start.policy import Dropped
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import IncompatibleError, of_type
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.arrowtypes import type_texts
from tidestate.statestore.spec.tables import TableSpec


@dataclass(frozen=True)
class TakenOver:
    """The graph as it fits the state, the operators as the next manifest has them, and what has changed, by name;
    ``unfollowed``: deduplications that stay without the lateness of their readers, with what that would be;
    ``zones``: those of which this installation has other rules; ``by_name``: operators that go on to take columns for
    those of panes by their names, with these.
    """

    graph: Graph
    operators: dict[str, OperatorState]
    changes: dict[str, list[SettingChange]]
    unfollowed: dict[str, int]
    zones: list[ZoneChange]
    by_name: dict[str, list[str]]

    def input_of(self, head: Manifest) -> InputPosition | None:
        """Where the standalone input stands. The mark of its last batch is of the columns that were read."""
        if head.input is None or (head.operators.keys() == self.operators.keys() and not any(self.changes.values())):
            return head.input
        return msgspec.structs.replace(head.input, last="")

    def needs(self, head: Manifest) -> tuple[str, ...]:
        """What a reader must know of the state beyond what the graph says: of keys with files of two types, and of
        panes with results of other names.
        """
        then, now = _key_types(head.operators), _key_types(self.operators)
        renamed = ("renamed-results/1",) if any(one.results for one in self.operators.values()) else ()
        widened = any(then.get(table, types) != types for table, types in now.items())
        return (*renamed, "key-widened/1") if widened else renamed

    def lines(self, head: Manifest) -> Iterator[str]:
        """A line for each change since ``head``, for the log."""
        for name in self.operators:
            if name not in head.operators:
                yield new_line(name)
        for name in sorted(set(head.operators) - set(self.operators)):
            yield gone_line(name, head.id)
        yield from output_lines(head, [*self.graph.outputs]).values()
        for name, changes in self.changes.items():
            for change in changes:
                yield f"checkpoint {head.id + 1}: {change_line(name, change)}"
        yield from (change.line for change in self.zones)
        yield from (line_of(name, columns) for name, columns in self.by_name.items())
        for name, allowed_us in self.unfollowed.items():
            span = text_of(allowed_us)
            yield (
                f"operator {name} has begun without an allowed lateness, so it rejects late rows that the operator "
                f'behind it would accept: give it allowed_lateness="{span}" to accept these, or "0 seconds" to '
                "keep rejecting them"
            )


def _key_types(operators: Mapping[str, OperatorState]) -> dict[tuple[str, str], list[str]]:
    """The types of the key of each table, by operator and name."""
    tables = [(name, spec) for name, operator in operators.items() for spec in operator.tables]
    return {(name, spec.name): [column.type for column in spec.key] for name, spec in tables}


def new_line(name: str) -> str:
    """What is written of an operator that the checkpoint does not have."""
    return f"operator {name} is new in this job: it begins without state"


def gone_line(name: str, checkpoint_id: int) -> str:
    """What is written of an operator that the job does not have."""
    return f"operator {name} is no longer in this job: its state ends with checkpoint {checkpoint_id}"


def output_lines(head: Manifest, outputs: Sequence[str]) -> dict[str, str]:
    """What is written of outputs that begin or end after ``head``, by name, where there are several, or were."""
    if not head.outputs and len(outputs) < 2:
        return {}
    new = [name for name in outputs if name not in head.output_names]
    gone = [name for name in head.output_names if name not in outputs]
    return {
        **{name: f"operator {name} is an output now: from checkpoint {head.id + 1} on" for name in new},
        **{name: f"operator {name} is no longer an output: what it has put out stays" for name in gone},
    }


def change_line(name: str, change: SettingChange) -> str:
    """What is written of a change of an operator."""
    note = f" ({change.note})" if change.note else ""
    return f"operator {name}: {change.setting}: {change}{note}"


def new_operator(node: Node, partitions: int, checkpoint_id: int) -> OperatorState:
    """An operator that begins at ``checkpoint_id``, with no state in any of its ``partitions``."""
    return OperatorState(
        configuration=node.plan.configuration,
        fingerprint=node.plan.fingerprint,
        tables=node.plan.tables,
        partitions=(PartitionState(),) * partitions,
        inputs=node.origins,
        types=type_texts(node.plan.input.read_schema),
        since=checkpoint_id,
        zones=zone_texts(node.plan),
    )


def take_over(graph: Graph, head: Manifest, *, may_change: bool, dropped: Dropped = "ask") -> TakenOver:
    """What a job makes of the checkpoint ``head``; operators are what they were unless they ``may_change``. Whether
    values are ``dropped`` is the policy's.

    Raises `IncompatibleError` where that is another job's, or a change that the state cannot follow.
    """
    if not set(graph.plans) & set(head.operators):
        raise other_job(graph, head)
    by_name, graph = begun_by_name(graph, head), as_it_began(graph, head)
    check_operators(head.operators, graph.plans, dropped)
    graph, zones = follow_zones(graph, head, zones_of_job(head.operators, graph.plans))
    partitions = len(next(iter(head.operators.values())).partitions)
    plans, operators, changes, unfollowed = dict(graph.plans), {}, {}, {}
    for node in graph.nodes:
        name, stored = node.plan.name, head.operators.get(node.plan.name)
        if stored is None:
            operators[name] = new_operator(node, partitions, head.id + 1)
            continue
        begun = as_begun(stored, node.plan)
        if isinstance(begun, DedupPlan) and begun is not node.plan:
            unfollowed[name] = node.plan.allowed_us
        plans[name], operators[name], changes[name] = evolve(
            stored, begun, head.id + 1, may_change=may_change, dropped=dropped
        )
        operators[name] = msgspec.structs.replace(operators[name], inputs=node.origins)
    if may_change and (behind := refused_behind(graph, head.operators, stored_stages(head, graph))) is not None:
        name, change = behind
        raise refusal(name, [change])
    return TakenOver(graph.with_plans(plans), operators, changes, unfollowed, zones, by_name)


def stored_stages(head: Manifest, graph: Graph) -> dict[str, tuple[StoredStage, ...]]:
    """The stages that the operators of a checkpoint have, by name, with the columns as a job calls them now."""
    return {
        name: _stages_now(operator, graph.plans[name]) if name in graph.plans else stored_description(operator).stages
        for name, operator in head.operators.items()
    }


def _stages_now(stored: OperatorState, plan: Plan) -> tuple[StoredStage, ...]:
    described = stored_description(stored)
    if not described.stages or not plan.renames.columns:
        return described.stages
    configuration = rename_columns(stored_configuration(stored), column_renames(stored, plan))
    return description_of(configuration).stages


def other_job(graph: Graph, head: Manifest) -> IncompatibleError:
    """Why a job without an operator of this name cannot go on here."""
    return IncompatibleError(
        "this folder has the checkpoint of another job, whose operators have other names: give this job a folder of "
        "its own, or, if it is the same job, call its operators as they were, .named(…)",
        code="other-job",
        expected=", ".join(graph.plans),
        found=sorted(head.operators),
    )


def as_begun(stored: OperatorState, plan: Plan) -> Plan:
    """The plan with what was the default of settings that it does not name when the operator began. A deduplication
    that has begun without a lateness stays so until it is given one of its own.
    """
    if not isinstance(plan, DedupPlan):
        return plan.begun_as(stored_description(stored))
    follows = plan.follows and plan.allowed_us and LATENESS not in stored.configuration
    return with_lateness(plan, 0) if follows else plan


def evolve(
    stored: OperatorState, plan: Plan, checkpoint_id: int, *, may_change: bool, dropped: Dropped = "ask"
) -> tuple[Plan, OperatorState, list[SettingChange]]:
    """One operator: the plan as it fits the state, the operator as it goes on from ``checkpoint_id``, what changed.
    Values are ``dropped`` as the policy has it.

    Raises `IncompatibleError`, or `CorruptionError` for a configuration that no job writes.
    """
    compared = compare_operator(stored, plan, checkpoint_id, may_change=may_change)
    changes = without_losses(plan.name, stored, compared.changes, dropped)
    if refused := [change for change in (*changes, *compared.wrong) if change.refused]:
        raise refusal(plan.name, refused)
    names, columns = compared.aggregates, compared.columns
    changed = {change.setting for change in changes}
    bounds = _bounds(stored, plan, changed)
    operator = msgspec.structs.replace(
        _with_unknown_due(stored) if changes else stored,
        configuration=plan.configuration,
        fingerprint=plan.fingerprint,
        tables=compared.tables,
        types=type_texts(plan.input.read_schema),
        zones=zone_texts(plan),
        since=checkpoint_id if changes else stored.since,
        settles=stored.settles or "trigger" in changed,
        renamed=(*stored.renamed, *((checkpoint_id, old, new) for old, new in columns.items())),
        results=(*stored.results, *((checkpoint_id, old, new) for old, new in _results(plan, names, changes))),
        **bounds,
    )
    return with_bounds(plan, operator), operator, changes


@dataclass(frozen=True)
class Compared:
    """An operator and its stored state: what has changed, what of its tables cannot follow (``wrong``), the tables
    as they go on; and the pending renames, of aggregates and of columns.
    """

    changes: list[SettingChange]
    wrong: list[SettingChange]
    tables: tuple[TableSpec, ...]
    aggregates: dict[str, str]
    columns: dict[str, str]


def compare_operator(stored: OperatorState, plan: Plan, checkpoint_id: int, *, may_change: bool) -> Compared:
    """What has changed of an operator, refused or not, if it goes on from ``checkpoint_id``. Raises
    `CorruptionError` for a configuration that no job writes.
    """
    before, now = stored_configuration(stored), plan.configuration
    columns = column_renames(stored, plan)
    # State is of the columns that the operator sees, which may be decoded from others now, or may have been.
    stored = msgspec.structs.replace(stored, types=_types_seen(stored))
    was = rename_columns(before, columns)
    names = pending_renames(plan.renames.aggregates, was.get(AGGREGATES, {}), now.get(AGGREGATES, {}))
    changes = [SettingChange(f"column {old}", old, new, "goes on under its new name") for old, new in columns.items()]
    if stored.fingerprint != plan.fingerprint:
        changes += settings(was, now, plan)
        changes += aggregates(was.get(AGGREGATES, {}), now.get(AGGREGATES, {}), names, plan)
        changes += types(stored, plan, columns)
    if not may_change:
        changes = [replace(one, refused="an operator that is fed by hand keeps its settings") for one in changes]
    elif stored.fingerprint != plan.fingerprint:
        changes += input_columns_changed(stored, plan, columns)
    made, wrong = tables(stored, plan, names, columns, str(checkpoint_id))
    return Compared(changes, wrong, made, names, columns)


def column_renames(stored: OperatorState, plan: Plan) -> dict[str, str]:
    """The renames of columns that a start still has to do: of those that the operator sees or names, and of those
    that its stages alone read, which the late ledger has too. Raises `CorruptionError` for what no job writes.
    """
    seen_types, pairs = _types_seen(stored), plan.renames.columns
    there = named_columns(stored_configuration(stored), seen_types)
    wanted = named_columns(plan.configuration, plan.input.schema.names)
    # A computed column may have the old name: it is another one.
    seen_names = {*plan.input.schema.names}
    read_then, read_now = stored.types.keys() - seen_names, {*plan.input.read_names} - seen_names
    return pending_renames(pairs, there, wanted) | pending_renames(pairs, read_then, read_now)


def _types_seen(stored: OperatorState) -> dict[str, str]:
    """The types of the columns that a stored operator sees, after its stages."""
    return types_after(stored_description(stored).stages, stored.types, stored_zones(stored))


def _results(plan: Plan, names: Mapping[str, str], changes: Sequence[SettingChange]) -> list[tuple[str, str]]:
    """Results of panes, or columns of rows that may be retracted, that were renamed or have gone."""
    if PANE_KIND not in plan.pane_schema.names:
        return []
    gone = [change.setting.split(" ", 1) for change in changes if change.now is None]
    return [*names.items(), *((name, "") for kind, *rest in gone if kind in ("aggregate", "column") for name in rest)]


def _with_unknown_due(operator: OperatorState) -> OperatorState:
    """What was due by the settings before says nothing of what is due now: the next step looks."""
    partitions = tuple(msgspec.structs.replace(one, due_mark=None) for one in operator.partitions)
    return msgspec.structs.replace(operator, partitions=partitions)


def with_bounds(plan: Plan, operator: OperatorState) -> Plan:
    """The plan with what happened to windows under settings before."""
    gone = BEGINNING_US if operator.gone_us is None else operator.gone_us
    if (plan.gone_us, plan.closed_us, plan.settles) == (gone, operator.closed_us, operator.settles):
        return plan
    return replace(plan, gone_us=gone, closed_us=operator.closed_us, settles=operator.settles)


def after_step(graph: Graph) -> Graph:
    """After a step nothing is left of what had been closed, or waited, before settings changed."""
    if all(plan.closed_us is None and not plan.settles for plan in graph.plans.values()):
        return graph
    plans = {name: replace(plan, closed_us=None, settles=False) for name, plan in graph.plans.items()}
    return graph.with_plans(plans)


def _bounds(stored: OperatorState, plan: Plan, changed: set[str]) -> dict[str, int | None]:
    """What is forgotten for good, and what had been closed: by the settings before, where these have changed."""
    mark = stored.watermark_us
    if mark is None or not changed & {"allowed_lateness", "retain_windows", "messages"}:
        return {}
    former = _formerly(plan, stored)
    gone, closed = former.expired_at(mark), former.closed_at(mark)
    if stored.closed_us is not None and stored.closed_us < closed:
        # No step was made with those settings: nothing has closed or expired by them.
        gone, closed = stored.gone_us if stored.gone_us is not None else BEGINNING_US, stored.closed_us
    now = replace(plan, gone_us=gone).closed_at(mark)
    return {"gone_us": gone, "closed_us": closed if closed < now else None}


def _formerly(plan: Plan, stored: OperatorState) -> Plan:
    """The plan with the lateness and retention it had."""
    described, gone_us = stored_description(stored), BEGINNING_US if stored.gone_us is None else stored.gone_us
    if not isinstance(plan, GroupTables):
        allowed_us = of_type(described, Deduplicate).allowed_lateness_us or 0
        return replace(plan, allowed_us=allowed_us, gone_us=gone_us)
    former = of_type(described, Windowed)
    retained = former.retained
    return replace(
        plan,
        allowed_us=plan.allowed_us if plan.by_offset else former.lateness_us,
        retain_us=retained.span_us if retained else 0,
        retain_windows=retained.windows if retained else None,
        gone_us=gone_us,
    )


def refusal(name: str, refused: list[SettingChange]) -> IncompatibleError:
    """Why an operator cannot go on with these changes. What its tables lack follows from settings: of those that
    stand there themselves it is left out.
    """
    listed = [change for change in refused if not change.setting.startswith("table ")] or refused
    return IncompatibleError(
        "the job's configuration has changed in a way that its state cannot follow: restore the settings listed "
        "here, or start with a new folder",
        code="configuration-changed",
        operator=name,
        changed={change.setting: str(change) for change in listed},
        why={change.setting: change.refused for change in listed},
    )
