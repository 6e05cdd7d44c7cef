"""The functions of Spark's tasks: `map_side` next to the input, then `level_side` next to the state, for each level
of operators.

Between them rows are exchanged, one per piece of input, operator and state partition: a header with the largest event
time and counters, and the partials as an Arrow blob. So every state partition knows the watermark after the batch,
and due windows fire in the same job. Answers of state partitions are rows, too. Rows arrive in any order, and a task
may run twice or as a zombie: nothing here publishes.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from tidestate.operators.engine.partition import PartitionResult
from tidestate.operators.engine.pieces import Header, Piece
from tidestate.operators.engine.round import GraphRound, Intakes, Outgoing, progress_after, run_level
from tidestate.operators.progress.rounds import Progress
from tidestate.statestore import errors
from tidestate.statestore.errors import TidestateError, invariant

CHUNK_ROWS = 1 << 20
"""The number of input rows that are classified at once; it bounds a task's memory."""

ANSWER = -1
"""The operator number of a row with an answer."""
EXCHANGE = "partition int, operator int, input long, header binary, partials binary, rejected binary"

_EXCHANGE_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("operator", pa.int32()),
        ("input", pa.int64()),
        ("header", pa.binary()),
        ("partials", pa.binary()),
        ("rejected", pa.binary()),
    ]
)


class Failure(msgspec.Struct, frozen=True):
    """One of our errors as a value: the driver raises it again, with code and context."""

    kind: str
    message: str
    code: str
    context: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    """The answer for a state partition of an operator, or for a piece of input that failed: a result or a failure."""

    result: PartitionResult | None = None
    failure: Failure | None = None


def map_side(round_: GraphRound, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Classify this task's input. Also called for an input partition without rows."""
    _freeze_once()
    task, intakes = _task_partition(), Intakes(round_)
    for chunk_number, chunk in enumerate(_chunks(batches)):
        # Ordered by task, then chunk: sums do not depend on what arrives first.
        number = (task << 20) + chunk_number
        try:
            going = list(intakes.streams(round_.graph.split(chunk), number))
        except TidestateError as error:
            for partition in range(round_.partitions):
                yield _answer_row(partition, Answer(failure=_failure(error)))
        else:
            yield from exchange_rows(going)


def level_side(round_: GraphRound, level: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the operators of a level for this state partition. Yields their answers, pieces of their panes for readers,
    and the rows for later levels.
    """
    _freeze_once()
    rows = pa.Table.from_batches(list(batches), _EXCHANGE_SCHEMA)
    partition = _task_partition()
    partitions = set(rows["partition"].to_pylist())
    invariant(partitions <= {partition}, "rows reach the task of their state partition", found=partitions)
    numbers = {number for number, _ in round_.graph.at(level)}
    operators = rows["operator"].to_pylist()
    later = [place for place, number in enumerate(operators) if number not in numbers]
    yield from rows.take(pa.array(later, pa.int64())).to_batches()
    if _failed(rows.filter(pa.array([number == ANSWER for number in operators], pa.bool_()))):
        return
    arrived = _pieces(rows, operators, numbers)
    yield from _level(round_, level, partition, arrived, None)


def tick_side(
    round_: GraphRound, after: dict[str, Progress], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The first level of a round without input. Each input row is the number of a state partition."""
    _freeze_once()
    for batch in batches:
        for partition in batch.column(0).to_pylist():
            yield from _level(round_, 1, partition, {}, after)


def _level(
    round_: GraphRound,
    level: int,
    partition: int,
    arrived: Mapping[int, Sequence[Piece]],
    after: dict[str, Progress] | None,
) -> Iterator[pa.RecordBatch]:
    try:
        after = progress_after(round_, arrived, level) if after is None else after
        results, going = run_level(round_, level, partition, arrived, after)
    except TidestateError as error:
        yield _answer_row(partition, Answer(failure=_failure(error)))
        return
    host = socket.gethostname()
    for result in results:
        yield _answer_row(partition, Answer(msgspec.structs.replace(result, host=host)))
    yield from exchange_rows(going)


def decode_answers(payloads: Sequence[bytes]) -> list[PartitionResult]:
    """The results of answers. Raises the error of the first failure."""
    answers = [msgspec.msgpack.decode(payload, type=Answer) for payload in payloads]
    for answer in answers:
        if (failure := answer.failure) is not None:
            kind = getattr(errors, failure.kind)
            raise kind(failure.message, code=failure.code, **failure.context)
    return [answer.result for answer in answers if answer.result is not None]


def _failure(error: TidestateError) -> Failure:
    context = {name: str(value) for name, value in error.context.items()}
    return Failure(type(error).__name__, error.message, error.code, context)


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
    for operator, partition, piece in outgoing:
        partials, rejected = piece.partials, piece.rejected
        yield _row(
            partition,
            operator,
            piece.number,
            msgspec.msgpack.encode(piece.header),
            _pack(partials) if partials is not None and partials.num_rows else None,
            _pack(rejected) if rejected is not None else None,
        )


def _row(partition: int, operator: int, number: int, *blobs: bytes | None) -> pa.RecordBatch:
    values = [partition, operator, number, *blobs, *[None] * (3 - len(blobs))]
    columns = [pa.array([value], field.type) for value, field in zip(values, _EXCHANGE_SCHEMA, strict=True)]
    return pa.record_batch(columns, schema=_EXCHANGE_SCHEMA)


def _pieces(rows: pa.Table, operators: Sequence[int], here: set[int]) -> dict[int, list[Piece]]:
    """The pieces that arrived, by operator; of operators that are not ``here`` only the headers."""
    pieces: dict[int, list[Piece]] = {}
    columns = [rows[name] for name in ("input", "header", "partials", "rejected")]
    for operator, *values in zip(operators, *columns, strict=True):
        if operator != ANSWER:
            number, header, partials, rejected = values
            piece = Piece(
                number.as_py(),
                msgspec.msgpack.decode(header.as_py(), type=Header),
                _unpack(partials) if operator in here else None,
                _unpack(rejected) if operator in here else None,
            )
            pieces.setdefault(operator, []).append(piece)
    return pieces


def _failed(answers: pa.Table) -> bool:
    """Whether an earlier task has failed: nothing will be published, so the rest need not run."""
    decoded = (msgspec.msgpack.decode(raw, type=Answer) for raw in answers["header"].to_pylist())
    return any(answer.failure is not None for answer in decoded)


def _pack(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _unpack(blob: pa.BinaryScalar) -> pa.Table | None:
    return pa.ipc.open_stream(stored).read_all() if (stored := blob.as_buffer()) is not None else None


def _answer_row(partition: int, answer: Answer) -> pa.RecordBatch:
    return _row(partition, ANSWER, 0, msgspec.msgpack.encode(answer))


def _task_partition() -> int:
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
