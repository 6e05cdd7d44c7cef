"""Arrow IPC files, read message by message: nothing of one is unpacked that does not lie in it as it is.

Arrow may compress the columns of a batch, and a reader gives them the memory they ask for, whatever the size of the
file. Ours are never compressed, so a file with such a batch is refused before that.
"""

from __future__ import annotations

import struct

import pyarrow as pa

_MAGIC = b"ARROW1\0\0"
"""How a file begins; a stream of messages follows: the schema, then the batches."""
_HEADER, _COMPRESSION = 2, 3
"""Places of fields in Arrow's tables ``Message`` and ``RecordBatch`` (format/Message.fbs)."""


def read_batches(data: pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The schema of a file and its record batches, whose columns lie in ``data``. Raises what `understood` takes."""
    if data.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
        raise ValueError("no arrow file")
    return read_stream(data.slice(len(_MAGIC)))


def read_stream(data: pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The same of a stream of messages, which has no such beginning."""
    messages = _messages(data)
    if not messages:
        raise ValueError("the Arrow data has no schema")
    schema = pa.ipc.read_schema(messages[0])
    return schema, [_batch(message, schema) for message in messages[1:]]


def _messages(data: pa.Buffer) -> list[pa.ipc.Message]:
    reader, found = pa.ipc.MessageReader.open_stream(pa.BufferReader(data)), []
    while True:
        try:
            found.append(reader.read_next_message())
        except StopIteration:
            return found


def _batch(message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
    if message.type != "record batch" or _is_compressed(message.metadata):
        raise ValueError("a batch is compressed, or missing")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether the header of a record batch, a flatbuffer, names a codec."""
    data = memoryview(metadata)
    try:
        header = _field(data, _number("I", data, 0), _HEADER)
        return header is None or _field(data, header + _number("I", data, header), _COMPRESSION) is not None
    except struct.error:
        raise ValueError("a message is truncated") from None


def _field(data: memoryview, table: int, place: int) -> int | None:
    """Where a field of a flatbuffer's table lies; None where it is left out."""
    offsets = table - _number("i", data, table)
    at = 4 + 2 * place
    offset = _number("H", data, offsets + at) if at < _number("H", data, offsets) else 0
    return table + offset if offset else None


def _number(kind: str, data: memoryview, at: int) -> int:
    return int(struct.unpack_from(f"<{kind}", data, at)[0])
