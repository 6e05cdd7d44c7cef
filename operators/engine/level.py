"""What one task does for the operators of a level: run its state partitions, write what they emit, pass it on.

The same function runs in Spark's tasks, one level per stage, and in a plain loop. A state partition without arrivals
and with nothing due is not opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from tidestate.operators.engine.job_log import rejections_of
from tidestate.operators.engine.outputs import OutputFiles, write_outputs
from tidestate.operators.engine.partition import OperatorResult, Round, run_partition
from tidestate.operators.engine.phases import Stopwatch
from tidestate.operators.engine.pieces import Arrivals, PartitionSpan, Piece, arriving_rows, pieces
from tidestate.operators.engine.round import FEEDS, GraphRound, Outgoing, addressed
from tidestate.operators.plan.classify import classify
from tidestate.operators.plan.graph import downstream_rows
from tidestate.operators.progress.progress import Progress
from tidestate.statestore.arrays import total
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.write_behind import WriteBehind

Panes = dict[int, pa.Table]
"""The panes of an operator by state partition."""


def run_level(
    round_: GraphRound, level: int, task: int, arrived: Mapping[int, Sequence[Piece]], after: Mapping[str, Progress]
) -> tuple[list[OperatorResult], list[Outgoing]]:
    """Run the state partitions of a task for all operators of a level: its answers, and the pieces for operators
    downstream.

    ``after``: the progress of operators at the end of the round, as far as it is known.
    """
    results: list[OperatorResult] = []
    outgoing: list[Outgoing] = []
    for number, node in round_.graph.at(level):
        operator, here = round_.rounds[node.plan.name], arrived.get(number, ())
        progress = operator.observed(after[node.plan.name], [piece.header.claims for piece in here])
        arrivals = arriving_rows(here)
        watch = Stopwatch()
        with watch.timed("write"), WriteBehind(operator.root, bases=operator.bases) as objects:
            result, panes = _run(operator, round_.spans[task], arrivals, progress, objects, watch)
        spent_us = total([arrivals.spent_us, watch.take()])
        results.append(msgspec.structs.replace(result, spent_us=spent_us))
        outgoing += _to_readers(round_, operator, round_.spans[task], panes, after)
    return results, outgoing


def without_input(round_: GraphRound, after: Mapping[str, Progress]) -> list[OperatorResult]:
    """The answers of a round that has nothing to do and ends with this progress."""
    whole = (0, round_.partitions)
    return [
        OperatorResult(name, whole, (), ends, one.plan.expiry(one.context(ends)))
        for name, one in round_.rounds.items()
        for ends in [one.observed(after[name], ())]
    ]


def _run(
    round_: Round, span: PartitionSpan, arrivals: Arrivals, after: Progress, objects: Objects, watch: Stopwatch
) -> tuple[OperatorResult, Panes]:
    """Run the partitions of ``span`` that have something to do."""
    plan, context = round_.plan, round_.context(after)
    stepping = round_.stepping(context)
    nothing = plan.exchanged.schema.empty_table()
    panes = OutputFiles(objects, f"panes/{plan.name}", round_.sequence)
    answers, counters, emitted = [], [arrivals.counters], Panes()
    ledger = [arrivals.rejected] if arrivals.rejected is not None else []
    for partition in range(*span):
        arriving = arrivals.partials.get(partition)
        if arriving is None and partition not in stepping:
            continue
        rows = nothing if arriving is None else arriving
        due = None if partition in stepping else round_.base[partition].due_mark
        answer, moved = run_partition(round_, partition, rows, replace(context, stored_due=due), objects, watch)
        answers.append(answer)
        counters.append(moved.counters)
        ledger += [moved.rejected] if moved.rejected is not None else []
        if round_.is_output:
            panes.add(moved.panes)
        if moved.panes.num_rows and round_.is_read:
            emitted[partition] = moved.panes
    rejected = pa.concat_tables(ledger) if ledger else None
    result = OperatorResult(
        operator=plan.name,
        span=span,
        answers=tuple(answers),
        progress=after,
        expire=plan.expiry(context) if len(answers) < span[1] - span[0] else {},
        max_event_us=arrivals.max_event_us,
        inputs=arrivals.inputs,
        panes=panes.finish(),
        late=write_outputs(objects, f"late/{plan.name}", round_.sequence, ledger),
        counters=total(counters),
        rejected=rejections_of(plan, rejected),
    )
    return result, emitted


def _to_readers(
    round_: GraphRound, upstream: Round, span: PartitionSpan, panes: Panes, after: Mapping[str, Progress]
) -> Iterator[Outgoing]:
    """The panes of an operator's state partitions as pieces for its readers; one without rows if there are none."""
    plan = upstream.plan
    panes = panes or {span[0]: plan.pane_schema.empty_table()}
    for operator, node, place, feed in round_.graph.readers(plan.name):
        start = round_.rounds[node.plan.name].start
        downstream = {one.plan.name: after[one.plan.name] for one in round_.graph.nodes if one.level >= node.level}
        for partition, rows in panes.items():
            seen = node.rows(feed, downstream_rows(plan, rows))
            classified = classify(node.plan, seen, start, round_.partitions)
            made = pieces(classified, place * FEEDS + partition, round_.spans, after=downstream)
            yield from addressed(operator, made)
