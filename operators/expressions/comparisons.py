"""Comparisons: NaN equals NaN and is above every number, -0.0 is 0.0, text compares by its bytes. Pure.

All but ``eq_null_safe`` and ``is_null`` are null where an argument is.
"""

from __future__ import annotations

from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.arrays import Datum, as_arrays, equal_values, has_nan, run
from tidestate.operators.expressions.coercion import comparands, is_comparable_type, unify
from tidestate.operators.expressions.operands import Binders, BoundCall, Kernel, Operand, apply_kernel

_BOOL = pa.bool_()


def less(left: Datum, right: Datum) -> pa.Array:
    """Whether ``left`` is before ``right``."""
    result = run("less", left, right)
    if not has_nan(left, right):
        return result
    return run("or", result, run("and", run("is_nan", right), run("invert", run("is_nan", left))))


def _not_equal(left: Datum, right: Datum) -> pa.Array:
    return run("invert", equal_values(left, right))


def _greater(left: Datum, right: Datum) -> pa.Array:
    return less(right, left)


def _less_equal(left: Datum, right: Datum) -> pa.Array:
    # The order is total, so what is not after is before or equal.
    return run("invert", less(right, left))


def _greater_equal(left: Datum, right: Datum) -> pa.Array:
    return run("invert", less(left, right))


def equal_null_safe(left: Datum, right: Datum) -> pa.Array:
    """Whether both are equal, or both null; never null itself."""
    left, right = as_arrays(left, right)
    return run("or", equal_values(left, right).fill_null(False), run("and", left.is_null(), right.is_null()))


def is_between(value: Datum, lower: Datum, upper: Datum) -> pa.Array:
    """Whether ``value`` lies between both, the bounds included."""
    return run("and_kleene", _greater_equal(value, lower), _less_equal(value, upper))


def _bind(call: BoundCall, kernel: Kernel) -> Operand:
    return apply_kernel(_BOOL, kernel, *comparands(call, call.operands))


def _bind_isin(call: BoundCall) -> Operand:
    value, *choices = comparands(call, call.operands)
    constants = [choice.constant for choice in choices if choice.constant is not None]
    if len(constants) < len(choices):
        return apply_kernel(_BOOL, _is_any, value, *choices)
    values = pa.array([constant.as_py() for constant in constants], value.type)
    return apply_kernel(_BOOL, partial(_is_in, values=_positive_zeros(values)), value)


def _is_any(value: Datum, *choices: Datum) -> pa.Array:
    return reduce(partial(run, "or_kleene"), (equal_values(value, choice) for choice in choices))


def _is_in(column: pa.Array, values: pa.Array) -> pa.Array:
    """Membership in literals: unknown, not false, where a literal is null and no other one fits."""
    flags = pc.is_in(_positive_zeros(column), value_set=values.drop_null())
    if values.null_count:
        flags = pc.if_else(flags, pa.scalar(True), pa.scalar(None, _BOOL))
    return pc.if_else(column.is_valid(), flags, pa.scalar(None, _BOOL))


def _positive_zeros(column: pa.Array) -> pa.Array:
    """A hash tells -0.0 from 0.0, which are equal."""
    return run("add", column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _bind_is_null(call: BoundCall) -> Operand:
    return apply_kernel(_BOOL, pc.is_null, *call.operands)


def _bind_is_nan(call: BoundCall) -> Operand:
    if not pa.types.is_floating(call.types[0]):
        call.refuse("a float or double; no other type has a NaN")
    return apply_kernel(_BOOL, _is_nan, *call.operands)


def _is_nan(column: pa.Array) -> pa.Array:
    return run("is_nan", column).fill_null(False)


def _bind_extreme(call: BoundCall, is_before: Kernel) -> Operand:
    operands = unify(call, call.operands, _BOOL)
    if not is_comparable_type(operands[0].type):
        call.refuse("numbers, texts, bytes, conditions, or times")
    return apply_kernel(operands[0].type, partial(_extreme, is_before=is_before), *operands)


def _extreme(*data: Datum, is_before: Kernel) -> pa.Array:
    """The first of all in an order; nulls are left out."""

    def first(left: pa.Array, right: pa.Array) -> pa.Array:
        takes_right = run("or", is_before(right, left).fill_null(False), left.is_null())
        return pc.if_else(run("and", takes_right, right.is_valid()), right, left)

    return reduce(first, as_arrays(*data))


COMPARISON_BINDERS: Binders = {
    "eq": partial(_bind, kernel=equal_values),
    "ne": partial(_bind, kernel=_not_equal),
    "lt": partial(_bind, kernel=less),
    "le": partial(_bind, kernel=_less_equal),
    "gt": partial(_bind, kernel=_greater),
    "ge": partial(_bind, kernel=_greater_equal),
    "eq_null_safe": partial(_bind, kernel=equal_null_safe),
    "between": partial(_bind, kernel=is_between),
    "isin": _bind_isin,
    "is_null": _bind_is_null,
    "is_nan": _bind_is_nan,
    "greatest": partial(_bind_extreme, is_before=_greater),
    "least": partial(_bind_extreme, is_before=less),
}
