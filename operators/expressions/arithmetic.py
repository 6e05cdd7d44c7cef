"""Arithmetic that never raises: overflow and division by zero are null. Pure and vectorised.

Arrow's checked kernels are the usual path. Only where one of them finds an overflow are the rows looked at, in NumPy.

Decimals have the result types of Spark. A quotient, and a sum that may need a digit more than there is, are computed
in 256 bits, where nothing is cut, and rounded once. A product or quotient whose exact type has more than 38 digits is
refused, where Spark would drop digits after the point.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.arrays import (
    AnyNumbers,
    Datum,
    arrow_column,
    as_arrays,
    digits_and_scale,
    dtype_of,
    nulls_of,
    numbers_of,
    run,
    without,
)
from tidestate.operators.expressions.casts import fit_digits, rounded_decimals
from tidestate.operators.expressions.coercion import MAX_DIGITS, brought_to, is_numeric, unify
from tidestate.operators.expressions.operands import Binders, BoundCall, Kernel, Operand, apply_kernel
from tidestate.operators.expressions.tree import INSTANT, LOCAL, SPAN
from tidestate.statestore.arrays import Flags

_DOUBLE, _WHOLE = pa.float64(), pa.int64()
_PLUS = {"add": "add_checked", "sub": "subtract_checked", "mul": "multiply_checked"}
_WRAPPED = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_ROUND_TO = range(19)
_EXACT_DOUBLE = 2**52
"""From here on a double has no fraction."""
_LEAST_SCALE = 6
"""How many digits after the point a quotient of decimals keeps at least, as in Spark."""
_LONGEST = 76
_KERNELS = {"add": "add", "sub": "subtract", "mul": "multiply"}
"""Arrow's types of their results are those of Spark, as long as they have 38 digits."""


def _bind_sum(call: BoundCall, name: str) -> Operand:
    """Addition, subtraction and multiplication."""
    if name != "mul" and any(kind in (INSTANT, LOCAL, SPAN) for kind in call.types):
        return _bind_times(call, name)
    operands = _numbers(call)
    kind = operands[0].type
    if pa.types.is_decimal(kind):
        return _bind_decimal(call, name)
    return apply_kernel(kind, partial(_checked, name=name), *operands)


def _numbers(call: BoundCall) -> list[Operand]:
    """The arguments as numbers of one type."""
    operands = _plain_numbers(call)
    if any(pa.types.is_decimal(kind) for kind in call.types) and not any(map(pa.types.is_floating, call.types)):
        return list(operands)[::-1] if pa.types.is_decimal(call.types[1]) else list(operands)
    return unify(call, operands, _DOUBLE)


def _checked(left: Datum, right: Datum, name: str) -> pa.Array:
    try:
        return run(_PLUS[name], left, right)
    except pa.ArrowInvalid:
        first, second = as_arrays(left, right)
        return _wrapped(first, second, name)


def _wrapped(left: pa.Array, right: pa.Array, name: str) -> pa.Array:
    """As `_checked` where there is an overflow: with wrapped numbers, and null where they went round."""
    kind = left.type
    plain = pa.int64() if kind in (INSTANT, LOCAL, SPAN) else kind
    numbers = [numbers_of(column.view(pa.int64()) if plain != column.type else column) for column in (left, right)]
    with np.errstate(over="ignore"):
        wrapped_numbers = _WRAPPED[name](*numbers)
    overflows = _overflows(name, numbers[0], numbers[1], wrapped_numbers)
    return arrow_column(np.where(overflows, 0, wrapped_numbers), nulls_of(left, right) | overflows, kind)


def _overflows(name: str, left: AnyNumbers, right: AnyNumbers, wrapped_numbers: AnyNumbers) -> Flags:
    """Where a wrapped result is not the true one; all three have one type."""
    limits = np.iinfo(wrapped_numbers.dtype)
    if wrapped_numbers.dtype.itemsize < 8:
        # The true result fits into 64 bits.
        wide = _WRAPPED[name](left.astype(np.int64), right.astype(np.int64))
        result: Flags = (wide < int(limits.min)) | (wide > int(limits.max))
        return result
    if name == "mul":
        # A product that did not go round can be divided again, without anything left over.
        divisor = np.where(left == 0, 1, left)
        with np.errstate(over="ignore"):
            differs = (wrapped_numbers // divisor != right) | (wrapped_numbers % divisor != 0)
        # The smallest number divided by -1 wraps to itself, which hides the overflow.
        is_least_negated = (left == -1) & (right == limits.min) if limits.min else np.zeros(len(left), np.bool_)
        wrong: Flags = (left != 0) & (differs | is_least_negated)
        return wrong
    if not limits.min:
        # Without a sign a sum that went round is below what was added to, and a difference has to borrow.
        below: Flags = wrapped_numbers < left if name == "add" else right > left
        return below
    # A sum overflows where both numbers have one sign and it has the other; ``~right`` has the sign of the negative.
    addend = right if name == "add" else ~right
    has_other_sign: Flags = ((left ^ wrapped_numbers) & (addend ^ wrapped_numbers)) < 0
    return has_other_sign


def _bind_times(call: BoundCall, name: str) -> Operand:
    """A time and a span, two spans, or the span between two times."""
    operands = list(call.operands)
    left, right = (operand.type for operand in operands)
    if pa.types.is_null(left) or pa.types.is_null(right):
        return brought_to(
            call, apply_kernel(pa.null(), lambda *data: pa.nulls(len(as_arrays(*data)[0])), *operands), SPAN
        )
    if right == SPAN and (left == SPAN or left in (INSTANT, LOCAL)):
        return _of_microseconds(left, name, operands)
    if left == SPAN and right in (INSTANT, LOCAL) and name == "add":
        return _of_microseconds(right, name, operands)
    if name == "sub" and {left, right} <= {INSTANT, LOCAL, pa.date32()}:
        return _of_microseconds(SPAN, name, unify(call, operands, LOCAL))
    return call.refuse("a time and an interval, two intervals, or two times of which one is taken from the other")


def _of_microseconds(kind: pa.DataType, name: str, operands: list[Operand]) -> Operand:
    return apply_kernel(kind, partial(_microseconds, name=name, kind=kind), *operands)


def _microseconds(left: Datum, right: Datum, name: str, kind: pa.DataType) -> pa.Array:
    first, second = (column.view(_WHOLE) for column in as_arrays(left, right))
    return _checked(first, second, name).view(kind)


def _bind_div(call: BoundCall) -> Operand:
    if any(map(pa.types.is_decimal, call.types)) and pa.types.is_decimal(_numbers(call)[0].type):
        return _bind_decimal(call, "div")
    return _bind_doubles(call, _quotient)


def _quotient(left: Datum, right: Datum) -> pa.Array:
    left, right = as_arrays(left, right)
    return run("divide", left, without(right, _zeros(right)))


def _zeros(column: pa.Array) -> Flags:
    zeros: Flags = (numbers_of(column) == 0) & ~nulls_of(column)
    return zeros


def _bind_whole_quotient(
    call: BoundCall, kernel: Callable[[AnyNumbers, AnyNumbers], AnyNumbers], floats: bool
) -> Operand:
    """Division of whole numbers, and what is left over, of floats too where ``floats``."""
    if any(pa.types.is_decimal(kind) for kind in call.types):
        call.refuse(f"whole numbers{' and floats' if floats else ''}; cast decimals")
    operands = unify(call, call.operands, _WHOLE)
    kind = operands[0].type
    if not (pa.types.is_integer(kind) or (floats and pa.types.is_floating(kind))):
        call.refuse(f"whole numbers{' and floats' if floats else ''}")
    return apply_kernel(kind, partial(_divided, kernel=kernel), *operands)


def _divided(left: Datum, right: Datum, kernel: Callable[[AnyNumbers, AnyNumbers], AnyNumbers]) -> pa.Array:
    left, right = as_arrays(left, right)
    numbers, by, nulls = numbers_of(left), numbers_of(right), nulls_of(left, right)
    nulls |= by == 0
    if kernel is _truncated and numbers.dtype.kind == "i":
        nulls |= (by == -1) & (numbers == np.iinfo(numbers.dtype).min)  # one more than the largest
    with np.errstate(all="ignore"):
        result = kernel(numbers, np.where(nulls, 1, by).astype(by.dtype))
    return arrow_column(np.where(nulls, 0, result).astype(by.dtype), nulls, left.type)


def _truncated(numbers: AnyNumbers, by: AnyNumbers) -> AnyNumbers:
    """Division towards zero; NumPy's goes down."""
    quotient = numbers // by
    is_lower = (numbers % by != 0) & ((numbers < 0) != (by < 0))
    whole_quotient: AnyNumbers = quotient + is_lower.astype(quotient.dtype)
    return whole_quotient


def _positive_rest(numbers: AnyNumbers, by: AnyNumbers) -> AnyNumbers:
    """What is left over, not negative where the divisor is not."""
    remainder = np.fmod(numbers, by)
    if remainder.dtype.kind == "f":
        return np.where(remainder < 0, np.fmod(remainder + by, by), remainder)
    # Added only where the sum lies between both, so that it never goes round.
    return np.where((remainder < 0) & (by > 0), remainder + by, remainder)


def _plain_numbers(call: BoundCall) -> tuple[Operand, ...]:
    if not all(is_numeric(kind) or pa.types.is_null(kind) for kind in call.types):
        call.refuse("numbers")
    return call.operands


def _bind_doubles(call: BoundCall, kernel: Kernel) -> Operand:
    """A function of doubles."""
    return apply_kernel(_DOUBLE, kernel, *(brought_to(call, operand, _DOUBLE) for operand in _plain_numbers(call)))


def _exponential(column: pa.Array) -> pa.Array:
    with np.errstate(over="ignore"):
        return arrow_column(np.exp(numbers_of(column)), nulls_of(column), _DOUBLE)


def _logarithm(column: pa.Array) -> pa.Array:
    """Null where there is none: of zero and below."""
    numbers = numbers_of(column)
    return run("ln", without(column, (numbers <= 0) & ~nulls_of(column)))


def _bind_signed(call: BoundCall, name: str) -> Operand:
    """The negative and the absolute value."""
    (operand,) = _plain_numbers(call)
    if operand.type == pa.null():
        operand = brought_to(call, operand, _DOUBLE)
    if name == "negate" and pa.types.is_unsigned_integer(operand.type):
        call.refuse("a number with a sign; cast it to bigint")
    return apply_kernel(operand.type, partial(_of_sign, name=name), operand)


def _of_sign(column: pa.Array, name: str) -> pa.Array:
    if pa.types.is_signed_integer(column.type):
        smallest = np.iinfo(dtype_of(column.type)).min
        column = without(column, (numbers_of(column) == smallest) & ~nulls_of(column))
    return run(name, column)


def _bind_rounded(call: BoundCall, mode: str) -> Operand:
    """Down or up to a whole number: of floats as int64, of decimals with no digits after the point."""
    (operand,) = _plain_numbers(call)
    if pa.types.is_null(operand.type):
        operand = brought_to(call, operand, _WHOLE)
    return _bind_rounding(operand, 0, mode, _WHOLE, partial(_whole, mode=mode))


def _whole(column: pa.Array, mode: str) -> pa.Array:
    numbers = numbers_of(column).astype(np.float64)
    whole_numbers = np.floor(numbers) if mode == "down" else np.ceil(numbers)
    fits = (whole_numbers >= -(2.0**63)) & (whole_numbers < 2.0**63)
    return arrow_column(np.where(fits, whole_numbers, 0).astype(np.int64), nulls_of(column) | ~fits, _WHOLE)


def _bind_round(call: BoundCall) -> Operand:
    """Half away from zero, to so many digits after the point."""
    digits = call.constant_whole(1, _ROUND_TO) if len(call.operands) > 1 else 0
    operand = call.operands[0]
    if not (is_numeric(operand.type) or pa.types.is_null(operand.type)):
        call.refuse("a number")
    if pa.types.is_null(operand.type):
        operand = brought_to(call, operand, _DOUBLE)
    return _bind_rounding(operand, digits, "half_towards_infinity", operand.type, partial(_rounded, digits=digits))


def _rounded(column: pa.Array, digits: int) -> pa.Array:
    """By the shortest digits that are the number, as they are printed: 2.675 to 2 digits is 2.68.

    ``number * 10**digits`` is off by a part in 2**52 at most. Where that leaves no doubt on which side of a half it
    is, the result is one division of whole numbers; the few other rows go through `Decimal`.
    """
    numbers = numbers_of(column).astype(np.float64)
    with np.errstate(all="ignore"):
        scaled_numbers = np.abs(numbers) * 10.0**digits
        nearest = np.floor(scaled_numbers + 0.5)
        doubt = np.abs(scaled_numbers - np.floor(scaled_numbers) - 0.5) <= scaled_numbers * 2.0**-50
        result = np.copysign(nearest / 10.0**digits, numbers)
    if digits == 0:
        doubt = np.zeros(len(numbers), np.bool_)
    doubt |= (scaled_numbers >= _EXACT_DOUBLE) | (column.type == pa.float32())
    doubt &= np.isfinite(numbers) & (numbers != 0)
    result = np.where(np.isfinite(numbers), result, numbers)
    row_numbers = np.flatnonzero(doubt)
    write = str if column.type == pa.float32() else repr
    plain = (
        np.float32(number) if column.type == pa.float32() else number for number in numbers[row_numbers].tolist()
    )
    result[row_numbers] = [_digits_rounded(write(number), digits) for number in plain]
    return arrow_column(result.astype(dtype_of(column.type)), nulls_of(column), column.type)


def _digits_rounded(text: str, digits: int) -> float:
    return float(Decimal(text).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, Context(prec=400)))


def _bind_decimal(call: BoundCall, name: str) -> Operand:
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
        return apply_kernel(kind, partial(_quotient_of_decimals, kind=kind), *operands)
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


def _quotient_of_decimals(left: Datum, right: Datum, kind: pa.Decimal128Type) -> pa.Array:
    """Half away from zero: Arrow cuts what has more digits than its result, so the next digit decides."""
    dividend, divisor = as_arrays(left, right)
    zeros = run("equal", divisor, pa.scalar(0, divisor.type)).fill_null(False).to_numpy(zero_copy_only=False)
    digits, scale = digits_and_scale(dividend.type)
    other_digits, other_scale = digits_and_scale(divisor.type)
    longer = max(scale, kind.scale + other_scale - other_digits, scale + other_scale)
    longer = min(longer, _LONGEST - digits + scale)
    wide = dividend.cast(pa.decimal256(digits - scale + longer, longer))
    quotient = run("divide", wide, without(_wide(divisor), np.asarray(zeros)))
    return rounded_decimals(quotient, kind)


def _bind_rounding(operand: Operand, digits: int, mode: str, kind: pa.DataType, kernel: Kernel) -> Operand:
    """A number with at most ``digits`` after the point: of floats what the ``kernel`` makes, of this ``kind``;
    decimals have one digit more in front of it, for what is rounded up.
    """
    if pa.types.is_integer(operand.type):
        return operand
    if not pa.types.is_decimal(operand.type):
        return apply_kernel(kind, kernel, operand)
    precision, scale = digits_and_scale(operand.type)
    result_scale = min(digits, scale)
    decimal = pa.decimal128(min(precision - scale + 1 + result_scale, MAX_DIGITS), result_scale)
    return apply_kernel(decimal, partial(rounded_decimals, kind=decimal, mode=mode), operand)


ARITHMETIC_BINDERS: Binders = {
    **{name: partial(_bind_sum, name=name) for name in _PLUS},
    "div": _bind_div,
    "int_div": partial(_bind_whole_quotient, kernel=_truncated, floats=False),
    "mod": partial(_bind_whole_quotient, kernel=np.fmod, floats=True),
    "pmod": partial(_bind_whole_quotient, kernel=_positive_rest, floats=True),
    "neg": partial(_bind_signed, name="negate"),
    "abs": partial(_bind_signed, name="abs"),
    "floor": partial(_bind_rounded, mode="down"),
    "ceil": partial(_bind_rounded, mode="up"),
    "round": _bind_round,
    "pow": partial(_bind_doubles, kernel=partial(run, "power")),
    "sqrt": partial(_bind_doubles, kernel=pc.sqrt),
    "exp": partial(_bind_doubles, kernel=_exponential),
    "ln": partial(_bind_doubles, kernel=_logarithm),
}
