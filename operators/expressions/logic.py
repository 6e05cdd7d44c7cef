"""Conditions in the logic of three values (Kleene), and choices by them. Pure and vectorised.

Null stands for unknown: ``false and null`` is false, ``true and null`` is null. Since nothing raises, all branches of
a choice are computed for all rows.
"""

from __future__ import annotations

from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.arrays import Datum, as_arrays, equal_values, flags_of, run
from tidestate.operators.expressions.coercion import brought_to, comparands, unify
from tidestate.operators.expressions.operands import Binders, BoundCall, Operand, apply_kernel

_BOOL = pa.bool_()


def conditions(call: BoundCall, operands: tuple[Operand, ...]) -> list[Operand]:
    """Operands that are conditions; a null alone is one too."""
    if not all(pa.types.is_boolean(operand.type) or pa.types.is_null(operand.type) for operand in operands):
        call.refuse("conditions, such as comparisons")
    return [brought_to(call, operand, _BOOL) for operand in operands]


def _bind_joined(call: BoundCall, kernel: str) -> Operand:
    return apply_kernel(_BOOL, partial(_joined, kernel=kernel), *conditions(call, call.operands))


def _joined(*data: Datum, kernel: str) -> pa.Array:
    return reduce(partial(run, kernel), as_arrays(*data))


def _bind_not(call: BoundCall) -> Operand:
    return apply_kernel(_BOOL, partial(run, "invert"), *conditions(call, call.operands))


def _bind_when(call: BoundCall) -> Operand:
    operands = call.operands
    choices = len(operands) // 2
    tests = conditions(call, tuple(operands[2 * position] for position in range(choices)))
    values = unify(call, [*operands[1::2], *operands[2 * choices :]], _BOOL)
    return apply_kernel(values[0].type, partial(_chosen, choices=choices), *tests, *values)


def _chosen(*data: Datum, choices: int) -> pa.Array:
    """The value of the first condition that is true, from the last one back."""
    columns = as_arrays(*data)
    values = columns[choices:]
    result = values[choices] if len(values) > choices else pa.nulls(len(values[0]), values[0].type)
    for condition, value in zip(reversed(columns[:choices]), reversed(values[:choices]), strict=True):
        result = pc.if_else(condition.fill_null(False), value, result)
    return result


def _bind_coalesce(call: BoundCall) -> Operand:
    operands = unify(call, call.operands, _BOOL)
    return apply_kernel(operands[0].type, _coalesced, *operands)


def _coalesced(*data: Datum) -> pa.Array:
    columns = as_arrays(*data)
    return run("coalesce", *columns) if len(columns) > 1 else columns[0]


def _bind_nullif(call: BoundCall) -> Operand:
    value, other_value = comparands(call, call.operands)
    operand = call.operands[0]
    # What is compared may be wider than the value, which stays what it is.
    result = brought_to(call, operand, _BOOL) if pa.types.is_null(operand.type) else operand
    return apply_kernel(result.type, _nulled, result, value, other_value)


def _nulled(result: Datum, value: Datum, other_value: Datum) -> pa.Array:
    column, left, right = as_arrays(result, value, other_value)
    return pc.if_else(pa.array(flags_of(equal_values(left, right))), pa.scalar(None, column.type), column)


LOGIC_BINDERS: Binders = {
    "and": partial(_bind_joined, kernel="and_kleene"),
    "or": partial(_bind_joined, kernel="or_kleene"),
    "not": _bind_not,
    "when": _bind_when,
    "coalesce": _bind_coalesce,
    "nullif": _bind_nullif,
}
