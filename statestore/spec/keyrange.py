"""A range of keys: where a scan begins and ends, as values of the leading key columns.

A *cut* lies between two keys: before or after all keys that start with some values. A range is two cuts.
Values are plain Python ones; times and dates are whole numbers in the unit of their column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa

from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import is_position, positions
from tidestate.statestore.spec.tables import TableSpec

Key = tuple[Any, ...]
"""Values of the leading key columns; a tuple shorter than the key stands for all keys that start with it."""


@dataclass(frozen=True)
class Cut:
    """Between two keys: before all keys that start with ``values``, or with ``after`` behind them."""

    values: Key
    after: bool = False


@dataclass(frozen=True)
class KeyRange:
    """Keys between two cuts; None is the end of the line."""

    lower: Cut | None = None
    upper: Cut | None = None

    @property
    def whole(self) -> bool:
        """Whether every key lies in it."""
        return self.lower is None and self.upper is None


EVERYTHING = KeyRange()
SEARCHED_ROWS = 1 << 16
"""Of more rows than this the leading values may take longer to bring together than to look at some of them."""


def key_range(lower: Key | None = None, upper: Key | None = None, *, prefix: Key = ()) -> KeyRange:
    """Keys that start with ``prefix`` and whose next columns lie in ``lower <= … < upper``; None is no bound.

    A bound has as many values as needed. Times and dates may be whole numbers in the unit of their column.
    """
    low = Cut((*prefix, *lower)) if lower is not None else Cut(tuple(prefix)) if prefix else None
    high = Cut((*prefix, *upper)) if upper is not None else Cut(tuple(prefix), after=True) if prefix else None
    return KeyRange(low, high)


def check_range(spec: TableSpec, keys: KeyRange) -> KeyRange:
    """``keys`` with values of the key's columns.

    Raises `UsageError` when there are more values than key columns, or one does not fit its column.
    """
    cuts = (cut and Cut(_fitting(spec, cut.values), cut.after) for cut in (keys.lower, keys.upper))
    return KeyRange(*cuts)


def after_expiry(spec: TableSpec, bound: int | None) -> Cut | None:
    """Where live rows begin, when the expiry column leads the key."""
    return Cut((bound,), after=True) if bound is not None and spec.expires_in_order else None


def bisect(rows: pa.Table, cut: Cut, width: int) -> int:
    """The number of rows before ``cut``. Rows must be sorted by their first ``width`` columns, the cut's at least."""
    columns = [rows.column(index) for index in range(min(width, len(cut.values)))]
    first, last = 0, rows.num_rows
    if columns and 0 < last <= SEARCHED_ROWS and is_position(columns[0].type) and _is_int64(cut.values[0]):
        # By the leading values in one call: a step makes hundreds of cuts, and each look at a value is a call.
        leading, value = positions(columns[0]), cut.values[0]
        if len(cut.values) == 1:
            return int(leading.searchsorted(value, "right" if cut.after else "left"))
        first, last = int(leading.searchsorted(value, "left")), int(leading.searchsorted(value, "right"))
    while first < last:
        middle = (first + last) // 2
        key = tuple(comparable(column[middle]) for column in columns)
        if key < cut.values or (cut.after and key == cut.values):
            first = middle + 1
        else:
            last = middle
    return first


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def key_before(rows: pa.Table, cut: Cut) -> pa.ChunkedArray | pa.Array:
    """Which rows lie before ``cut``, whatever their order."""
    import pyarrow.compute as pc  # takes a while to import, and looking at checkpoints needs none

    result: pa.ChunkedArray | pa.Scalar = pa.scalar(cut.after)
    for index in reversed(range(len(cut.values))):
        column = rows.column(index)
        value = as_scalar(cut.values[index], column.type)
        is_less = pc.less(column, value)
        result = pc.or_(is_less, pc.and_(pc.equal(column, value), result))
    return cast(pa.ChunkedArray, result)  # a cut has a value


def comparable(value: pa.Scalar) -> Any:
    """A key value as a Python one that orders as the column does: times and dates as whole numbers."""
    return cast(pa.TimestampScalar, value).value if _is_time(value.type) else value.as_py()


@lru_cache(maxsize=1024)
def _is_time(kind: pa.DataType) -> bool:
    return is_position(kind) and not pa.types.is_integer(kind)


def as_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A plain value as one of ``kind``."""
    if pa.types.is_date32(kind) and isinstance(value, int):
        return pa.scalar(value, pa.int32()).cast(kind)
    return pa.scalar(value, kind)


def _fitting(spec: TableSpec, values: Sequence[Any]) -> Key:
    """The values as plain ones of their columns."""
    if len(values) > len(spec.key):
        raise UsageError(
            "a bound has more values than the key has columns",
            code="key-bound",
            table=spec.name,
            key=spec.key_names,
            found=len(values),
        )
    key = []
    for value, column in zip(values, spec.key, strict=False):
        try:
            if isinstance(value, float) and is_position(column.arrow):
                raise TypeError("a whole number expected")
            key.append(comparable(as_scalar(value, column.arrow)))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"the value of a bound does not fit its key column ({error})",
                code="key-bound",
                table=spec.name,
                column=column.name,
                type=column.type,
            ) from None
        if key[-1] is None:
            raise UsageError("a bound must not be null", code="key-bound", table=spec.name, column=column.name)
    return tuple(key)
