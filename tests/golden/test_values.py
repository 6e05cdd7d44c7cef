"""The meaning of a function never changes: calls of each, over each type that it takes, give what they gave."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from tests.golden.value_forms import VALUE_ZONES, KeptForm, forms, results, unpack
from tidestate.operators.expressions.binding import bind_expression
from tidestate.operators.expressions.names import FUNCTION_NAMES

INEXACT = ("exp", "ln", "pow")
"""Their last digit is that of the C library."""


def is_as_it_was(function: str, value: Any, kept: Any) -> bool:
    if isinstance(value, float) and isinstance(kept, float):
        if math.isnan(value) or math.isnan(kept):
            return math.isnan(value) and math.isnan(kept)
        if function in INEXACT and math.isclose(value, kept, rel_tol=1e-14):
            return True
        return value == kept and math.copysign(1, value) == math.copysign(1, kept)
    return type(value) is type(kept) and bool(value == kept)


def changed(form: KeptForm) -> list[Any]:
    """The first row whose result is another one; or the type of the result."""
    zones, _ = unpack()
    bound = bind_expression(form.tree, form.schema, zones)
    if bound.type != form.type:
        return [(form.key, str(bound.type), str(form.type))]
    pairs = zip(form.rows, results(bound, form.table()), form.results, strict=True)
    return [
        (form.key, row, value, kept)
        for row, value, kept in pairs
        if not is_as_it_was(form.tree.function, value, kept)
    ][:1]


def test_no_result_has_changed() -> None:
    """A correction gets a new name beside the old one: these rows never change."""
    _, stored = unpack()
    assert [line for form in stored for line in changed(form)] == []


def test_every_function_is_kept_on_every_type_that_it_takes() -> None:
    """For what is not there: ``python -m tests.golden.make_values``."""
    zones, stored = unpack()
    assert set(zones) == set(VALUE_ZONES)
    keys = {form.key for form in stored}
    assert len(keys) == len(stored)
    assert [form.key for form, _ in forms(zones) if form.key not in keys] == []
    assert {form.tree.function for form in stored} == FUNCTION_NAMES


def test_most_rows_were_those_of_spark_when_they_were_made() -> None:
    _, stored = unpack()
    rows: Counter[bool] = Counter()
    for form in stored:
        rows[form.basis == "spark"] += len(form.rows)
    assert rows[True] > rows[False]
    assert rows.total() > 3_000


@pytest.mark.parametrize("value", [0.0, -0.0, math.nan, None, 1, True, "1"])
def test_results_are_compared_to_the_bit(value: Any) -> None:
    others = [0.0, -0.0, math.nan, None, 1, True, "1"]
    assert sum(is_as_it_was("add", value, other) for other in others) == 1
