"""What a checkpoint costs over many state partitions: a few changed ones, or all; standalone.

Seconds and bytes are measured on local files, requests at a real S3 service on this host, over as many checkpoints.
Partitions that no batch changes until then are simulated: the manifest names files that were never written.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine.delivery import Delivery
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.micro_batch import MicroBatch, TaskResult
from tidestate.operators.engine.tasks import Batches, InProcess
from tidestate.operators.spark.tasks import Packed, SentStates, StatesOfTasks, level_side, map_side
from tidestate.operators.spark.transport import TASKS_PER_CORE
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path, now_us
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.manifest_file import successor
from tidestate.statestore.files.refs import FileRef, PartitionState, state_folder
from tidestate.stores import Parquet
from tools.bench.bids import ARROW_SCHEMA, Numbers
from tools.bench.partitions import events, one_key_each, spread
from tools.bench.requests import KINDS, Requests, counted, price
from tools.bench.table import Row, commit
from tools.bench.workloads import WORKLOADS

PARTITIONS = (10, 1_000, 10_000)
FEW = (10, 100)
"""State partitions that a batch changes."""
CORES = 2
A_MONTH = 30 * 24 * 3600 // 10
"""One checkpoint each 10 seconds."""


@dataclass
class _Sent:
    """Tasks in this process; makes what the driver would send to Spark's, too."""

    tasks: InProcess = field(default_factory=InProcess)
    parallelism: int = 1
    max_tasks: int = 1
    seconds: float = 0.0
    bytes: int = 0
    states: SentStates = field(init=False)

    def __post_init__(self) -> None:
        self.states = SentStates(self._broadcast)

    def run(self, batch: MicroBatch, rows: Batches | None = None, **given: Any) -> list[TaskResult]:
        """As in `Transport`, and what Spark's tasks would be sent is counted."""
        if rows is None:
            return self.tasks.run(batch, **given)
        self.bytes = 0
        self.bytes += _function_bytes(*self.states.sent(batch.divided(CORES * TASKS_PER_CORE)))
        started = time.perf_counter()
        results = self.tasks.run(batch, rows)
        self.seconds = time.perf_counter() - started
        return results

    def _broadcast(self, packed: Packed) -> _Held:
        self.bytes += sum(map(len, packed))
        return _Held(packed)

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
        """As in `Transport`, on the calling thread."""
        return self.tasks.read(checkpoint, delivery)


@dataclass(frozen=True)
class _Held:
    """A broadcast without Spark."""

    value: Packed

    def destroy(self) -> None:
        """As in `Broadcast`."""


def _function_bytes(batch: MicroBatch, states: StatesOfTasks) -> int:
    """The functions of both stages of a batch, with what they know of state partitions; broadcasts are apart."""
    stages = (map_side, batch), (level_side, batch, replace(states, before=()), 1)
    return sum(len(CloudPickleSerializer().dumps(stage)) for stage in stages)


@dataclass(frozen=True)
class _Cost:
    seconds: float
    driver_s: float
    sent: int
    manifest: int
    requests: Counter[str]


def run(partitions: Iterable[int], changed: Iterable[int] = (), *, warm: int) -> Iterator[Row]:
    """A row for each number of partitions and of changed ones, over ``warm`` checkpoints; by default of `FEW` and of
    all, over one.
    """
    at, chosen = commit(), tuple(changed)
    for number in partitions:
        few = [one for one in chosen or FEW if one < number]
        for sizes in filter(None, (few, [] if chosen else [number])):
            with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
                here = dict(_measured(folder, number, sizes, warm, Requests()))
            with counted() as (bucket, requests):
                there = dict(_measured(f"{bucket}/{number}-{len(sizes)}", number, sizes, warm, requests))
            for size in sizes:
                yield _row(number, size, here[size], there[size]) | {"commit": at}


def _row(partitions: int, changed: int, here: list[_Cost], there: list[_Cost]) -> Row:
    asked = sum((one.requests for one in there), Counter[str]())
    mean = {kind: asked[kind] / len(there) for kind in asked}
    return {
        "partitions": partitions,
        "changed": changed,
        "s": round(median(one.seconds for one in here), 3),
        "driver_s": round(median(one.driver_s for one in here), 3),
        "sent_kb": round(sum(one.sent for one in here) / len(here) / 1000, 1),
        "manifest_kb": round(sum(one.manifest for one in here) / len(here) / 1000, 1),
        **{kind.lower(): round(mean.get(kind, 0), 1) for kind in KINDS},
        "dollars": float(f"{price(mean):.2g}"),
        "dollars_a_month": float(f"{price(mean) * A_MONTH:.3g}"),
    }


def _measured(
    root: str, partitions: int, sizes: Sequence[int], warm: int, requests: Requests
) -> Iterator[tuple[int, list[_Cost]]]:
    """What checkpoints cost that change so many state partitions, all of which have state."""
    engine, keys = _Sent(), one_key_each(partitions)
    most = max((one for one in sizes if one < partitions), default=1)
    real = spread(np.arange(partitions), most)
    _simulate(_driver(root, partitions, engine).job.checkpoint, set(real.tolist()))
    driver = _driver(root, partitions, engine)
    with driver.running():
        _step(driver, engine, keys[real], requests)
        for changed in sizes:
            times = warm if changed < partitions else 1
            yield changed, [_step(driver, engine, spread(keys, changed), requests) for _ in range(times)]


def _driver(root: str, partitions: int, engine: _Sent) -> Driver[Batches, pa.Table]:
    graph = bind_graph(WORKLOADS["held"].ours.graph.description, ARROW_SCHEMA)
    job = Job.begin(graph, Checkpoint.open_or_create(root), Parquet(), partitions=partitions)
    return Driver(job, engine)


def _simulate(checkpoint: Checkpoint, real: Container[int]) -> None:
    """Publish a checkpoint that names a file for each state partition, like that of a job with only one; the
    ``real`` ones are empty.
    """
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        engine = _Sent()
        driver = _driver(folder, 1, engine)
        with driver.running():
            _step(driver, engine, one_key_each(1), Requests())
        (like,) = driver.head.operators["bids"].partitions
    head = checkpoint.chosen(None)
    operator = head.manifest.operators["bids"]
    states = tuple(
        _moved(like, number) if number not in real else PartitionState(due_mark=like.due_mark)
        for number in range(len(operator.partitions))
    )
    operators = {"bids": msgspec.structs.replace(operator, partitions=states)}
    checkpoint.publish(successor(head, "batch", checkpoint.writer, now_us(), operators=operators))


def _moved(state: PartitionState, number: int) -> PartitionState:
    was, now = state_folder("bids", 0), state_folder("bids", number)
    files = tuple(msgspec.structs.replace(ref, path=ref.path.replace(was, now)) for ref in state.files)
    return msgspec.structs.replace(state, files=files)


def _step(driver: Driver[Batches, pa.Table], engine: _Sent, keys: Numbers, requests: Requests) -> _Cost:
    before, batch = driver.head, events(keys, driver.head.id)
    requests.take()
    started = time.perf_counter()
    driver.batch([batch], now_us(), lambda _id: Position())
    seconds = time.perf_counter() - started
    asked = requests.take()
    return _Cost(seconds, seconds - engine.seconds, engine.bytes, _bytes(driver, before), asked)


def _bytes(driver: Driver[Batches, pa.Table], before: Manifest) -> int:
    """Of the newest manifest, with its own parts."""
    known = {ref.path for ref in _parts(before)}
    manifest = driver.job.checkpoint.objects.size(manifest_path(driver.head.id))
    return manifest + sum(ref.bytes for ref in _parts(driver.head) if ref.path not in known)


def _parts(manifest: Manifest) -> list[FileRef]:
    return [ref for one in manifest.operators.values() for ref in (*one.base, *one.copies, *one.changes)]
