"""Rebuilding: a job whose message files were lost starts without them, and a replay of its input puts them back."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Loss, Plan, ReplayedPlan, RowKind
from tidestate.operators.plan.reasons import INCOMPLETE
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.recovery.inspect.verify import file_finding
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState, Rebuilding
from tidestate.statestore.arrays import total
from tidestate.statestore.errors import CorruptionError, UsageError
from tidestate.statestore.files.refs import Location, PartitionState

log = logging.getLogger("tidestate")


def replayed(graph: Graph) -> dict[str, ReplayedPlan]:
    """The operators whose messages a replay of the streams can put back."""
    stored = {name: plan for name, plan in graph.plans.items() if isinstance(plan, ReplayedPlan)}
    return {name: plan for name, plan in stored.items() if plan.replayable and graph.reads_streams(name, all)}


def served_by_side_run(graph: Graph) -> dict[str, ReplayedPlan]:
    """The operators whose messages only the recorded input, run again, can put back: identities do not say enough of
    these, or the messages were panes of another operator.
    """
    by_identities = replayed(graph)
    stored = {name: plan for name, plan in graph.plans.items() if isinstance(plan, ReplayedPlan)}
    return {
        name: plan
        for name, plan in stored.items()
        if plan.message_tables and not plan.not_run_again and name not in by_identities
    }


def needs_side_run(graph: Graph, head: Manifest) -> bool:
    """Whether messages are missing that only the recorded input, run again, can put back."""
    return any(head.operators[name].rebuilding is not None for name in served_by_side_run(graph))


def check_replayed(graph: Graph) -> None:
    """Raise `UsageError` if no operator has messages that a replay can put back."""
    if not replayed(graph):
        raise UsageError(
            "this operator stores no messages that could be rebuilt: windows store them with .messages(retain=…) "
            "or for functions of all rows, joins by distance, by tumbling windows or (inner) by session with "
            "stream(offset=…) for both sides; not count windows, nor with CTIs, buffers or lifetimes, nor an "
            "operator that reads panes of another: rewind instead, or let the job run its input again, "
            'Policy(messages="replay")',
            code="no-messages",
        )


def check_replay(graph: Graph, runner: str | None) -> None:
    """Raise `UsageError` where a start with ``Policy(messages="replay")`` could not put back all stored messages:
    ``replay-source`` if the runner has no source that it could read again, ``not-replayable`` for operators whose
    messages cannot be put back, and ``no-messages`` if none are stored.
    """
    if runner not in (None, "spark", "standalone"):
        raise UsageError(
            "input that is given by hand has no source to be read again: start with "
            'Policy(messages="rebuild"), and give rebuild(…) the replay',
            code="replay-source",
            runner=runner,
        )
    stored = [plan for plan in graph.plans.values() if isinstance(plan, ReplayedPlan)]
    refused = {plan.name: plan.not_run_again for plan in stored if plan.not_replayable and plan.not_run_again}
    if refused:
        raise UsageError(
            "a replay cannot put back the messages of these operators if they are lost, so the policy cannot be "
            'kept: start with another one; Policy(messages="rebuild") puts back those of the others',
            code="not-replayable",
            operators=refused,
        )
    if not served_by_side_run(graph) and not replayed(graph):
        raise UsageError(
            "this job stores no messages that could be lost: start with another policy; windows store messages with "
            ".messages(retain=…) or for functions of all rows, joins with stream(offset=…) for both sides and "
            "identity=True",
            code="no-messages",
        )


def variants_of(graph: Graph, operators: Mapping[str, OperatorState], rows_are: RowKind) -> Graph:
    """The operators as the variants that a micro-batch takes: by what its rows are, and by what was lost. A replay
    is read by those alone whose messages it puts back.
    """
    replays = list(replayed(graph)) if rows_are == "replay" else []
    plans = {name: _variant(plan, operators[name], rows_are, replays) for name, plan in graph.plans.items()}
    varied = graph.with_plans(plans)
    return varied.read_by(replays) if rows_are == "replay" else varied


def _variant(plan: Plan, operator: OperatorState, rows_are: RowKind, replays: Collection[str]) -> Plan:
    if isinstance(plan, ReplayedPlan) and operator.rebuilding is not None:
        mark_us = operator.rebuilding.mark_us
        plan = replace(plan, loss=Loss(operator.rebuilding.since, BEGINNING_US if mark_us is None else mark_us))
    if isinstance(plan, ReplayedPlan) and operator.resumes:
        plan = replace(plan, resumes=True)
    if plan.name in replays:
        return replace(plan, rows_are="replay")
    return plan if rows_are == "live" else replace(plan, rows_are="ledger")


def without_lost(
    checkpoint: Checkpoint,
    graph: Graph,
    operators: dict[str, OperatorState],
    checkpoint_id: int,
    *,
    messages: Literal["rebuild", "replay", "forget"] = "rebuild",
) -> dict[str, OperatorState]:
    """The operators as they go on from this checkpoint if files of their messages are damaged or gone: without any
    messages in the state partitions that name one of these. Every byte of the messages is read. With ``"replay"``
    also those that only the input, run again, puts back; with ``"forget"`` these and all that were lost before are
    given up. Raises `CorruptionError` (``lost-again``) for a join that had lost some before, and not all of them are
    back.
    """
    after, forget = dict(operators), messages == "forget"
    by_side_run = served_by_side_run(graph)
    for name, plan in by_side_run.items() if forget else ():
        after[name] = _given_up(plan, operators[name], operators[name])
    for name, plan in (replayed(graph) | (by_side_run if messages == "replay" else {})).items():
        operator, tables = operators[name], plan.message_tables
        wrong = _wrong(checkpoint, operator, tables, name, checkpoint_id)
        if wrong and not forget and name not in by_side_run and _may_not_lose(plan, operator):
            raise CorruptionError(
                "rows of a join were lost again before a rebuild had put back the first ones, so which pairs were "
                "emitted in between is not known: rewind to a checkpoint before the loss, or give up on the lost "
                'rows with Policy(messages="forget")',
                code="lost-again",
                operator=name,
                since=operator.rebuilding.since if operator.rebuilding else None,
            )
        if wrong:
            states = [_without(state, tables, wrong) for state in operator.states]
            rows = sum(_rows(one, tables) for one in operator.states) - sum(_rows(one, tables) for one in states)
            lost = Rebuilding(checkpoint_id, mark_us=operator.watermark_us, rows=rows)
            if name in by_side_run and (before := operator.rebuilding) is not None:
                # What was emitted since the first loss decides whether rows may be put back.
                lost = msgspec.structs.replace(before, rows=before.rows + rows)
            after[name] = msgspec.structs.replace(operator.with_states(states), rebuilding=lost, resumes=False)
        if forget:
            after[name] = _given_up(plan, operator, after[name])
        elif wrong and messages == "replay":
            log.warning("operator %s waits for these messages, until its input has been read again", name)
        elif wrong:
            log.warning("operator %s continues without these messages; rebuild() puts them back from a replay", name)
    return after


def _may_not_lose(plan: ReplayedPlan, operator: OperatorState) -> bool:
    """Whether it needs every row that it has: before a rebuild is over, and where an output that stood is due."""
    return not plan.may_lose_again and (operator.rebuilding is not None or (plan.may_stand and operator.resumes))


def _wrong(
    checkpoint: Checkpoint, operator: OperatorState, tables: Collection[str], name: str, checkpoint_id: int
) -> set[Location]:
    """The message files of an operator that are damaged or gone; each is logged."""
    files = [(ref, checkpoint_id, True) for ref in operator.files if ref.table in tables]
    checked = checkpoint.prefetch("files", lambda one: file_finding(checkpoint, *one), files)
    findings = [(ref, one) for (ref, _, _), finding in checked if (one := finding()) is not None]
    for _, one in findings:
        log.warning("operator %s: lost messages: %s: %s", name, one.path, one.why)
    return {ref.location for ref, _ in findings}


def _rows(state: PartitionState, tables: Collection[str]) -> int:
    """How many rows the files of these tables have."""
    return sum(ref.rows for ref in state.files if ref.table in tables)


def _given_up(plan: ReplayedPlan, was: OperatorState, now: OperatorState) -> OperatorState:
    """The operator without what ``was`` missing, or has been lost ``now``."""
    if now.rebuilding is None:
        return now
    if was.rebuilding is not None and was.rebuilding.lacking is not None:
        what = "windows that lack messages" if plan.may_lose_again else "rows"
        log.warning("operator %s gives up on %d %s", plan.name, was.rebuilding.lacking, what)
    elif was.rebuilding is not None:
        log.warning("operator %s gives up on the %d rows of lost files", plan.name, was.rebuilding.rows)
    if now.rebuilding is not was.rebuilding:
        log.warning("operator %s gives up on the %d rows of these files", plan.name, now.rebuilding.rows)
    return msgspec.structs.replace(now, rebuilding=None, resumes=True)


def _without(state: PartitionState, tables: Collection[str], wrong: Collection[Location]) -> PartitionState:
    """A state partition without these tables, if one of their files is wrong; under a lineage of its own, as caches
    have the rows. Where only some files were left out, rows that the others had deleted would come back.
    """
    if not any(ref.location in wrong for ref in state.files):
        return state
    files = tuple(ref for ref in state.files if ref.table not in tables)
    return msgspec.structs.replace(state, files=files, lineage=uuid.uuid4().hex, floor=state.sequence)


def after_replay(
    plan: ReplayedPlan,
    was: OperatorState,
    operator: OperatorState,
    answers: Sequence[TaskResult],
    checkpoint_id: int,
) -> OperatorState:
    """The operator, which ``was`` another before, after a replay: whole again if no window lacks a
    message, and a join no row.
    """
    lacking, lost = total([one.counters for one in answers]).get(INCOMPLETE, 0), operator.rebuilding
    if lacking:
        what = "windows lack messages" if plan.may_lose_again else "rows are missing"
        log.warning("checkpoint %d: %d %s that the replay did not have", checkpoint_id, lacking, what)
    if lost is None:
        # A join has given up on what is missing, or knows it in another state partition.
        found = Rebuilding(checkpoint_id, lacking) if lacking and plan.may_lose_again else None
        return msgspec.structs.replace(operator, rebuilding=found, resumes=was.resumes)
    still = msgspec.structs.replace(lost, lacking=lacking) if lacking else None
    return msgspec.structs.replace(operator, rebuilding=still, resumes=was.resumes or still is None)


def with_all_back(was: OperatorState, operator: OperatorState) -> OperatorState:
    """The operator, which ``was`` another before, after all that it lacked was put back as it had been."""
    return msgspec.structs.replace(operator, rebuilding=None, resumes=was.resumes)
