"""Arithmetic of decimals, with the result types of Spark. Pure and vectorised.

It is done in 256 bits, where no intermediate result of two decimals of 38 digits is cut, and rounded once. A product
or quotient whose exact type has more than 38 digits is refused, where Spark would drop digits after the point.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.arrays import Datum, as_arrays, digits_and_scale, run, without
from tidestate.operators.expressions.casts import fit_digits
from tidestate.operators.expressions.coercion import MAX_DIGITS, brought_to
from tidestate.operators.expressions.operands import BoundCall, Operand, apply_kernel

_LEAST_SCALE = 6
"""Of a quotient."""
_LONGEST = 76
_KERNELS = {"add": "add", "sub": "subtract", "mul": "multiply"}
"""Arrow's types of their results are those of Spark, as long as they have 38 digits."""


def bind_decimal(call: BoundCall, name: str) -> Operand:
    """``add``, ``sub``, ``mul`` or ``div`` of a decimal and a decimal or whole number."""
    operands = [_as_decimal(call, position) for position in range(2)]
    left, right = (digits_and_scale(operand.type) for operand in operands)
    digits, scale = _result_of(name, left, right)
    is_exact = digits <= MAX_DIGITS
    if not is_exact:
        if name not in ("add", "sub") or digits - 1 > MAX_DIGITS:
            raise call.decimal_error(f"the result has {digits} digits, and a decimal has at most {MAX_DIGITS}")
        digits = MAX_DIGITS
    kind = pa.decimal128(digits, scale)
    if name == "div":
        return apply_kernel(kind, partial(_quotient, kind=kind), *operands)
    if is_exact:
        return apply_kernel(kind, partial(run, _KERNELS[name]), *operands)
    return apply_kernel(kind, partial(_combined, name=name, kind=kind), *operands)


def _as_decimal(call: BoundCall, position: int) -> Operand:
    operand = call.operands[position]
    if pa.types.is_null(operand.type):
        return brought_to(call, operand, call.types[1 - position])
    if operand.is_open and operand.constant is not None and pa.types.is_integer(operand.type):
        # A literal has the digits that were written.
        return brought_to(call, operand, pa.decimal128(len(str(abs(operand.constant.as_py()))), 0))
    return brought_to(call, operand, pa.decimal128(*digits_and_scale(operand.type)))


def _result_of(name: str, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """Digits and scale of an exact result; of a quotient as many digits after the point as Spark has."""
    (digits, scale), (other_digits, other_scale) = left, right
    if name == "mul":
        return digits + other_digits + 1, scale + other_scale
    if name == "div":
        result_scale = max(_LEAST_SCALE, scale + other_digits + 1)
        return digits - scale + other_scale + result_scale, result_scale
    result_scale = max(scale, other_scale)
    return max(digits - scale, other_digits - other_scale) + 1 + result_scale, result_scale


def _combined(left: Datum, right: Datum, name: str, kind: pa.Decimal128Type) -> pa.Array:
    """A sum that may need a digit more than a decimal has."""
    columns = [_wide(column) for column in as_arrays(left, right)]
    return fit_digits(run(_KERNELS[name], *columns), kind)


def _wide(column: pa.Array) -> pa.Array:
    return column.cast(pa.decimal256(*digits_and_scale(column.type)))


def _quotient(left: Datum, right: Datum, kind: pa.Decimal128Type) -> pa.Array:
    """Half away from zero: Arrow cuts what has more digits than its result, so the next digit decides."""
    dividend, divisor = as_arrays(left, right)
    zeros = run("equal", divisor, pa.scalar(0, divisor.type)).fill_null(False).to_numpy(zero_copy_only=False)
    digits, scale = digits_and_scale(dividend.type)
    other_digits, other_scale = digits_and_scale(divisor.type)
    longer = max(scale, kind.scale + other_scale - other_digits, scale + other_scale)
    longer = min(longer, _LONGEST - digits + scale)
    wide = dividend.cast(pa.decimal256(digits - scale + longer, longer))
    quotient = run("divide", wide, without(_wide(divisor), np.asarray(zeros)))
    return fit_digits(_half_up(quotient, kind.scale), kind)


def _half_up(column: pa.Array, scale: int) -> pa.Array:
    digits, own_scale = digits_and_scale(column.type)
    roomy = column.cast(pa.decimal256(min(digits + 1, _LONGEST), own_scale))
    return pc.round(roomy, scale, "half_towards_infinity") if scale < own_scale else roomy


def bind_rounded_decimal(operand: Operand, digits: int, mode: str) -> Operand:
    """A decimal with at most ``digits`` after the point, and one more in front of it for what is rounded up."""
    precision, scale = digits_and_scale(operand.type)
    kept = min(digits, scale)
    kind = pa.decimal128(min(precision - scale + 1 + kept, MAX_DIGITS), kept)
    return apply_kernel(kind, partial(_rounded, kind=kind, mode=mode), operand)


def _rounded(column: pa.Array, kind: pa.Decimal128Type, mode: str) -> pa.Array:
    digits, scale = digits_and_scale(column.type)
    roomy = column.cast(pa.decimal256(digits + 1, scale))
    return fit_digits(pc.round(roomy, kind.scale, mode), kind)
