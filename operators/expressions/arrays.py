"""Columns as kernels and NumPy take them: values under nulls, masks, work per distinct value. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Flags, Numbers

Datum: TypeAlias = pa.Array | pa.Scalar
"""A column of a batch, or one value that is in every row of it."""
AnyNumbers: TypeAlias = npt.NDArray[Any]
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""By bits the digits of a decimal that holds each whole number, as Spark counts them."""


def run(name: str, *args: Datum) -> pa.Array:
    """A kernel of Arrow by its name; at least one of ``args`` is a column."""
    return pc.call_function(name, list(args))


def as_arrays(*data: Datum) -> list[pa.Array]:
    """All as columns, of the length of those that are; a value alone is a column of one row."""
    rows = next((len(datum) for datum in data if isinstance(datum, pa.Array)), 1)
    return [datum if isinstance(datum, pa.Array) else repeat_value(datum, rows) for datum in data]


def repeat_value(value: pa.Scalar, rows: int) -> pa.Array:
    """A column with ``value`` in each row."""
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def numbers_of(column: pa.Array) -> AnyNumbers:
    """The values of a column of numbers, of shape ``(rows,)``; 0 where it is null."""
    without_nulls = column.fill_null(pa.scalar(0, column.type)) if column.null_count else column
    return without_nulls.to_numpy(zero_copy_only=False)


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """What NumPy calls a type of whole numbers or floats; Arrow's own answer asks for pandas."""
    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def whole_numbers_of(column: pa.Array) -> Numbers:
    """A column of whole numbers, dates, times or spans as int64, in its own unit; 0 where it is null."""
    kind = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
    plain = column if pa.types.is_integer(column.type) else column.view(kind)
    numbers: Numbers = numbers_of(plain).astype(np.int64, copy=False)
    return numbers


def nulls_of(*columns: pa.Array) -> Flags:
    """Where any of them is null, of shape ``(rows,)``."""
    nulls: Flags = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        if column.null_count:
            nulls |= column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def arrow_column(values: AnyNumbers, nulls: Flags, kind: pa.DataType) -> pa.Array:
    """A column of these values, null where ``nulls`` are; times, dates and spans come as whole numbers."""
    if pa.types.is_date32(kind):
        return pa.array(values.astype(np.int32), mask=nulls).view(kind)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.array(values.astype(np.int64, copy=False), mask=nulls).view(kind)
    return pa.array(values, mask=nulls, type=kind)


def without(column: pa.Array, nulls: Flags) -> pa.Array:
    """``column``, null where ``nulls`` are too."""
    return pc.if_else(pa.array(nulls), pa.scalar(None, column.type), column) if nulls.any() else column


def flags_of(column: pa.Array) -> Flags:
    """A column of conditions as NumPy has it; null is false."""
    flags: Flags = column.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def by_distinct(column: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """``function`` of each value, called once for each that there is; null of null."""
    # A batch has few values many times, and a call of Python costs more than to encode a row.
    dictionary_column = column.dictionary_encode()
    values = pa.array([function(value) for value in dictionary_column.dictionary.to_pylist()], kind)
    return values.take(dictionary_column.indices)


def elements_at(lists: pa.ListArray, position: int) -> tuple[Numbers, Flags]:
    """Where the values of ``lists`` have the element of each at a place from 1, or from -1 back; and of which lists
    there is none. Values of all lists lie one after the other, so one look-up takes an element of each.
    """
    starts, ends = (np.asarray(bounds) for bounds in (lists.offsets[:-1], lists.offsets[1:]))
    indices = starts + position - 1 if position > 0 else ends + position
    return indices, (indices < starts) | (indices >= ends)


def text_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """All bytes of a column of text or binary, one after the other; those of null rows may be among them."""
    ends, data = column.buffers()[1:]
    if ends is None or data is None or not len(column):
        return np.zeros(0, np.uint8)
    bounds = np.frombuffer(memoryview(ends), np.int32, len(column) + 1, column.offset * 4)
    return np.frombuffer(memoryview(data), np.uint8, int(bounds[-1] - bounds[0]), int(bounds[0]))


def digits_and_scale(kind: pa.DataType) -> tuple[int, int]:
    """Digits and scale of the decimal that holds every value of a whole number or a decimal."""
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return kind.precision, kind.scale
    return _DIGITS[kind.bit_width], 0


def equal_values(left: Datum, right: Datum) -> pa.Array:
    """Whether both are equal, row by row."""
    result = run("equal", left, right)
    if not has_nan(left, right):
        return result
    return run("or", result, run("and", run("is_nan", left), run("is_nan", right)))


def has_nan(left: Datum, right: Datum) -> bool:
    """Whether there is a NaN on any side; a kernel over both costs less than those that look at each row for it."""
    if not pa.types.is_floating(left.type):
        return False
    is_nan = [run("is_nan", column) for column in as_arrays(left, right)]
    return any(bool(pc.any(flags).as_py()) for flags in is_nan)
