"""Rebuilding: a job whose message files were lost starts without them, and a replay of its input puts them back."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence

import msgspec

from tidestate.operators.engine.partition import OperatorResult
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.ledger import INCOMPLETE
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import total
from tidestate.recovery.inspect.verify import Place, file_finding
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState, Rebuilding
from tidestate.statestore.errors import CorruptionError, UsageError
from tidestate.statestore.files.refs import PartitionState

log = logging.getLogger("tidestate")


def replayed(graph: Graph) -> list[str]:
    """The operators whose messages a replay of the streams can put back."""
    return [name for name, plan in graph.plans.items() if plan.replayable and graph.reads_streams(name, all)]


def check_replayed(graph: Graph) -> None:
    """Raise `UsageError` if no operator has messages that a replay can put back."""
    if not replayed(graph):
        raise UsageError(
            "there are no messages to rebuild: windows keep some with .messages(retention=…) or for functions of all "
            "rows, inner joins by distance or tumbling windows with offset= for both sides; not counted windows, nor "
            "with CTIs, buffers or lifetimes, nor what reads the panes of another operator: rewind instead",
            code="no-messages",
        )


def without_lost(
    checkpoint: Checkpoint, graph: Graph, operators: dict[str, OperatorState], checkpoint_id: int
) -> dict[str, OperatorState]:
    """The operators as they go on from this checkpoint if files of their messages are damaged or gone: without any
    messages in the state partitions that name one of these. Every byte of the messages is read. Raises
    `CorruptionError` (``lost-again``) for a join that had lost some before, and not all of them are back.
    """
    found = dict(operators)
    for name in replayed(graph):
        operator, tables = operators[name], graph.plans[name].replayable
        files = [(ref, checkpoint_id, True) for ref in operator.files if ref.table in tables]
        checked = checkpoint.prefetch("files", lambda one: file_finding(checkpoint, *one), files)
        findings = [(ref, finding()) for (ref, _, _), finding in checked]
        wrong = {(ref.root, ref.path) for ref, one in findings if one is not None}
        if not wrong:
            continue
        for _, one in findings:
            if one is not None:
                log.warning("operator %s: lost messages: %s: %s", name, one.path, one.why)
        if operator.rebuilding is not None and not graph.plans[name].may_lose_again:
            raise CorruptionError(
                "rows of a join are lost again, before a rebuild has put back those that were lost first: which "
                "pairs were emitted meanwhile is not known; rewind to a checkpoint before the loss",
                code="lost-again",
                operator=name,
                since=operator.rebuilding.since,
            )
        states = [_without(state, tables, wrong) for state in operator.states]
        rebuilding = Rebuilding(checkpoint_id)
        found[name] = msgspec.structs.replace(operator.with_states(states), rebuilding=rebuilding)
        log.warning("operator %s goes on without these messages; rebuild() puts back those of a replay", name)
    return found


def _without(state: PartitionState, tables: Collection[str], wrong: Collection[Place]) -> PartitionState:
    """A state partition without these tables, if one of their files is wrong; under a lineage of its own, as caches
    have the rows. Where only some files were left out, rows that the others had deleted would come back.
    """
    if not any((ref.root, ref.path) in wrong for ref in state.files):
        return state
    files = tuple(ref for ref in state.files if ref.table not in tables)
    return msgspec.structs.replace(state, files=files, lineage=uuid.uuid4().hex, floor=state.sequence)


def after_replay(
    plan: Plan, operator: OperatorState, answers: Sequence[OperatorResult], checkpoint_id: int
) -> OperatorState:
    """The operator after a replay: whole again if no window lacks a message, and a join no row."""
    lacking = total([one.counters for one in answers]).get(INCOMPLETE, 0)
    since = operator.rebuilding.since if operator.rebuilding is not None else checkpoint_id
    if lacking:
        what = "windows lack messages" if plan.may_lose_again else "rows are missing"
        log.warning("checkpoint %d: %d %s that the replay did not have", checkpoint_id, lacking, what)
    return msgspec.structs.replace(operator, rebuilding=Rebuilding(since, lacking) if lacking else None)
