"""Where the tasks of a micro-batch run: in this process, one as a rule, else a thread each; or on Spark. What they
run is `run_task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from tidestate.operators.engine.blocks import Block
from tidestate.operators.engine.delivery import Delivery, read_delivery
from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.partitions import TaskResult
from tidestate.operators.engine.tasks import run_task
from tidestate.operators.plan.graph import one_batch
from tidestate.operators.progress.progress import Progress
from tidestate.recovery.log.checkpoint import Checkpoint

R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
P_co = TypeVar("P_co", covariant=True)


@dataclass(frozen=True)
class BatchInput(Generic[R_co]):
    """What a micro-batch processes: ``rows`` of the streams, or ``blocks`` of which stage 0 is done, or neither."""

    rows: R_co | None = None
    blocks: Iterable[Block] = ()
    after: Mapping[str, Progress] | None = None
    """The progress of all operators at its end, where no rows and no blocks say it."""


class Transport(Protocol[R_contra, P_co]):
    """Runs the tasks of micro-batches, and publishes nothing: rows of type R, and for sinks panes of type P."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""

    @property
    def max_tasks(self) -> int:
        """The number of tasks, at most, that the state partitions of a micro-batch are divided among."""

    def run(self, batch: MicroBatch, given: BatchInput[R_contra]) -> list[TaskResult]:
        """Run the input through all operators. May run a task twice."""

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> P_co:
        """The rows of a delivery, whose checksums are verified; see `read_delivery`."""


T = TypeVar("T")
Batches: TypeAlias = Iterable[pa.Table | Mapping[str, pa.Table]]
"""One batch in pieces: each a table of the only stream, or tables by stream."""


class InProcess:
    """A `Transport`. With ``generate=False`` events do not move the watermark."""

    parallelism = 1
    max_tasks = 1

    def __init__(self, *, generate: bool = True) -> None:
        self._generate = generate

    def run(self, batch: MicroBatch, given: BatchInput[Batches]) -> list[TaskResult]:
        """As in `Transport`. Of the rows only one piece is in memory, and the partials of earlier ones."""
        tasks, results = len(batch.spans), []
        blocks, after = given.blocks, given.after
        if given.rows is not None:
            pieces = (one_batch(batch.graph, piece) for piece in given.rows)
            blocks = (block for block in run_task(batch, 0, 0, pieces) if isinstance(block, Block))
            after = None if self._generate else batch.progress
        waiting: list[list[Block]] = [[] for _ in range(tasks)]
        for block in blocks:
            waiting[block.task].append(block)
        for level in range(1, batch.graph.levels + 1):
            run_level = partial(_at_level, batch, level, waiting, after)
            # Blocks are for later levels alone: those of this one were all there before its first task began.
            for answers in in_threads(run_level, tasks, tasks):
                for answer in answers:
                    if isinstance(answer, Block):
                        waiting[answer.task].append(answer)
                    else:
                        results.append(answer)
        return results

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
        """As in `Transport`, on the calling thread."""
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
    batch: MicroBatch,
    level: int,
    waiting: Sequence[Sequence[Block]],
    after: Mapping[str, Progress] | None,
    task: int,
) -> list[Block | TaskResult]:
    return list(run_task(batch, level, task, waiting[task], after=after))
