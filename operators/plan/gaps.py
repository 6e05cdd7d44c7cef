"""Spans that each event has of its own: gaps of sessions, shifts, durations. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.tree import RowExpression
from tidestate.operators.progress.watermarks import LIMIT_US
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns

_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}
_NONE = pa.scalar(None, pa.uint64())


def check_span(schema: pa.Schema, column: str, what: str, code: str) -> None:
    """Check that a column can hold ``what``: spans. Raises `UsageError` with this ``code`` for a column of another
    type (``column-missing`` where there is none).
    """
    if column not in schema.names:
        raise missing_columns(f"the input lacks the column with {what}", [column], schema.names)
    check_span_type(schema.field(column).type, what, code, column=column)


def check_span_type(kind: pa.DataType, what: str, code: str, **context: str) -> None:
    """Check that values of a type can be ``what``: spans. Raises `UsageError` with this ``code`` and ``context``."""
    if not pa.types.is_duration(kind) and not pa.types.is_integer(kind):
        raise UsageError(
            f"{what} must be durations, or integers of microseconds", code=code, **context, type=str(kind)
        )


def check_gap(schema: pa.Schema, column: str) -> None:
    """Check that a column can hold the gaps of sessions. Raises `UsageError`."""
    check_span(schema, column, "the gaps of sessions", "session-gap")


def gaps_us(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The gaps of events in microseconds; 0, which is none, for a null and for one beyond all times."""
    return pc.fill_null(spans_us(column), 0)


def computed_spans_us(span: RowExpression, rows: pa.Table) -> pa.ChunkedArray:
    """The spans that are computed of rows, as `spans_us`."""
    values = span.evaluate(rows)
    return spans_us(values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values]))


def spans_us(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The spans of events in microseconds, null for a null and for one beyond all times."""
    unit = column.type.unit if pa.types.is_duration(column.type) else "us"
    if pa.types.is_uint64(column.type):
        column = pc.if_else(pc.less_equal(column, pa.scalar(LIMIT_US, pa.uint64())), column, _NONE)
    numbers = column.cast(pa.int64())
    if unit == "ns":
        return pc.divide(numbers, 1000)
    # What is beyond all times is left out first: as microseconds it could leave int64, and come back as a small span.
    limit = LIMIT_US // _MICROSECONDS[unit]
    in_range = pc.fill_null(pc.and_(pc.less_equal(numbers, limit), pc.greater_equal(numbers, -limit)), False)
    return pc.if_else(in_range, pc.multiply(pc.if_else(in_range, numbers, 0), _MICROSECONDS[unit]), None)
