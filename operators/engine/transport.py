"""Where the tasks of a micro-batch run: in this process or on Spark. What they run is `run_task`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tidestate.operators.engine.blocks import Block
from tidestate.operators.engine.delivery import Delivery
from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.partition import TaskResult
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
