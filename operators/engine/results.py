"""The answers of state partitions, and the checks before they are published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidestate.operators.engine.partition import PartitionResult
from tidestate.operators.plan.transition import total
from tidestate.operators.progress.rounds import Progress, watermark_of
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.errors import invariant

SAME = ("progress", "max_event_us", "inputs", "origins")
"""The fields that are equal in the answers of all partitions of an operator."""
CLASSES = ("on_time", "mildly_late", "future")
"""An accepted event has one of these classes."""


def by_operator(
    names: Iterable[str], head: Manifest, results: Sequence[PartitionResult]
) -> dict[str, list[PartitionResult]]:
    """The answers of each operator, by partition. Raises `InvariantError` if they contradict each other."""
    answers: dict[str, list[PartitionResult]] = {name: [] for name in names}
    for result in sorted(results, key=lambda result: result.partition):
        invariant(result.operator in answers, "only an operator of the round answers", operator=result.operator)
        answers[result.operator].append(result)
    for name, of_name in answers.items():
        _check_partitions(name, head.operators[name], of_name)
        _check_counters(name, of_name)
    return answers


def _check_partitions(name: str, operator: OperatorState, results: Sequence[PartitionResult]) -> None:
    """Every partition has answered once, from its base, and all with the same input and watermark."""
    expected = [(number, state.lineage) for number, state in enumerate(operator.partitions)]
    found = [(one.partition, one.base_lineage) for one in results]
    invariant(found == expected, "each partition answers once, from its base", operator=name, found=found)
    for part in SAME:
        values = [getattr(one, part) for one in results]
        invariant(
            all(value == values[0] for value in values),
            "all partitions saw the same input",
            operator=name,
            part=part,
            values=values,
        )


def _check_counters(name: str, results: Sequence[PartitionResult]) -> None:
    """No event is lost: each is accepted, with one class, or has a row in the late ledger."""
    counters = total([one.counters for one in results])
    count = counters.get
    classes = sum(count(one, 0) for one in CLASSES)
    invariant(count("accepted", 0) == classes, "an accepted event has one class", operator=name, counters=counters)
    refused = count("events", 0) - count("accepted", 0) + count("fed", 0) - count("fed_accepted", 0)
    rows = sum(ref.rows for one in results for ref in one.late)
    invariant(
        0 <= refused <= rows,
        "an event that is not accepted has a row in the ledger",
        operator=name,
        counters=counters,
        rows=rows,
    )


def operator_after(operator: OperatorState, results: Sequence[PartitionResult], progress: Progress) -> OperatorState:
    """The operator after its partitions have answered."""
    plain = msgspec.to_builtins(progress)  # plain values: `recovery` knows nothing of operators
    return msgspec.structs.replace(
        operator.with_states([one.state for one in results]),
        watermark_us=watermark_of(progress),
        origins=results[0].origins or operator.origins,
        progress=plain["tracker"],
        advances=plain["advances"],
        buffers=plain["buffers"],
        due_us=min((one.due_us for one in results if one.due_us is not None), default=None),
    )
