"""The functions of the namespace `agg`: what users write of aggregates. What is stored of each, and how it computes,
is in the modules beside this one. Pure.

Each takes the name of a column, or an expression; and ``where``, a condition of the rows that it is of. A row for
which that is false or null takes no part: it is as if it were not there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.aggregates.arithmetic import Plain, Variance
from tidestate.operators.aggregates.collection import Interpolation, ListAggregate, Quantile
from tidestate.operators.aggregates.custom import (
    ApplyRows,
    Functions,
    name_of_function,
    result_type_of,
)
from tidestate.operators.aggregates.distinct import Distinct, MostCommon, Top
from tidestate.operators.aggregates.of_rows import ColumnOrExpr, RowCondition, fields_of_rows
from tidestate.operators.aggregates.selection import Choice
from tidestate.operators.aggregates.sketches import Sketch
from tidestate.operators.aggregates.value_sketches import ValueSketch
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError


@checked
def count(column: ColumnOrExpr | None = None, *, where: RowCondition = None) -> Aggregate:
    """The number of events, or of non-null values of a column; with ``where`` of those alone for which it is true.
    int64.
    """
    return Plain("count", **fields_of_rows(column, where))


@checked
def sum_(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The sum: int64 for integers, double for floats, decimal(38, scale) for decimals and uint64."""
    return Plain("sum", **fields_of_rows(column, where))


@checked
def min_(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The smallest value, in the column's type: a number, time or date, text or binary by its bytes, a boolean.
    NaN counts only when there is nothing else.
    """
    return Plain("min", **fields_of_rows(column, where))


@checked
def max_(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The largest value, in the column's type: a number, time or date, text or binary by its bytes, a boolean.
    NaN counts only when there is nothing else.
    """
    return Plain("max", **fields_of_rows(column, where))


@checked
def mean(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The arithmetic mean, double. Stored as sum and count, so it is exact for integers up to the division."""
    return Plain("mean", **fields_of_rows(column, where))


@checked
def variance(column: ColumnOrExpr, *, population: bool = False, where: RowCondition = None) -> Aggregate:
    """The variance, double: of a sample (divided by n − 1, null for one value), or of the whole population."""
    return Variance("variance", population=population, **fields_of_rows(column, where))


@checked
def stddev(column: ColumnOrExpr, *, population: bool = False, where: RowCondition = None) -> Aggregate:
    """The standard deviation: the square root of `variance`."""
    return Variance("stddev", population=population, **fields_of_rows(column, where))


@checked
def first(column: ColumnOrExpr, *, by: ColumnOrExpr, where: RowCondition = None) -> Aggregate:
    """The value of the event with the smallest ``by``, an offset or another column that has an order."""
    return Choice("first", **fields_of_rows(column, where, by=by))


@checked
def last(column: ColumnOrExpr, *, by: ColumnOrExpr, where: RowCondition = None) -> Aggregate:
    """The value of the event with the largest ``by``, of equals the one that arrived last."""
    return Choice("last", **fields_of_rows(column, where, by=by))


@checked
def earliest(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The value of the event with the smallest event time, of equals the one that arrived first."""
    return Choice("earliest", **fields_of_rows(column, where))


@checked
def latest(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The value of the event with the largest event time, of equals the one that arrived last."""
    return Choice("latest", **fields_of_rows(column, where))


@checked
def arg_min(column: ColumnOrExpr, *, by: ColumnOrExpr, where: RowCondition = None) -> Aggregate:
    """The value of ``column`` where ``by`` is smallest, of equals the one that arrived first."""
    return Choice("arg_min", **fields_of_rows(column, where, by=by))


@checked
def arg_max(column: ColumnOrExpr, *, by: ColumnOrExpr, where: RowCondition = None) -> Aggregate:
    """The value of ``column`` where ``by`` is largest, of equals the one that arrived first."""
    return Choice("arg_max", **fields_of_rows(column, where, by=by))


@checked
def list_(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """All values in the order of arrival, nulls left out: a list."""
    return ListAggregate("list", **fields_of_rows(column, where))


@checked
def sorted_list(
    column: ColumnOrExpr, *, by: ColumnOrExpr | None = None, descending: bool = False, where: RowCondition = None
) -> Aggregate:
    """All values, sorted by ``by`` or by themselves; equal ones in the order of arrival."""
    return ListAggregate("sorted_list", descending=descending, **fields_of_rows(column, where, by=by))


@checked
def quantile(
    column: ColumnOrExpr, q: float, *, interpolation: Interpolation = "linear", where: RowCondition = None
) -> Aggregate:
    """The exact quantile: a share ``q`` of all values is below it. NaN counts only if there is nothing else.

    Between two values ``linear`` interpolates, as a double; ``lower``, ``higher`` and ``nearest`` (of a half: the
    even position) return one of the two, so they also work for times and text.
    """
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 1:
        raise UsageError("a quantile must be between 0 and 1", code="aggregate-option", found=repr(q))
    if interpolation not in ("linear", "lower", "higher", "nearest"):
        raise UsageError(
            'interpolation= must be "linear", "lower", "higher" or "nearest"',
            code="aggregate-option",
            found=repr(interpolation),
        )
    # A default is left out of what is stored where it is the same object, which text that was read is not.
    kind = cast(Interpolation, sys.intern(interpolation))
    return Quantile("quantile", q=float(q), interpolation=kind, **fields_of_rows(column, where))


@checked
def median(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The middle value, or the mean of the two middle ones; double."""
    return Quantile("median", **fields_of_rows(column, where))


@checked
def set_(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The distinct values as a sorted list. NaN is one value, and comes last."""
    return Distinct("set", **fields_of_rows(column, where))


@checked
def count_distinct(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The exact number of distinct values, which are all stored. int64."""
    return Distinct("count_distinct", **fields_of_rows(column, where))


@checked
def count_by_value(column: ColumnOrExpr, *, where: RowCondition = None) -> Aggregate:
    """The count of each value: a map with the values in ascending order."""
    return Distinct("count_by_value", **fields_of_rows(column, where))


@checked
def most_common(column: ColumnOrExpr, n: int, *, where: RowCondition = None) -> Aggregate:
    """The ``n`` values that occur most often, with how often, most often first: a list of ``value`` and ``count``.

    Exact: the state has the count of every value, as that of `count_by_value`. Of values that occur equally often the
    smallest come first.
    """
    if n < 1:
        raise UsageError("most_common must keep at least one value", code="aggregate-option", found=repr(n))
    return MostCommon("most_common", n=n, **fields_of_rows(column, where))


@checked
def top_n(
    column: ColumnOrExpr,
    n: int,
    *,
    by: ColumnOrExpr | None = None,
    largest: bool = True,
    where: RowCondition = None,
) -> Aggregate:
    """The ``n`` values with the largest (or smallest) ``by``, or the ``n`` largest themselves, best first: a list.

    The same value may occur more than once. Of equal ones those that arrived first are kept.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError("top_n must keep at least one value", code="aggregate-option", found=repr(n))
    return Top("top_n", n=n, largest=largest, **fields_of_rows(column, where, by=by))


@checked
def count_distinct_approx(column: ColumnOrExpr, *, precision: int = 12, where: RowCondition = None) -> Aggregate:
    """The approximate number of distinct values, int64. The standard error is 1.04 / √2^precision.

    A sketch has at most 2^precision bytes. Needs the extra ``sketches``.
    """
    if isinstance(precision, bool) or not isinstance(precision, int) or not 7 <= precision <= 21:
        raise UsageError("the precision must be between 7 and 21", code="aggregate-option", found=repr(precision))
    return Sketch("count_distinct_approx", precision=precision, **fields_of_rows(column, where))


@checked
def hll(column: ColumnOrExpr, *, precision: int = 12, where: RowCondition = None) -> Aggregate:
    """A HyperLogLog sketch of the distinct values, as bytes: Spark's ``hll_union_agg`` and ``hll_sketch_estimate``
    and the DataSketches functions of DuckDB merge and estimate it. Of nothing, an empty sketch.

    Whole numbers, times (microseconds) and dates (days) are hashed as int64, text as UTF-8, floating-point numbers as
    doubles; empty text is ignored. At most 2^precision bytes; the standard error is 1.04 / √2^precision. Needs the
    extra ``sketches``.
    """
    return ValueSketch("hll", size=_size("precision", precision, 7, 21), **fields_of_rows(column, where))


@checked
def theta(column: ColumnOrExpr, *, lg_k: int = 12, where: RowCondition = None) -> Aggregate:
    """A theta sketch of the distinct values, as bytes (compact and ordered): Spark's ``theta_union_agg`` and the
    DataSketches functions of DuckDB unite, intersect and estimate it. Of nothing, an empty sketch.

    Values are hashed as by `hll`. At most 8 · 2^lg_k bytes; exact up to 2^lg_k values. Needs the extra ``sketches``.
    """
    return ValueSketch("theta", size=_size("lg_k", lg_k, 5, 21), **fields_of_rows(column, where))


@checked
def quantile_approx(column: ColumnOrExpr, q: float, *, k: int = 200, where: RowCondition = None) -> Aggregate:
    """The approximate quantile, a double: one of the values. NaN is ignored; null without numbers.

    Up to 256 values of a group it is exact. From there on a KLL sketch keeps some 3 · k of them, drawn at random, so
    that two runs over the same input may differ: with ``k=200`` the share of values below the result is within 1.33 %
    of ``q`` in 99 of 100 results. Needs the extra ``sketches``.
    """
    if not 0 <= q <= 1:
        raise UsageError("a quantile must be between 0 and 1", code="aggregate-option", found=repr(q))
    return ValueSketch("quantile_approx", size=_size("k", k, 8, 65_535), q=float(q), **fields_of_rows(column, where))


def _size(name: str, size: int, least: int, most: int) -> int:
    if not least <= size <= most:
        raise UsageError(f"{name}= must be between {least} and {most}", code="aggregate-option", found=repr(size))
    return size


@checked
def apply_rows(
    function: Callable[[pa.Table], Any],
    *,
    columns: Sequence[str],
    result_type: pa.DataType,
    name: str = "",
    version: int = 1,
    per_group: bool = False,
    where: RowCondition = None,
) -> Aggregate:
    """A function of all rows of a window. The ``columns`` of its events are stored, nulls included, in order of
    arrival.

    The function gets one table for all windows and keys that fire together, with the ``columns`` and a column
    ``group`` (int64: 0, 1, 2 …, ascending), and returns an array of ``result_type``, one value per group. With
    ``per_group`` it is called once per group with that group's rows, and returns a Python value. ``name`` (default:
    the function's) and ``version`` identify it in the manifest.
    """
    if not columns or "group" in columns:
        raise UsageError('name the columns to store; none may be called "group"', code="aggregate-option")
    return ApplyRows(
        function="apply_rows",
        name=name or name_of_function(function),
        version=version,
        reads=tuple(columns),
        result_type=result_type_of(result_type),
        per_group=per_group,
        functions=Functions(apply=function),
        **fields_of_rows(None, where),
    )
