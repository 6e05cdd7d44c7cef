"""The functions of Spark's tasks: `map_side` next to the input, then `level_side` next to the state, for each level
of operators.

Between them rows are exchanged, one per piece of input, operator and task: a header with the largest event time and
counters, and the partials as an Arrow blob. So every task knows the watermark after the batch, and due windows fire
in the same job. Answers are rows, too. Rows arrive in any order, and a task may run twice or as a zombie: nothing
here publishes.
"""

from __future__ import annotations

import gc
import socket
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from tidestate.operators.engine.level import run_level
from tidestate.operators.engine.partition import OperatorResult
from tidestate.operators.engine.pieces import Header, Piece
from tidestate.operators.engine.round import GraphRound, Intakes, Outgoing, TaskStates, progress_after
from tidestate.operators.plan.partitioned_rows import PartitionedRows
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.scan.decide import DirectScan
from tidestate.operators.spark.scan.division import FileRange
from tidestate.operators.spark.scan.footer import NeedsJvmError
from tidestate.operators.spark.scan.reader import read_ranges
from tidestate.statestore import errors
from tidestate.statestore.errors import TidestateError, invariant

CHUNK_ROWS = 1 << 20
"""The number of input rows that are classified at once; it bounds a task's memory."""

ANSWER = -1
"""The operator number of rows with an answer."""
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


_STATES = msgspec.msgpack.Decoder(TaskStates)
Packed = tuple[bytes, ...]
"""The entries of state partitions, for each task its own."""


class HasValue(Protocol):
    """A broadcast of Spark's, in a task."""

    @property
    def value(self) -> Packed:
        """What was broadcast, as the tasks see it."""
        ...


class Failure(msgspec.Struct, frozen=True):
    """One of our errors as a value: the driver raises it again, with code and context. ``cause``: the traceback of
    what it comes from, in the task; empty for none.
    """

    kind: str
    message: str
    code: str
    context: dict[str, str]
    cause: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a task for an operator, or for a piece of input that failed: a result or a failure.
    ``needs_jvm``: why the files of the batch must be read by Spark.
    """

    result: OperatorResult | None = None
    failure: Failure | None = None
    needs_jvm: str | None = None


class _Sent(msgspec.Struct, frozen=True):
    """A header as it is sent, and how many of the rows that come with it each state partition gets."""

    header: Header
    counts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class TaskRound:
    """A round as its tasks get it. Its state partitions are apart, packed, by task: in broadcasts ``before``, and in
    ``states`` those that have changed since. Of a state partition the last entry counts.
    """

    round_: GraphRound
    before: tuple[HasValue, ...] = ()
    states: Packed = ()

    def of_task(self, task: int) -> GraphRound:
        """The round with the state partitions of one task."""
        found: TaskStates = {name: {} for name in self.round_.rounds}
        for packed in (*(one.value for one in self.before), self.states):
            for name, own in _STATES.decode(packed[task]).items() if packed else ():
                found[name] |= own
        return self.round_.with_states(found)


def map_side(
    round_: GraphRound, batches: Iterator[pa.RecordBatch], phase: str = "transfer"
) -> Iterator[pa.RecordBatch]:
    """Classify this task's input. Also called for an input partition without rows. Waiting for ``batches`` is time of
    this ``phase``.
    """
    _freeze_once()
    try:
        yield from exchange_rows(classified(round_, _task_number(), batches, phase))
    except TidestateError as error:
        for one in range(len(round_.spans)):
            yield _answer_row(one, Answer(failure=_failure(error)))


def classified(round_: GraphRound, task: int, batches: Iterator[pa.RecordBatch], phase: str) -> Iterator[Outgoing]:
    """The pieces that task number ``task`` makes of its input. Waiting for ``batches`` is time of this ``phase``."""
    intakes = Intakes(round_)
    for chunk_number, chunk in enumerate(intakes.watch.awaited(phase, _chunks(batches))):
        # Ordered by task, then chunk: sums do not depend on what arrives first.
        yield from intakes.streams(round_.graph.split(chunk), (task << 20) + chunk_number)


def scan_side(
    round_: GraphRound,
    scan: DirectScan,
    tasks: Sequence[Sequence[FileRange]],
    row_group_bytes: int,
    numbers: Iterable[int],
) -> Iterator[pa.RecordBatch]:
    """As `map_side`, but this task reads its ranges of the files itself. ``numbers`` has only that of the task."""
    for number in numbers:
        try:
            yield from map_side(round_, read_ranges(scan, tasks[number], row_group_bytes), "read")
        except NeedsJvmError as why:
            yield from needing_jvm(round_, why)


def needing_jvm(round_: GraphRound, why: NeedsJvmError) -> Iterator[pa.RecordBatch]:
    """Answers for all tasks that Spark must read the batch."""
    return (_answer_row(one, Answer(needs_jvm=str(why))) for one in range(len(round_.spans)))


def level_side(sent: TaskRound, level: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the operators of a level for this task's state partitions. Yields their answers, pieces of their panes for
    readers, and the rows for later levels.
    """
    _freeze_once()
    rows = pa.Table.from_batches(list(batches), _EXCHANGE_SCHEMA)
    task = _task_number()
    tasks = set(rows["task"].to_pylist())
    invariant(tasks <= {task}, "rows reach their task", found=tasks)
    operators = rows["operator"].to_pylist()
    numbers = {number for number, _ in sent.round_.graph.at(level)}
    later = [place for place, number in enumerate(operators) if number not in numbers]
    yield from rows.take(pa.array(later, pa.int64())).to_batches()
    if _failed(_of(rows, operators, ANSWER)):
        return
    yield from _level(sent.of_task(task), level, task, _pieces(rows, operators, numbers), None)


def tick_side(
    sent: TaskRound, after: dict[str, Progress], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The first level of a round without input. The only input row is the number of this task."""
    _freeze_once()
    for _ in batches:
        pass
    task = _task_number()
    yield from _level(sent.of_task(task), 1, task, {}, after)


def _level(
    round_: GraphRound,
    level: int,
    task: int,
    arrived: Mapping[int, Sequence[Piece]],
    after: dict[str, Progress] | None,
) -> Iterator[pa.RecordBatch]:
    try:
        after = progress_after(round_, arrived, level) if after is None else after
        results, going = run_level(round_, level, task, arrived, after)
    except TidestateError as error:
        yield _answer_row(task, Answer(failure=_failure(error)))
        return
    host = socket.gethostname()
    for result in results:
        yield _answer_row(task, Answer(msgspec.structs.replace(result, host=host)))
    yield from exchange_rows(going)


def decode_answers(payloads: Sequence[bytes]) -> list[OperatorResult]:
    """The results of answers. Raises `NeedsJvmError` if a file must be read by Spark, else the error of the first
    failure.
    """
    answers = [msgspec.msgpack.decode(payload, type=Answer) for payload in payloads]
    if reasons := sorted({answer.needs_jvm for answer in answers if answer.needs_jvm is not None}):
        raise NeedsJvmError(reasons[0])
    for answer in answers:
        if (failure := answer.failure) is not None:
            kind = getattr(errors, failure.kind)
            # The exception itself may be of a class that only the task can import.
            cause = RuntimeError(failure.cause) if failure.cause else None
            raise kind(failure.message, code=failure.code, **failure.context) from cause
    return [answer.result for answer in answers if answer.result is not None]


def _failure(error: TidestateError) -> Failure:
    context = {name: str(value) for name, value in error.context.items()}
    cause = "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
    return Failure(type(error).__name__, error.message, error.code, context, cause)


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The input in tables of about `CHUNK_ROWS`."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


def exchange_rows(outgoing: Iterable[Outgoing]) -> Iterator[pa.RecordBatch]:
    """A row for each piece."""
    for operator, task, piece in outgoing:
        partials, rejected = piece.partials, piece.rejected
        yield _row(
            task,
            operator,
            piece.number,
            msgspec.msgpack.encode(_Sent(piece.header, partials.counts if partials is not None else ())),
            _pack(partials.rows) if partials is not None else None,
            _pack(rejected) if rejected is not None else None,
        )


def _row(task: int, operator: int, number: int, *blobs: bytes | None) -> pa.RecordBatch:
    values = [task, operator, number, *blobs, *[None] * (3 - len(blobs))]
    columns = [pa.array([value], field.type) for value, field in zip(values, _EXCHANGE_SCHEMA, strict=True)]
    return pa.record_batch(columns, schema=_EXCHANGE_SCHEMA)


def _of(rows: pa.Table, operators: Sequence[int], number: int) -> pa.Table:
    """The rows of one operator, or one kind."""
    return rows.filter(pa.array([one == number for one in operators], pa.bool_()))


def _pieces(rows: pa.Table, operators: Sequence[int], here: set[int]) -> dict[int, list[Piece]]:
    """The pieces that arrived, by operator; of operators that are not ``here`` only the headers."""
    pieces: dict[int, list[Piece]] = {}
    columns = [rows[name] for name in ("input", "header", "partials", "rejected")]
    for operator, *values in zip(operators, *columns, strict=True):
        if operator >= 0:
            number, header, partials, rejected = values
            sent = msgspec.msgpack.decode(header.as_py(), type=_Sent)
            arrived = _unpack(partials) if operator in here else None
            piece = Piece(
                number.as_py(),
                sent.header,
                PartitionedRows(arrived, sent.counts) if arrived is not None else None,
                _unpack(rejected) if operator in here else None,
            )
            pieces.setdefault(operator, []).append(piece)
    return pieces


def _failed(answers: pa.Table) -> bool:
    """Whether an earlier task has failed: nothing will be published, so the rest need not run."""
    decoded = (msgspec.msgpack.decode(raw, type=Answer) for raw in answers["header"].to_pylist())
    return any(answer.result is None for answer in decoded)


def _pack(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = _COMPRESSED if rows.nbytes >= COMPRESSED_FROM else None
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _unpack(blob: pa.BinaryScalar) -> pa.Table | None:
    return pa.ipc.open_stream(stored).read_all() if (stored := blob.as_buffer()) is not None else None


def _answer_row(task: int, answer: Answer) -> pa.RecordBatch:
    return _row(task, ANSWER, 0, msgspec.msgpack.encode(answer))


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
