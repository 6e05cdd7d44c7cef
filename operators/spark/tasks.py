"""What Spark's tasks run: the stages of a task, with its blocks as rows of a DataFrame or an RDD; and what they get
to know of state partitions.

A row is a block: its address, its header, and its rows and ledger rows as Arrow blobs. So every task knows the
watermark after the batch, and due windows fire in the same job. Results and errors are rows, too. Rows arrive in any
order, and a task may run twice or as a zombie: nothing here publishes.

Of state partitions as much is sent as has changed, not as many as there are. All go to the workers once, as a
broadcast, and with each micro-batch those that have changed since. When these are many they become a broadcast too,
and when such broadcasts are as large as half of the first, a new one has all. Where there are no broadcasts, on Spark
Connect, all are part of what each task gets to run.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidestate.operators.engine.micro_batch import Block, MicroBatch, TaskResult, TaskStates
from tidestate.operators.engine.tasks import StreamRows, admit_rows, step_level
from tidestate.operators.plan.classify import PartitionedRows
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.failures import Failure, failure_of
from tidestate.operators.spark.platform import Broadcast
from tidestate.operators.spark.scan.decide import NeedsJvmError
from tidestate.operators.spark.scan.reader import DirectBatch, read_ranges
from tidestate.statestore.arrays import in_lots
from tidestate.statestore.errors import TidestateError, invariant
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.process_memory import prefer_allocators

CHUNK_ROWS = 1 << 20
"""The number of input rows that are classified at once; it bounds a task's memory."""

RESULT = -1
"""The operator number of rows with a result, or a failure."""
COMPRESSED_FROM = 1 << 16
"""Larger partials cross the shuffle compressed: Spark copies each byte several times."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
EXCHANGE = "task int, operator int, input long, header binary, partials binary, rejected binary"

_EXCHANGE_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("operator", pa.int32()),
        ("input", pa.int64()),
        ("header", pa.binary()),
        ("partials", pa.binary()),
        ("rejected", pa.binary()),
    ]
)


# Made at import, see `statestore.decoding`: queries of several threads decode their first answers at once.
_ENDED = msgspec.msgpack.Decoder(tuple[TaskResult | None, Failure | None])
"""How a task ended for an operator, or for a piece of input."""
_HEADER = msgspec.msgpack.Decoder(tuple[Block, tuple[tuple[int, int], ...]])
"""A block without its rows, and how many of those that come with it each state partition gets."""


Row = tuple[int, pa.RecordBatch]
"""A row of the exchange, or several of one task, and the task."""
INLINE_BYTES = 256 << 10
"""Up to this size entries are part of what each task gets to run."""
LATER_SHARE = 2
"""Later broadcasts may have half the size of the first."""


_STATES = msgspec.msgpack.Decoder(TaskStates)
Packed = tuple[bytes, ...]
"""The entries of state partitions, for each task its own."""


@dataclass(frozen=True)
class StatesOfTasks:
    """The state partitions of a micro-batch, packed, by task: in broadcasts ``before``, and in ``changed`` those that
    have changed since. Of a state partition the last entry counts.
    """

    before: tuple[Broadcast[Packed], ...] = ()
    changed: Packed = ()

    def of_task(self, batch: MicroBatch, task: int) -> MicroBatch:
        """The micro-batch with the state partitions of one task."""
        states: TaskStates = {name: {} for name in batch.inputs}
        for packed in (*(broadcast.value for broadcast in self.before), self.changed):
            for name, own in _STATES.decode(packed[task]).items() if packed else ():
                states[name] |= own
        return batch.with_states(states)


class SentStates:
    """Sends the state partitions of one job, micro-batch after micro-batch."""

    def __init__(self, broadcast: Callable[[Packed], Broadcast[Packed] | None]) -> None:
        self._broadcast = broadcast
        self._held: list[Broadcast[Packed]] = []
        self._sizes: list[int] = []
        self._known: dict[str, dict[int, PartitionState]] = {}
        self._spans: tuple[tuple[int, int], ...] = ()

    def sent(self, batch: MicroBatch) -> tuple[MicroBatch, StatesOfTasks]:
        """The micro-batch as its tasks get it, and apart from it its state partitions."""
        if self._spans != batch.spans:
            self._forget()
            self._spans = batch.spans
        packed = self._packed(batch, self._known)
        if _size(packed) > INLINE_BYTES:
            if not self._held or LATER_SHARE * (sum(self._sizes[1:]) + _size(packed)) > self._sizes[0]:
                self._forget()
                packed = self._packed(batch, {})
            if (broadcast := self._broadcast(packed)) is not None:
                self._held.append(broadcast)
                self._sizes.append(_size(packed))
                self._known = {name: dict(own.base) for name, own in batch.inputs.items()}
                packed = ()
        return batch.with_states({}), StatesOfTasks(tuple(self._held), packed)

    def _packed(self, batch: MicroBatch, known: Mapping[str, Mapping[int, PartitionState]]) -> Packed:
        """For each task the entries of its state partitions that are not ``known``. An entry that stays is the same
        object from one micro-batch to the next.
        """
        return tuple(msgspec.msgpack.encode(_unknown(batch.states(task), known)) for task in range(len(batch.spans)))

    def _forget(self) -> None:
        # No micro-batch is under way: whatever still runs is a zombie, whose answer nobody reads.
        for broadcast in self._held:
            broadcast.destroy()
        self._held, self._sizes, self._known = [], [], {}


def _unknown(states: TaskStates, known: Mapping[str, Mapping[int, PartitionState]]) -> TaskStates:
    return {
        name: {number: one for number, one in own.items() if known.get(name, {}).get(number) is not one}
        for name, own in states.items()
    }


def _size(packed: Packed) -> int:
    return sum(map(len, packed))


def map_side(
    batch: MicroBatch, batches: Iterator[pa.RecordBatch], phase: str = "transfer"
) -> Iterator[pa.RecordBatch]:
    """Stage 0 of a task, which reads these rows of the combined stream. Also called for an input partition without
    rows. Waiting for ``batches`` is time of this ``phase``.
    """
    _prepare_once()
    try:
        yield from exchanged_rows(admit_rows(batch, _task_number(), stream_pieces(batch, batches), phase))
    except (TidestateError, NeedsJvmError) as error:
        yield from failed(batch, error)


def bounded_map_side(batch: MicroBatch, most: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`map_side`, which sends so many bytes at ``most``: the driver takes what it makes."""
    return _bounded(batch, most, map_side(batch, batches))


def level_side(
    batch: MicroBatch,
    states: StatesOfTasks,
    level: int,
    batches: Iterator[pa.RecordBatch],
    after: Mapping[str, Progress] | None = None,
) -> Iterator[pa.RecordBatch]:
    """A later stage of a task. Yields results, blocks, and the rows for later levels. With ``after`` the micro-batch
    has no input, and ends so: the rows are only the number of the task.
    """
    _prepare_once()
    task, blocks = _task_number(), list[Block]()
    if after is None:
        # With spark.sql.execution.arrow.useLargeVarTypes Spark hands over large_binary for binary.
        rows = pa.Table.from_batches([some.cast(_EXCHANGE_SCHEMA) for some in batches], _EXCHANGE_SCHEMA)
        tasks = set(rows["task"].to_pylist())
        invariant(tasks <= {task}, "rows reach their task", found=tasks)
        operators = rows["operator"].to_pylist()
        here = {number for number, _ in batch.graph.at(level)}
        later = [place for place, number in enumerate(operators) if number not in here]
        yield from rows.take(pa.array(later, pa.int64())).to_batches()
        if _has_failed(rows, operators):
            return
        blocks = list(_blocks(rows, operators, here))
    else:
        for _ in batches:
            pass
    try:
        yield from exchanged_rows(list(step_level(states.of_task(batch, task), level, task, blocks, after)), task)
    except TidestateError as error:
        yield _ended(task, None, _failure(error))


def scan_rows(batch: MicroBatch, direct: DirectBatch, most: int, numbers: Iterable[int]) -> Iterator[Row]:
    """Stage 0 of a task of an RDD, which reads its ranges of the files itself, and sends so many bytes at ``most``.
    ``numbers`` has only that of the task.
    """
    for number in numbers:
        ranges = read_ranges(direct.scan, direct.tasks[number], direct.row_group_bytes)
        yield from _by_task(_bounded(batch, most, map_side(batch, ranges, "read")))


def level_rows(batch: MicroBatch, states: StatesOfTasks, level: int, most: int, rows: Iterable[Row]) -> Iterator[Row]:
    """`level_side` as a stage of an RDD."""
    return _by_task(_bounded(batch, most, level_side(batch, states, level, (row for _, row in rows))))


def _bounded(batch: MicroBatch, most: int, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows, up to so many bytes: with more, the batch must go another way."""
    held = 0
    for row in rows:
        held += row.nbytes
        if held > most:
            yield from failed(batch, NeedsJvmError(f"a task sends more than {most} bytes"))
            return
        yield row


def _by_task(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Each batch with the task of its rows."""
    return ((batch["task"][0].as_py(), batch) for batch in batches if batch.num_rows)


def stream_pieces(batch: MicroBatch, batches: Iterable[pa.RecordBatch]) -> Iterator[StreamRows]:
    """Rows of the combined stream in tables of about `CHUNK_ROWS`, by stream."""
    # No name keeps a lot while the next one is gathered.
    lots = in_lots(batches, lambda some: some.num_rows, CHUNK_ROWS)
    return map(batch.graph.split, map(pa.Table.from_batches, lots))


def failed(batch: MicroBatch, error: TidestateError | NeedsJvmError) -> Iterator[pa.RecordBatch]:
    """Rows for all tasks that one of them has failed."""
    return (_ended(task, None, _failure(error)) for task in range(len(batch.spans)))


def sent_blocks(rows: pa.Table) -> list[Block]:
    """The blocks that tasks of stage 0 have sent. Raises as `results_of`."""
    rows = rows.cast(_EXCHANGE_SCHEMA)
    operators = rows["operator"].to_pylist()
    # A task that fails sends this to each task of a second stage, and so to the driver, in the place of blocks.
    results_of(rows["header"].filter(pa.array([number == RESULT for number in operators], pa.bool_())).to_pylist())
    return list(_blocks(rows, operators, set(operators)))


def results_of(payloads: Sequence[bytes]) -> list[TaskResult]:
    """The results of all tasks. Raises `NeedsJvmError` if a file must be read by Spark, else the error of the first
    failure.
    """
    ended = [_ENDED.decode(payload) for payload in payloads]
    failures = [failure for _, failure in ended if failure is not None]
    if reasons := sorted(failure.message for failure in failures if failure.kind == NeedsJvmError.__name__):
        raise NeedsJvmError(reasons[0])
    for failure in failures:
        failure.raised()
    return [result for result, _ in ended if result is not None]


def _failure(error: TidestateError | NeedsJvmError) -> Failure:
    return Failure(type(error).__name__, "", str(error)) if isinstance(error, NeedsJvmError) else failure_of(error)


def exchanged_rows(made: Iterable[Block | TaskResult], task: int = 0) -> Iterator[pa.RecordBatch]:
    """A row for each block, and for each result of this task."""
    host = socket.gethostname()
    for item in made:
        if isinstance(item, TaskResult):
            yield _ended(task, msgspec.structs.replace(item, host=host), None)
            continue
        rows, rejected = item.rows, item.rejected
        without_rows = msgspec.structs.replace(item, rows=None, rejected=None)
        yield _row(
            item.task,
            item.operator,
            item.number,
            msgspec.msgpack.encode((without_rows, rows.counts if rows is not None else ())),
            _pack(rows.rows) if rows is not None else None,
            _pack(rejected) if rejected is not None else None,
        )


def _row(task: int, operator: int, number: int, *blobs: bytes | None) -> pa.RecordBatch:
    values = [task, operator, number, *blobs, *[None] * (3 - len(blobs))]
    columns = [pa.array([value], field.type) for value, field in zip(values, _EXCHANGE_SCHEMA, strict=True)]
    return pa.record_batch(columns, schema=_EXCHANGE_SCHEMA)


def _blocks(rows: pa.Table, operators: Sequence[int], here: set[int]) -> Iterator[Block]:
    """The blocks that arrived; those of operators that are not ``here`` without their rows."""
    columns = [rows[name] for name in ("header", "partials", "rejected")]
    for operator, header, partials, rejected in zip(operators, *columns, strict=True):
        if operator == RESULT:
            continue
        block, counts = _HEADER.decode(header.as_py())
        if operator in here:
            arrived = _unpack(partials)
            of_partitions = None if arrived is None else PartitionedRows(arrived, counts)
            block = msgspec.structs.replace(block, rows=of_partitions, rejected=_unpack(rejected))
        yield block


def _has_failed(rows: pa.Table, operators: Sequence[int]) -> bool:
    """Whether an earlier task has failed: nothing will be published, so the rest need not run."""
    ended = rows["header"].filter(pa.array([number == RESULT for number in operators], pa.bool_()))
    return any(_ENDED.decode(raw)[1] is not None for raw in ended.to_pylist())


def _pack(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = _COMPRESSED if rows.nbytes >= COMPRESSED_FROM else None
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _unpack(blob: pa.BinaryScalar) -> pa.Table | None:
    return pa.ipc.open_stream(stored).read_all() if (stored := blob.as_buffer()) is not None else None


def _ended(task: int, result: TaskResult | None, failure: Failure | None) -> pa.RecordBatch:
    return _row(task, RESULT, 0, msgspec.msgpack.encode((result, failure)))


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


_prepared = False


def _prepare_once() -> None:
    """Choose the allocators of this worker. Spark runs a full garbage collection after every task, which freezing the
    loaded modules makes cheap.
    """
    global _prepared
    if not _prepared:
        prefer_allocators(apart=True)
        gc.freeze()
        _prepared = True
