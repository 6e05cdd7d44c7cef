"""How the values of a stream are decoded, as users say it; and the operator that runs the stages of a stream for
several readers at once. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pyarrow as pa

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.runnable import imported
from tidestate.operators.describe.stages import Decode, DecodedField, TimeUnit
from tidestate.operators.progress.watermarks import INPUT
from tidestate.operators.streams.nodes import OperatorNode, StreamView
from tidestate.operators.streams.sides import time_of
from tidestate.operators.streams.watermarks import with_watermark
from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import parse_type, type_text

called("a decoding", 'json("value", {"user": "string"})')(Decode)


@checked
def json_values(column: str, schema: Any, *, epoch: TimeUnit | None = None) -> Decode:
    """For ``stream(decode=)``: the JSON objects in ``column``, text or bytes, as the columns of ``schema``: an Arrow
    schema, names with Arrow types or their texts (``{"user": "string", "at": pa.timestamp("us", "UTC")}``), or a
    schema of Spark.

    The columns take the place of ``column``, the other columns of the stream stay. A value that is no object, or has
    a field that does not fit its type, is in the late ledger, ``undecodable``, and nothing else is touched. A field
    that an object lacks is null, fields that the schema lacks are ignored, and a null value is an object without
    fields. Timestamps are ISO 8601 text, in UTC where they have no offset; with ``epoch`` they are whole numbers of
    that unit since 1970: "s", "ms", "us" or "ns". All rules: docs/how-to/read-json-from-kafka.md.
    """
    if epoch is not None and epoch not in get_args(TimeUnit):
        raise UsageError('epoch= must be "s", "ms", "us" or "ns"', code="decode-epoch", found=repr(epoch))
    fields = _fields(schema)
    names = [name for name, _ in fields]
    if not fields or len(set(names)) < len(names) or not all(names):
        raise UsageError(
            "a schema to decode by needs at least one column, and each name once: json(…, schema)",
            code="decode-schema",
            found=names,
        )
    stage = Decode(
        column=column, schema=tuple(DecodedField(name, type_text(kind)) for name, kind in fields), epoch=epoch
    )
    for field in stage.schema:
        parse_type(field.type)  # what no manifest can hold is refused here
    return stage


def _fields(schema: Any) -> list[tuple[str, pa.DataType]]:
    if type(schema).__module__.startswith("pyspark."):
        schema = imported("spark.types", "arrow_schema")(schema, schema.fieldNames())
    if isinstance(schema, pa.Schema):
        return [(field.name, field.type) for field in schema]
    if isinstance(schema, Mapping):
        return [(name, parse_type(kind) if isinstance(kind, str) else _kind(kind)) for name, kind in schema.items()]
    raise UsageError(
        'give a schema to decode by: pa.schema(…), a mapping such as {"user": "string"}, or a schema of Spark',
        code="decode-schema",
        found=repr(schema)[:100],
    )


def _kind(kind: Any) -> pa.DataType:
    if not isinstance(kind, pa.DataType):
        raise UsageError(
            'a column needs an Arrow type or its text, pa.int64() or "int64"',
            code="decode-schema",
            found=repr(kind)[:100],
        )
    return kind


def in_front(view: StreamView) -> OperatorNode | None:
    """The operator that runs the stages of a stream for readers that take several streams as one, whose rows have no
    columns of their own; None where there are no stages. All readers of a view share it.
    """
    return prepared_node(view) if view.stages else None


def prepared_node(view: StreamView) -> OperatorNode:
    """The operator that passes the rows of a stream on, after its stages. Raises `UsageError` (``event-time``) for
    rows without an event time.
    """
    node = next((node for other, node in view.node.prepared if other == view), None)
    if node is None:
        node = OperatorNode(_prepared(view), (view.node,), is_prepared=True)
        view.node.prepared.append((view, node))
    return node


def _prepared(view: StreamView) -> Altered:
    """Rows pass on as they are."""
    name = f"{view.name or INPUT}_prepared"
    time, end = time_of(name, view), view.lifetime.end
    order = (view.offset, view.origin)
    delay_us = span_us(view.delay)
    signed = view.retractions or None
    description = Altered(time, 0, end, None, delay_us, *order, name=name, stages=view.stages, signed=signed)
    return with_watermark(description, view)
