"""The engine without Spark: tasks in this process run the state partitions, one as a rule, else a thread each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from tidestate.operators.engine.delivery import Delivery, read_delivery
from tidestate.operators.engine.level import run_level
from tidestate.operators.engine.partition import OperatorResult
from tidestate.operators.engine.pieces import Piece
from tidestate.operators.engine.round import GraphRound, Intakes, Outgoing, progress_after
from tidestate.operators.plan.graph import one_batch
from tidestate.operators.progress.progress import Progress
from tidestate.recovery.log.checkpoint import Checkpoint

T = TypeVar("T")
Batches: TypeAlias = Iterable[pa.Table | Mapping[str, pa.Table]]
"""One batch in pieces: each a table of the only stream, or tables by stream."""


class InProcess:
    """An `Engine`. With ``generate=False`` events do not move the watermark."""

    parallel = 1
    tasks = 1

    def __init__(self, *, generate: bool = True) -> None:
        self._generate = generate

    def take(self, round_: GraphRound, batch: Batches) -> list[OperatorResult]:
        """As in `Engine`. Only the partials of earlier pieces are in memory."""
        intakes, outgoing = Intakes(round_), list[Outgoing]()
        for number, piece in enumerate(batch):
            outgoing += intakes.streams(one_batch(round_.graph, piece), number)
        return self.run(round_, outgoing, None if self._generate else round_.progress)

    def run(
        self, round_: GraphRound, pieces: Iterable[Outgoing], after: Mapping[str, Progress] | None = None
    ) -> list[OperatorResult]:
        """As in `Engine`; with pieces too ``after`` is the progress, if it is given."""
        tasks = len(round_.spans)
        waiting: list[dict[int, list[Piece]]] = [{} for _ in range(tasks)]
        _sort(waiting, pieces)
        # Each piece of input has a header for every task.
        after = after if after is not None else progress_after(round_, waiting[0], 1)
        results = []
        for level in range(1, round_.graph.levels + 1):
            here = partial(_at_level, round_, level, waiting, after)
            for of_task, downstream in in_threads(here, tasks, tasks):
                results += of_task
                _sort(waiting, downstream)
        return results

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
        """As in `Engine`, on the calling thread."""
        return read_delivery(checkpoint, delivery)


def in_threads(work: Callable[[int], T], tasks: int, threads: int) -> list[T]:
    """What ``work`` gives for each task by its number, in so many threads. Raises what the first task raised, when
    all have ended.
    """
    if threads == 1:
        return [work(task) for task in range(tasks)]
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import

    with ThreadPoolExecutor(threads, "tidestate-tasks") as pool:
        return list(pool.map(work, range(tasks)))


def _at_level(
    round_: GraphRound,
    level: int,
    waiting: Sequence[Mapping[int, Sequence[Piece]]],
    after: Mapping[str, Progress],
    task: int,
) -> tuple[list[OperatorResult], list[Outgoing]]:
    return run_level(round_, level, task, waiting[task], after)


def _sort(waiting: Sequence[dict[int, list[Piece]]], pieces: Iterable[Outgoing]) -> None:
    for operator, task, piece in pieces:
        waiting[task].setdefault(operator, []).append(piece)
