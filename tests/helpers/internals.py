"""The one door to what runs and operators keep to themselves: where the engine changes, tests change here.

`tests/docs/test_layout.py` holds that no other file reaches for a name that this one uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidestate import OperatorStream
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job
from tidestate.operators.engine.micro_batch import Block, MicroBatch
from tidestate.operators.engine.tasks import take_step
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.spec.store import StateView


def driver_of(run: Any) -> Driver[Any, Any]:
    """The driver of a run that has begun."""
    driver: Driver[Any, Any] | None = run._driver
    assert driver is not None
    return driver


def job_of(run: Any) -> Job:
    """The job of a harness, an operator by hand, or a standalone run that has begun."""
    job: Job = run._job if hasattr(run, "_job") else driver_of(run).job
    return job


def head_of(run: Any) -> Manifest:
    """The newest manifest of a run."""
    return job_of(run).head


def operator_of(run: Any) -> OperatorState:
    """What the newest manifest has of a run's only operator."""
    (operator,) = head_of(run).operators.values()
    return operator


def plan_of(run: Any) -> Plan:
    """The plan of the output operator."""
    return job_of(run).plan


def unflushed_of(operator: Any) -> Any:
    """What the calls of an operator by hand have done since its last checkpoint."""
    return operator._standing


def views_of(operator: Any) -> Sequence[StateView]:
    """The state partitions of an operator by hand, with what is not flushed."""
    return list(operator._views())


def set_hook(run: Any, hook: Callable[[str, int], None]) -> None:
    """Let a run, or a job, call ``hook`` before and after each manifest."""
    run._hook = hook


def set_time(harness: Any, time_us: int) -> None:
    """Set the clock of a harness without a step."""
    harness._now = time_us


def begin(run: Any, schema: pa.Schema) -> None:
    """Begin a run without input."""
    run._begin(schema)


def end(run: Any) -> None:
    """End a run that `begin` began, so that its threads and its lease are gone."""
    run._end()


def tick(query: Any) -> None:
    """Let time go on in a query on Spark, now."""
    query._tick()


def count_ticks(query: Any, ended: list[bool]) -> None:
    """Let the ticker of a query note in ``ended`` what each tick comes to."""
    ticker = query._ticker
    real = ticker._tick

    def counted() -> bool:
        ended.append(real())
        return ended[-1]

    ticker._tick = counted


def ticks(query: Any) -> bool:
    """Whether the ticker of a query runs."""
    return bool(query._ticker._thread.is_alive())


def failure_of(query: Any) -> BaseException | None:
    """Why a query on Spark is about to end."""
    failure: BaseException | None = query._failure
    return failure


def described(job: OperatorStream, **fields: Any) -> Any:
    """The same job, whose stored description has other values in these fields."""
    return job._with(msgspec.structs.replace(job.operator.description, **fields))


def map_side(batch: MicroBatch, batches: Sequence[pa.RecordBatch]) -> tuple[list[Block], list[pa.Table]]:
    """The blocks, without their rows, and the tables of rejected ones, of a task that reads input for a DataFrame."""
    from tidestate.operators.spark import tasks  # which imports pyspark

    sent = pa.Table.from_batches(tasks.map_side(batch, iter(batches)))
    blocks = [tasks._HEADER.decode(raw)[0] for raw in sent["header"].to_pylist()]
    rejected = [rows for blob in sent["rejected"] if (rows := tasks._unpack(blob)) is not None]
    return blocks, rejected


def stepped(plan: Plan, view: StateView, arriving: pa.Table, context: Context) -> Transition:
    """A step with what expires in it, and when something is due next."""
    return take_step(plan, view, arriving, context)
