"""What Spark's tasks run: `run_task`, with its blocks as rows of a DataFrame or an RDD.

A row is a block: its address, its header, and its rows and ledger rows as Arrow blobs. So every task knows the
watermark after the batch, and due windows fire in the same job. Results and errors are rows, too. Rows arrive in any
order, and a task may run twice or as a zombie: nothing here publishes.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from tidestate.operators.engine.micro_batch import Block, BlockHeader, MicroBatch
from tidestate.operators.engine.partitions import TaskResult
from tidestate.operators.engine.tasks import StreamRows, run_task
from tidestate.operators.plan.classify import PartitionedRows
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.failures import Failure, failure_of
from tidestate.operators.spark.scan.decide import DirectScan
from tidestate.operators.spark.scan.files import FileRange, NeedsJvmError
from tidestate.operators.spark.scan.reader import read_ranges
from tidestate.operators.spark.sent_states import StatesOfTasks
from tidestate.statestore.errors import TidestateError, invariant

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
_HEADER = msgspec.msgpack.Decoder(tuple[BlockHeader, tuple[tuple[int, int], ...]])
"""The header of a block, and how many of the rows that come with it each state partition gets."""


def map_side(
    batch: MicroBatch, batches: Iterator[pa.RecordBatch], phase: str = "transfer"
) -> Iterator[pa.RecordBatch]:
    """Stage 0 of a task, which reads these rows of the combined stream. Also called for an input partition without
    rows. Waiting for ``batches`` is time of this ``phase``.
    """
    _freeze_once()
    try:
        yield from exchanged_rows(run_task(batch, 0, _task_number(), stream_pieces(batch, batches), phase=phase))
    except (TidestateError, NeedsJvmError) as error:
        yield from failed(batch, error)


def scan_side(
    batch: MicroBatch,
    scan: DirectScan,
    tasks: Sequence[Sequence[FileRange]],
    row_group_bytes: int,
    numbers: Iterable[int],
) -> Iterator[pa.RecordBatch]:
    """As `map_side`, but this task reads its ranges of the files itself. ``numbers`` has only that of the task."""
    for number in numbers:
        yield from map_side(batch, read_ranges(scan, tasks[number], row_group_bytes), "read")


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
    _freeze_once()
    task, blocks = _task_number(), list[Block]()
    if after is None:
        rows = pa.Table.from_batches(list(batches), _EXCHANGE_SCHEMA)
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
        yield from exchanged_rows(list(run_task(states.of_task(batch, task), level, task, blocks, after=after)), task)
    except TidestateError as error:
        yield _ended(task, None, _failure(error))


def stream_pieces(batch: MicroBatch, batches: Iterable[pa.RecordBatch]) -> Iterator[StreamRows]:
    """Rows of the combined stream in tables of about `CHUNK_ROWS`, by stream."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for some in batches:
        held.append(some)
        rows += some.num_rows
        if rows >= CHUNK_ROWS:
            yield batch.graph.split(pa.Table.from_batches(held))
            held, rows = [], 0
    if held:
        yield batch.graph.split(pa.Table.from_batches(held))


def failed(batch: MicroBatch, error: TidestateError | NeedsJvmError) -> Iterator[pa.RecordBatch]:
    """Rows for all tasks that one of them has failed."""
    return (_ended(task, None, _failure(error)) for task in range(len(batch.spans)))


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
    for one in made:
        if isinstance(one, TaskResult):
            yield _ended(task, msgspec.structs.replace(one, host=host), None)
            continue
        rows, rejected = one.rows, one.rejected
        yield _row(
            one.task,
            one.operator,
            one.number,
            msgspec.msgpack.encode((one.header, rows.counts if rows is not None else ())),
            _pack(rows.rows) if rows is not None else None,
            _pack(rejected) if rejected is not None else None,
        )


def _row(task: int, operator: int, number: int, *blobs: bytes | None) -> pa.RecordBatch:
    values = [task, operator, number, *blobs, *[None] * (3 - len(blobs))]
    columns = [pa.array([value], field.type) for value, field in zip(values, _EXCHANGE_SCHEMA, strict=True)]
    return pa.record_batch(columns, schema=_EXCHANGE_SCHEMA)


def _blocks(rows: pa.Table, operators: Sequence[int], here: set[int]) -> Iterator[Block]:
    """The blocks that arrived; of operators that are not ``here`` only the headers."""
    columns = [rows[name] for name in ("task", "input", "header", "partials", "rejected")]
    for operator, task, number, header, partials, rejected in zip(operators, *columns, strict=True):
        if operator == RESULT:
            continue
        facts, counts = _HEADER.decode(header.as_py())
        arrived = _unpack(partials) if operator in here else None
        yield Block(
            operator,
            task.as_py(),
            number.as_py(),
            facts,
            PartitionedRows(arrived, counts) if arrived is not None else None,
            _unpack(rejected) if operator in here else None,
        )


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


_frozen = False


def _freeze_once() -> None:
    """Spark's worker runs a full garbage collection after every task; freezing the loaded modules makes it cheap."""
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
