"""Filters of the direct scan on Arrow columns: a comparison with null is neither true nor false, as in SQL."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from tidestate.operators.spark.scan.decide import Condition, FileColumn
from tidestate.operators.spark.scan.reader import kept_rows

A = FileColumn("a", "int")
B = FileColumn("b", "boolean")
DAY = FileColumn("day", "date")
ROWS = {
    A: pa.array([1, 2, None], pa.int32()),
    B: pa.array([True, False, None]),
    DAY: pa.array([date(1970, 1, 2), date(1970, 1, 3), None]),
}
ONE, TWO, NULL = (
    Condition(kind, column=A, values=values) for kind, values in (("=", (1,)), ("=", (2,)), ("null", ()))
)
CASES: dict[str, tuple[tuple[Condition, ...], list[Any]]] = {
    "equal": ((ONE,), [True, False, None]),
    "not": ((Condition("not", (ONE,)),), [False, True, None]),
    "null": ((NULL,), [False, False, True]),
    "in": ((Condition("in", column=A, values=(1, 3)),), [True, False, None]),
    "not in": ((Condition("not", (Condition("in", column=A, values=(1, 3)),)),), [False, True, None]),
    "or null": ((Condition("or", (ONE, NULL)),), [True, False, True]),
    "neither both": ((Condition("not", (Condition("and", (ONE, Condition("not", (NULL,)))),)),), [False, True, True]),
    "a boolean": ((Condition("true", column=B),), [True, False, None]),
    "less": ((Condition("<", column=A, values=(2,)),), [True, False, None]),
    "at most": ((Condition("<=", column=A, values=(1,)),), [True, False, None]),
    "more": ((Condition(">", column=A, values=(1,)),), [False, True, None]),
    "at least": ((Condition(">=", column=A, values=(2,)),), [False, True, None]),
    "two filters": ((Condition("or", (ONE, TWO)), TWO), [False, True, None]),
    "days": ((Condition("=", column=DAY, values=(2,)),), [False, True, None]),
}


@pytest.mark.parametrize("name", CASES)
def test_three_truth_values(name: str) -> None:
    filters, expected = CASES[name]
    assert kept_rows(filters, ROWS).to_pylist() == expected
