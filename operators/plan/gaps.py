"""Spans that each event has of its own: gaps of sessions, shifts, durations. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.instants import LIMIT_US
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns

_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}
_NONE = pa.scalar(None, pa.uint64())


def check_gap(schema: pa.Schema, column: str) -> None:
    """Check that a column can hold the gaps of sessions. Raises `UsageError`."""
    if column not in schema.names:
        raise missing_columns("the input lacks the column with the gaps of sessions", [column], schema.names)
    kind = schema.field(column).type
    if not pa.types.is_duration(kind) and not pa.types.is_integer(kind):
        raise UsageError(
            "gaps must be durations, or integers of microseconds", code="session-gap", column=column, type=str(kind)
        )


def gaps_us(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The gaps of events in microseconds; 0, which is none, for a null and for one beyond all times."""
    return pc.fill_null(spans_us(column), 0)


def check_span(schema: pa.Schema, column: str) -> None:
    """Check that a column can hold shifts or durations. Raises `UsageError`."""
    if column not in schema.names:
        raise missing_columns("by= or duration= is no span, and no column of the input", [column], schema.names)
    kind = schema.field(column).type
    if not pa.types.is_duration(kind) and not pa.types.is_integer(kind):
        raise UsageError(
            "a column of shifts or durations holds durations, or integers of microseconds",
            code="altered",
            column=column,
            type=str(kind),
        )


def spans_us(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The spans of events in microseconds, null for a null and for one beyond all times."""
    unit = column.type.unit if pa.types.is_duration(column.type) else "us"
    if pa.types.is_uint64(column.type):
        column = pc.if_else(pc.less_equal(column, pa.scalar(LIMIT_US, pa.uint64())), column, _NONE)
    whole = column.cast(pa.int64())
    if unit == "ns":
        return pc.divide(whole, 1000)
    limit = LIMIT_US // _MICROSECONDS[unit]
    there = pc.fill_null(pc.and_(pc.less_equal(whole, limit), pc.greater_equal(whole, -limit)), False)
    return pc.if_else(there, pc.multiply(pc.if_else(there, whole, 0), _MICROSECONDS[unit]), None)
