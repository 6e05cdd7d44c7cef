"""What runs in Spark's tasks: `map_side` next to the input, `state_side` next to the state.

Between them travels one row per (piece of input, state partition): the largest event time seen, counters, and the
partials as one Arrow blob. So every state partition knows the watermark at the end of the batch, and due windows
fire in the same job. Rows come in any order and a task may run twice or as a zombie: nothing here publishes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pyarrow as pa

from operators.partition import Arrivals, PartitionResult, Round, no_arrivals, run_partition
from operators.plan import Plan
from operators.prepare import Prepared, one_origin, prepare
from operators.transition import total
from operators.watermarks import Claims, Progress
from statestore import errors
from statestore.errors import TidemarkError, invariant

CHUNK_ROWS = 1 << 20
"""Input rows prepared at once: bounds a task's memory."""

EXCHANGE = "partition int, input long, header binary, partials binary, rejected binary"
RESULTS = "partition int, result binary"

_EXCHANGE_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("input", pa.int64()),
        ("header", pa.binary()),
        ("partials", pa.binary()),
        ("rejected", pa.binary()),
    ]
)
_RESULT_SCHEMA = pa.schema([("partition", pa.int32()), ("result", pa.binary())])


class Failure(msgspec.Struct, frozen=True):
    """An error of ours as a value: it reaches the driver whole, not as the text of a Spark exception."""

    kind: str
    message: str
    code: str
    context: dict[str, str]


class Header(msgspec.Struct, frozen=True):
    """What one piece of input saw. Every state partition gets it; the counters go to one of them only."""

    max_event_us: int | None
    counters: dict[str, int] = {}
    failure: Failure | None = None
    origins: tuple[str, ...] = ()
    claims: Claims = Claims()


class Answer(msgspec.Struct, frozen=True):
    """What a state partition reports: a result, or why there is none."""

    result: PartitionResult | None = None
    failure: Failure | None = None


def map_side(round_: Round, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Prepare this task's input. Also called for an input partition without rows."""
    _freeze_once()
    task = _task_partition()
    intake = round_.intake
    for chunk_number, chunk in enumerate(_chunks(round_.plan, batches)):
        # Ordered by task, then chunk, so that sums fold in the same order whatever arrives first.
        number = (task << 20) + chunk_number
        try:
            prepared = prepare(round_.plan, chunk, intake, round_.partitions)
        except TidemarkError as error:
            yield from _failure_rows(error, number, round_.partitions)
        else:
            intake = replace(intake, so_far=_going_on(intake.so_far or round_.progress, prepared.claims))
            yield from exchange_rows(prepared, number, round_.partitions)


def _going_on(so_far: Progress, claims: Claims) -> Progress:
    """For the next chunk of the same sources, where their order counts."""
    return msgspec.structs.replace(so_far, advances=so_far.advances | claims.advances)


def state_side(round_: Round, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take what arrived for this state partition through the step; one small commit row comes out."""
    _freeze_once()
    rows = pa.Table.from_batches(list(batches), _EXCHANGE_SCHEMA)
    yield _answer_row(_answer(round_, rows))


def tick_side(round_: Round, after: Progress, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A step without input: only the watermark moves. Each input row is the number of a state partition."""
    _freeze_once()
    nothing = no_arrivals(round_.plan)
    for batch in batches:
        for partition in batch.column(0).to_pylist():
            try:
                answer = Answer(run_partition(round_, partition, nothing, after))
            except TidemarkError as error:
                answer = Answer(failure=_failure(error))
            yield _answer_row(answer)


def decode_answer(payload: bytes) -> PartitionResult:
    """The result in a commit row. Raises the error that the task reported instead."""
    answer = msgspec.msgpack.decode(payload, type=Answer)
    if answer.failure is not None:
        failure = answer.failure
        kind = getattr(errors, failure.kind)
        raise kind(failure.message, code=failure.code, **failure.context)
    invariant(answer.result is not None, "an answer holds a result or a failure")
    return answer.result  # type: ignore[return-value]


def _answer(round_: Round, rows: pa.Table) -> Answer:
    try:
        partition, arrivals, failure = _gather(round_.plan, rows)
        if failure is not None:
            return Answer(failure=failure)
        arrivals = replace(arrivals, origins=one_origin(round_.plan, round_.origins, arrivals.origins))
        return Answer(run_partition(round_, partition, arrivals, round_.after(arrivals.claims)))
    except TidemarkError as error:
        return Answer(failure=_failure(error))


def _failure(error: TidemarkError) -> Failure:
    context = {name: str(value) for name, value in error.context.items()}
    return Failure(type(error).__name__, error.message, error.code, context)


def _chunks(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The input in tables of about `CHUNK_ROWS`; one empty table when there is no input."""
    held: list[pa.RecordBatch] = []
    rows, any_yet = 0, False
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(held)
            held, rows, any_yet = [], 0, True
    if held or not any_yet:
        yield pa.Table.from_batches(held) if held else plan.input_schema.empty_table()


def exchange_rows(prepared: Prepared, number: int, partitions: int) -> Iterator[pa.RecordBatch]:
    """One row per state partition: what a piece of input brings it."""
    ledger_owner = number % partitions
    for partition in range(partitions):
        owner = partition == ledger_owner
        header = Header(
            prepared.max_event_us,
            prepared.counters if owner else {},
            origins=prepared.origins,
            claims=prepared.claims,
        )
        partials = prepared.partials[partition]
        columns = [
            pa.array([partition], pa.int32()),
            pa.array([number], pa.int64()),
            pa.array([msgspec.msgpack.encode(header)], pa.binary()),
            pa.array([_pack(partials) if partials.num_rows else None], pa.binary()),
            pa.array([_pack(prepared.rejected) if owner and prepared.rejected is not None else None], pa.binary()),
        ]
        yield pa.record_batch(columns, schema=_EXCHANGE_SCHEMA)


def _failure_rows(error: TidemarkError, number: int, partitions: int) -> Iterator[pa.RecordBatch]:
    header = msgspec.msgpack.encode(Header(None, failure=_failure(error)))
    for partition in range(partitions):
        row = [{"partition": partition, "input": number, "header": header, "partials": None, "rejected": None}]
        yield pa.RecordBatch.from_pylist(row, _EXCHANGE_SCHEMA)


def _gather(plan: Plan, rows: pa.Table) -> tuple[int, Arrivals, Failure | None]:
    """Everything that arrived, in the order of the pieces of input."""
    # No row at all: the batch has no input partition, as with one empty file.
    rows = rows.take(pa.array(rows["input"].to_numpy().argsort(kind="stable")))
    partitions = set(rows["partition"].to_pylist())
    own = _task_partition()
    invariant(partitions <= {own}, "rows reach the task of their state partition", found=partitions)
    headers = [msgspec.msgpack.decode(raw, type=Header) for raw in rows["header"].to_pylist()]
    maxima = [h.max_event_us for h in headers if h.max_event_us is not None]
    rejected = _unpack_all(rows["rejected"])
    arrivals = Arrivals(
        partials=pa.concat_tables([plan.exchanged.schema.empty_table(), *_unpack_all(rows["partials"])]),
        rejected=pa.concat_tables(rejected) if rejected else None,
        max_event_us=max(maxima, default=None),
        inputs=len(headers),
        counters=total([header.counters for header in headers]),
        origins=tuple({origin for header in headers for origin in header.origins}),
        claims=tuple(header.claims for header in headers),
    )
    return own, arrivals, next((h.failure for h in headers if h.failure is not None), None)


def _pack(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _unpack_all(blobs: pa.ChunkedArray) -> list[pa.Table]:
    return [pa.ipc.open_stream(blob.as_buffer()).read_all() for blob in blobs if blob.is_valid]


def _answer_row(answer: Answer) -> pa.RecordBatch:
    number = answer.result.partition if answer.result else -1
    columns = [pa.array([number], pa.int32()), pa.array([msgspec.msgpack.encode(answer)], pa.binary())]
    return pa.record_batch(columns, schema=_RESULT_SCHEMA)


def _task_partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


_frozen = False


def _freeze_once() -> None:
    """Spark's worker runs a full garbage collection after every task; freezing what is loaded makes it cheap."""
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
