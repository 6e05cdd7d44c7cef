"""Filters of a plan on Arrow columns, with SQL's three truth values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.spark.scan.decide import Condition, FileColumn
from tidestate.operators.spark.scan.footer import arrow_type

_COMPARED: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def kept_rows(filters: tuple[Condition, ...], columns: Mapping[FileColumn, pa.Array]) -> pa.Array:
    """Per row true, false or null; only rows with true are kept. There is at least one filter."""
    return reduce(pc.and_kleene, (_truth(one, columns) for one in filters))


def _truth(one: Condition, columns: Mapping[FileColumn, pa.Array]) -> pa.Array:
    if one.column is None:
        inside = [_truth(inner, columns) for inner in one.inside]
        if one.kind == "not":
            return pc.invert(inside[0])
        return reduce(pc.and_kleene if one.kind == "and" else pc.or_kleene, inside)
    rows = columns[one.column]
    if one.kind == "true":
        return rows
    if one.kind == "null":
        return pc.is_null(rows)
    values = _values(one.values, one.column.type)
    if one.kind == "in":
        return pc.if_else(pc.invert(pc.is_null(rows)), pc.is_in(rows, value_set=values), pa.scalar(None, pa.bool_()))
    return _COMPARED[one.kind](rows, values[0])


def _values(values: tuple[Any, ...], kind: str) -> pa.Array:
    """Literals as Spark keeps them: dates in days, times in microseconds."""
    wanted = arrow_type(kind)
    if pa.types.is_temporal(wanted):
        plain = pa.int32() if kind == "date" else pa.int64()
        return pa.array(values, plain).view(wanted)
    return pa.array(values, wanted)
