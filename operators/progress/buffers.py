"""Buffers of origins as columns, and which of them are usable. Pure and vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.watermarks import BEGINNING_US, instants, is_watermark
from tidestate.statestore.arrays import Flags, Numbers, Times
from tidestate.statestore.errors import UsageError


@dataclass(frozen=True)
class Buffers:
    """Buffers in the order of arrival; all columns of shape ``(buffers,)``, int64 but for the flags.

    Chunks count from 0. A buffer with ``behind`` k covers the sequence numbers ``sequence - k`` to ``sequence``.
    ``watermark_refused``: its watermark is not valid, so it moves progress without one. ``unusable``: the origin,
    sequence or chunk number is null or not a whole number.
    """

    origins: Numbers
    sequences: Numbers
    chunks: Numbers
    last: Flags
    watermarks_us: Times
    behind: Numbers
    watermark_refused: Flags
    unusable: Flags

    def __len__(self) -> int:
        return len(self.origins)


def buffers(
    origins: Any, sequences: Any, chunks: Any = 0, last: Any = True, watermarks: Any = None, behind: Any = 0
) -> Buffers:
    """Buffers from Arrow or numpy columns of equal length; a single number applies to all rows.

    Watermarks are timestamps, or microseconds as integers or floats; those that are null, NaN or outside of the years
    1 to 9999 (except the ends of time) are refused row by row. Raises `UsageError` for other types or lengths.
    """
    ids, no_id = _numbers(origins, "origins", None)
    rows = len(ids)
    numbers, no_number = _numbers(sequences, "sequences", rows)
    parts, no_part = _numbers(chunks, "chunks", rows)
    ranges, no_range = _numbers(behind, "behind", rows)
    marks, no_mark = (
        (np.full(rows, BEGINNING_US, np.int64), np.ones(rows, bool))
        if watermarks is None
        else instants(_sized(watermarks, "watermarks", rows), "watermarks")
    )
    refused = no_mark | ~is_watermark(marks)
    if refused.any():
        marks = np.where(refused, BEGINNING_US, marks)
    unusable = no_id | no_number | no_part | no_range
    return Buffers(ids, numbers, parts, _flags(last, rows), marks, ranges, refused, unusable)


def _sized(column: Any, name: str, rows: int | None) -> Any:
    """``column`` as an array of ``rows`` values; a single number is repeated."""
    if isinstance(column, int | float) and rows is not None:
        return np.full(rows, column)
    array = column if isinstance(column, pa.ChunkedArray | pa.Array | np.ndarray) else pa.array(column)
    if rows is not None and len(array) != rows:
        raise UsageError(
            "the columns of buffers must have the same length",
            code="progress-column",
            column=name,
            expected=rows,
            found=len(array),
        )
    return array


def _numbers(column: Any, name: str, rows: int | None) -> tuple[Numbers, Flags]:
    column = _sized(column, name, rows)
    if isinstance(column, np.ndarray) and column.dtype == np.int64:
        return column, np.zeros(len(column), bool)
    return instants(column, name)


def _flags(column: Any, rows: int) -> Flags:
    if isinstance(column, bool):
        return np.full(rows, column)
    column = _sized(column, "last", rows)
    if isinstance(column, np.ndarray) and column.dtype == np.bool_:
        return column
    array = column if isinstance(column, pa.ChunkedArray | pa.Array) else pa.array(column)
    if not pa.types.is_boolean(array.type):
        raise UsageError(
            "the column that marks the last chunk must be boolean",
            code="progress-column",
            column="last",
            found=array.type,
        )
    return np.asarray(pc.fill_null(array, False)).astype(bool, copy=False)
