"""Dates further away than times in microseconds reach: the calendar repeats itself every 400 years."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidestate import col, fn
from tidestate.operators.expressions.binding import bind_expression
from tidestate.operators.expressions.builder import Expr

CYCLE_DAYS = 146_097
"""The days of 400 years, which are whole weeks."""
CYCLES_OF_TIMES = 292_000 // 400
"""More cycles than these are beyond all times."""
SAME = ("quarter", "month", "day", "day_of_week", "day_of_year", "week", "hour", "minute", "second")
LATER = ("year", "iso_year")


def value(expression: Expr, days: int) -> object:
    table = pa.table({"d": pa.array([days], pa.int32()).view(pa.date32())})
    column = bind_expression(expression.tree, table.schema, {}).evaluate(table)
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32()) if isinstance(column, pa.Array) else column.cast(pa.int32())
    return column.to_pylist()[0]


@settings(max_examples=settings.default.max_examples * 4)  # type: ignore[union-attr]
@given(st.integers(0, CYCLE_DAYS - 1), st.integers(-14_000, 14_000))
def test_parts_of_a_far_date_are_those_of_the_same_day_of_the_calendar(days: int, cycles: int) -> None:
    far = days + CYCLE_DAYS * cycles
    for name in (*SAME, *LATER):
        expression = getattr(fn, name)("d")
        later_by = 400 * cycles if name in LATER else 0
        assert value(expression, far) == value(expression, days) + later_by, name
    for unit in ("week", "month", "quarter", "year", "day"):
        begin = value(fn.date_trunc(unit, "d"), days)
        assert value(fn.date_trunc(unit, "d"), far) == begin + CYCLE_DAYS * cycles


FAR = [CYCLE_DAYS * (CYCLES_OF_TIMES + 1), -CYCLE_DAYS * (CYCLES_OF_TIMES + 6), 213_503_983, 2**31 - 1, -(2**31)]
"""The third is in 1970 where its microseconds are counted in 64 bits, and go round."""


@pytest.mark.parametrize("days", FAR)
def test_no_time_is_so_far_away(days: int) -> None:
    assert value(fn.to_timestamp("d"), days) is None
    assert value(col("d").cast("timestamp"), days) is None
    assert value(fn.date_format("d", "yyyy"), days) is None
    assert value(fn.year("d"), days) == 1970 + days * 400 // CYCLE_DAYS


def test_what_begins_before_all_dates() -> None:
    assert value(fn.date_trunc("year", "d"), -(2**31)) is None
