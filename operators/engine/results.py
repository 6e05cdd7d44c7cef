"""The answers of tasks, and the checks before they are published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidestate.operators.engine.micro_batch import is_due
from tidestate.operators.engine.partition import TaskResult
from tidestate.operators.progress.progress import Progress, watermark_of
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.arrays import total
from tidestate.statestore.errors import invariant

SAME = ("progress", "max_event_us", "inputs")
"""The fields that are equal in the answers of all tasks for an operator."""
CLASSES = ("on_time", "mildly_late", "future")
"""An accepted event has one of these classes."""


def by_operator(names: Iterable[str], head: Manifest, results: Sequence[TaskResult]) -> dict[str, list[TaskResult]]:
    """The answers for each operator, by partition. Raises `InvariantError` if they contradict each other."""
    answers: dict[str, list[TaskResult]] = {name: [] for name in names}
    for result in sorted(results, key=lambda result: result.span):
        invariant(result.operator in answers, "only an operator of the round answers", operator=result.operator)
        answers[result.operator].append(result)
    for name, of_name in answers.items():
        _check_partitions(name, head.operators[name], of_name)
        _check_counters(name, of_name)
    return answers


def _check_partitions(name: str, operator: OperatorState, results: Sequence[TaskResult]) -> None:
    """Every partition has answered once, from its base, or had nothing to do; all saw the same input."""
    asked = [number for one in results for number in range(*one.span)]
    answers = [answer for one in results for answer in one.answers]
    inside = all(one.span[0] <= answer.partition < one.span[1] for one in results for answer in one.answers)
    bases = {one.partition: operator.partitions[one.partition].lineage for one in answers} if inside else {}
    found = [(one.partition, one.base_lineage) for one in answers]
    invariant(
        asked == list(range(len(operator.partitions))) and found == sorted(bases.items()),
        "each partition answers once, from its base",
        operator=name,
        asked=[one.span for one in results],
        found=found,
    )
    for part in SAME:
        values = [getattr(one, part) for one in results]
        invariant(
            all(value == values[0] for value in values),
            "all partitions saw the same input",
            operator=name,
            part=part,
            values=values,
        )
    mark = results[0].progress.watermark_us
    left = [number for number in asked if number not in bases]
    due = [number for number in left if is_due(operator.partitions[number], mark)]
    invariant(not due, "a partition with something to do answers", operator=name, due=due)


def _check_counters(name: str, results: Sequence[TaskResult]) -> None:
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


def operator_after(operator: OperatorState, results: Sequence[TaskResult], progress: Progress) -> OperatorState:
    """The operator after its partitions have answered."""
    plain = msgspec.to_builtins(progress)  # plain values: `recovery` knows nothing of operators
    states = {answer.partition: answer.state for one in results for answer in one.answers}
    expire = next((one.expire for one in results if one.expire), {})
    return msgspec.structs.replace(
        operator.stepped(states, expire),
        watermark_us=watermark_of(progress),
        origins=progress.generator.origins or operator.origins,
        progress=plain["tracker"],
        advances=plain["generator"]["advances"],
        buffers=plain["generator"]["buffers"],
        resumes=False,
        gone_us=operator.gone_us if results[0].gone_us is None else results[0].gone_us,
    )
