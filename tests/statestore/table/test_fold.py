"""Rows of few keys are grouped by Arrow: to the same result as by numbering their keys."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.statestore.errors import LimitError
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table import fold
from tidestate.statestore.table.fold import combine

WHOLE = st.none() | st.integers(-(2**31), 2**31 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int32": st.none() | st.integers(-(2**10), 2**10),
    "int64": WHOLE,
    "float64": st.none() | st.floats(width=32),
    "decimal128(9, 2)": st.none() | st.integers(-999, 999).map(lambda cents: Decimal(cents) / 100),
    "timestamp[us, tz=UTC]": st.none() | st.integers(0, 2**50),
    "bool": st.none() | st.booleans(),
    "date32[day]": st.none() | st.integers(0, 9999),
}
KEYS = {"int64": st.integers(-3, 3), "string": st.sampled_from(["", "a", "b", "b_sum"])}


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSpec, pa.Table]:
    keys = [Column(name, draw(st.sampled_from(sorted(KEYS)))) for name in ("a_sum", "key")]
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    summed = ("int64", "float64", "decimal128(9, 2)")
    combiners = [draw(st.sampled_from(["min", "max", *(["sum"] if kind in summed else [])])) for kind in kinds]
    values = [
        Column("ab"[place:] or "c", kind, combiner=how)
        for place, (kind, how) in enumerate(zip(kinds, combiners, strict=True))
    ]
    spec = TableSpec("t", tuple(keys), tuple(values))
    size = draw(st.integers(2, 30))
    drawn = [KEYS[column.type] for column in keys] + [VALUES[column.type] for column in values]
    columns = [draw(st.lists(one, min_size=size, max_size=size)) for one in drawn]
    return spec, pa.table([pa.array(c, f.type) for c, f in zip(columns, spec.schema, strict=True)], spec.schema)


@given(given=tables())
def test_arrow_groups_to_the_same_rows(given: tuple[TableSpec, pa.Table]) -> None:
    spec, rows = given
    with mock.patch.object(fold, "MANY_ROWS", 0), mock.patch.object(fold, "SAMPLED", 1):
        with mock.patch.object(fold, "DISTINCT", 2):
            grouped = combine(spec, rows)
        with mock.patch.object(fold, "DISTINCT", 0):
            numbered = combine(spec, rows)
    by = [(name, "ascending") for name in spec.key_names]
    assert str(grouped.sort_by(by).to_pylist()) == str(numbered.sort_by(by).to_pylist())
    assert grouped.schema == numbered.schema


def test_a_sum_that_leaves_its_type_is_refused_there_too() -> None:
    spec = TableSpec("t", (Column("k", "int64"),), (Column("total", "int64", combiner="sum"),))
    rows = pa.table({"k": pa.array([1] * 2**15), "total": pa.array([2**62] * 2**15)}, schema=spec.schema)
    with pytest.raises(LimitError) as refused:
        combine(spec, rows)
    assert refused.value.code == "sum-overflow"


def test_a_sum_of_both_infinities_is_no_number_and_says_nothing() -> None:
    """Warnings are errors in tests."""
    spec = TableSpec("t", (Column("k", "int64"),), (Column("total", "float64", combiner="sum"),))
    values = [float("inf"), float("-inf"), 1e308, 1e308]
    rows = pa.table({"k": pa.array([1, 1, 2, 2]), "total": pa.array(values)}, schema=spec.schema)
    assert str(combine(spec, rows).sort_by("k")["total"].to_pylist()) == "[nan, inf]"
