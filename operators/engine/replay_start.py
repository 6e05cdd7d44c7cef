"""From where a source is read again to put lost messages back: the newest checkpoint that had taken none of them.

What is missing is known by its identities, which are whole: those that the job knows, and has no message of. A
checkpoint that does not know any of these had taken none of them, in whatever order they came, so a source that goes
on from its position has them all. What one checkpoint knows of them all later ones know: the newest one is found by
halving.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidestate.operators.engine.rebuild import replayed
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import ReplayedPlan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.errors import CorruptionError, NotFoundError
from tidestate.statestore.messages.identities import known_rows, without_stored
from tidestate.statestore.spec.store import Parquet, StateView
from tidestate.statestore.stores.opening import open_store

log = logging.getLogger("tidestate")

NOT_READ_AGAIN = (
    "the source could not be read again from %s (%s: %s), so the job goes on without what is still missing: start "
    'again when the source has it, put it back by rebuild(…), or give up on it, Policy(messages="forget")'
)
"""A replay has ended before its time: from where it began, and what the source has raised."""
MissingOfPartitions: TypeAlias = Sequence[Mapping[str, pa.Table]]
"""The identities that are missing in each state partition, by the table that has them."""


def rebuilt(graph: Graph, head: Manifest) -> dict[str, ReplayedPlan]:
    """The operators that lack messages which a replay can put back."""
    return {name: plan for name, plan in replayed(graph).items() if head.operators[name].rebuilding is not None}


def replay_start(checkpoint: Checkpoint, head: Manifest, graph: Graph) -> Manifest | None:
    """The newest checkpoint, collected ones but for pinned left out, that had taken nothing of what operators lack at
    ``head``; None where only the beginning of the source will do.
    """
    lacking = rebuilt(graph, head)
    if any(plan.knows_late for plan in lacking.values()):
        return None
    missing = {name: _missing(checkpoint, plan, head.operators[name]) for name, plan in lacking.items()}
    ids = [number for number in checkpoint.stored_ids() if number < head.id and not head.abandons(number)]
    # Those that had taken something follow those that had not: what a checkpoint knows, all later ones know.
    low, high, newest = 0, len(ids), None
    while low < high:
        middle = (low + high) // 2
        manifest = _without(checkpoint, ids[middle], missing)
        if manifest is None:
            high = middle
        else:
            low, newest = middle + 1, manifest
    return newest


def _missing(checkpoint: Checkpoint, plan: ReplayedPlan, operator: OperatorState) -> MissingOfPartitions:
    """What each state partition lacks."""
    stored = plan.stored_under
    names = {name for table, kept_in in stored.items() for name in (table, *kept_in)}
    identities = [spec for spec in operator.tables if spec.name in stored]
    return [
        {
            spec.name: without_stored(view, spec, known_rows(view, spec), stored[spec.name]).select(spec.key_names)
            for spec in identities
        }
        for view in _views(checkpoint, operator, names)
    ]


def _without(checkpoint: Checkpoint, number: int, missing: Mapping[str, MissingOfPartitions]) -> Manifest | None:
    """The checkpoint of this number, if it can be read and had taken nothing of what is ``missing``."""
    try:
        manifest = checkpoint.load(number).manifest
        operators = [(manifest.operators[name], keys) for name, keys in missing.items() if name in manifest.operators]
        has_taken = any(_has_taken(checkpoint, operator, keys) for operator, keys in operators)
    except (CorruptionError, NotFoundError) as error:
        log.debug("checkpoint %d is no start of a replay: %s", number, error)
        return None
    return None if has_taken else manifest


def _has_taken(checkpoint: Checkpoint, operator: OperatorState, missing: MissingOfPartitions) -> bool:
    """Whether the operator knew an identity that is missing now."""
    # After a rescale an identity may have been in any other state partition.
    same_partitions = len(operator.partitions) == len(missing)
    tables = {table for of_partition in missing for table in of_partition}
    for number, view in enumerate(_views(checkpoint, operator, tables)):
        for of_partition in missing[number : number + 1] if same_partitions else missing:
            if any(np.asarray(view[table].lookup(keys).found, bool).any() for table, keys in of_partition.items()):
                return True
    return False


def _views(checkpoint: Checkpoint, operator: OperatorState, names: Set[str]) -> Iterator[StateView]:
    """The state partitions with these of their tables, read from the files where they lie."""
    tables = tuple(spec for spec in operator.tables if spec.name in names)
    for state in operator.states:
        with open_store(Parquet(), checkpoint.objects, "", tables, state) as store:
            yield store


def lacking_text(graph: Graph, head: Manifest) -> str:
    """What operators lack, in words; empty if nothing."""
    losses = {name: head.operators[name].rebuilding for name in rebuilt(graph, head)}
    lacking = {name: loss.lacking for name, loss in losses.items() if loss is not None}
    return ", ".join(f"{name}: {count} windows or rows are incomplete" for name, count in lacking.items())


def warn_of_lacking(graph: Graph, head: Manifest) -> None:
    """Log what a replay did not have, if anything is missing, and what to do."""
    if lacking := lacking_text(graph, head):
        log.warning(
            "the replay did not have all lost messages: %s; the next start with this policy looks for them again, "
            'Policy(messages="forget") gives up on them',
            lacking,
        )
