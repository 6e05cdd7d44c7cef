"""The common type of several arguments, and arguments brought to it. Pure.

Types are strict: numbers meet numbers, text meets text, a date may meet a time. Of whole numbers the wider is taken,
with a float double; of an unsigned and a signed one the smallest signed that holds both, of 64 bits a decimal.
Literals take the type of what they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from tidestate.operators.expressions.arrays import digits_and_scale, dtype_of
from tidestate.operators.expressions.casts import try_cast
from tidestate.operators.expressions.operands import BoundCall, Operand, apply_kernel
from tidestate.operators.expressions.tree import INSTANT, LOCAL, SPAN

MAX_DIGITS = 38


def function_type(kind: pa.DataType) -> pa.DataType:
    """The type that functions see of a column: one for text, one for bytes, times in microseconds."""
    if pa.types.is_dictionary(kind):
        return function_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return kind if pa.types.is_decimal(kind) else pa.binary()
    if pa.types.is_timestamp(kind):
        return LOCAL if kind.tz is None else INSTANT
    if pa.types.is_duration(kind):
        return SPAN
    if pa.types.is_date64(kind):
        return pa.date32()
    return pa.float32() if kind == pa.float16() else kind


def is_numeric(kind: pa.DataType) -> bool:
    """Whether it is a whole number, a float or a decimal that functions compute with."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)


def wider_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both; None if they do not meet."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    kinds = {left, right}
    if pa.types.is_date32(left) or pa.types.is_date32(right):
        return next((kind for kind in (INSTANT, LOCAL) if kind in kinds), None)
    if not (is_numeric(left) and is_numeric(right)):
        return None
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_decimal128(left) or pa.types.is_decimal128(right):
        return _wider_decimal(left, right)
    return _wider_whole(left, right)


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    pairs = digits_and_scale(left), digits_and_scale(right)
    scale = max(scale for _, scale in pairs)
    digits = max(precision - scale for precision, scale in pairs) + scale
    return pa.decimal128(digits, scale) if digits <= MAX_DIGITS else pa.decimal256(digits, scale)


def _wider_whole(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    unsigned_bits = [kind.bit_width for kind in (left, right) if pa.types.is_unsigned_integer(kind)]
    widest = max(left.bit_width, right.bit_width)
    if len(unsigned_bits) == 1:
        # A sign takes one more bit than the unsigned one has.
        widest = max(widest, unsigned_bits[0] * 2)
        return pa.decimal128(20, 0) if widest > 64 else pa.type_for_alias(f"int{widest}")
    return pa.type_for_alias(f"{'u' if unsigned_bits else ''}int{widest}")


def common_type(operands: Sequence[Operand]) -> pa.DataType | None:
    """The type in which operands meet; null if all are null, None if they do not meet."""
    kind: pa.DataType | None = None
    # Literals last: they adapt to what the others have in common.
    for operand in sorted(operands, key=lambda operand: operand.is_open):
        if kind is None:
            kind = operand.type
        else:
            kind = _adapted(kind, operand) if operand.is_open else wider_type(kind, operand.type)
        if kind is None:
            return None
    return kind


def _adapted(kind: pa.DataType, literal: Operand) -> pa.DataType | None:
    """The type in which a literal meets values of ``kind``: theirs, wherever it has the value."""
    number = is_numeric(literal.type) and not pa.types.is_decimal(literal.type)
    if number and pa.types.is_floating(kind):
        return kind
    if number and pa.types.is_integer(literal.type) and literal.constant is not None:
        value: int = literal.constant.as_py()
        if pa.types.is_integer(kind):
            limits = np.iinfo(dtype_of(kind))
            return kind if limits.min <= value <= limits.max else wider_type(kind, literal.type)
        if pa.types.is_decimal128(kind):
            return wider_type(kind, pa.decimal128(max(len(str(abs(value))), 1), 0))
    if pa.types.is_string(literal.type) and (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return kind
    if literal.type == LOCAL and kind == INSTANT:
        return kind
    return wider_type(kind, literal.type)


def brought_to(call: BoundCall, operand: Operand, kind: pa.DataType) -> Operand:
    """An operand as another type that holds its values; `UsageError` for a text that is no time."""
    if operand.type == kind:
        return operand
    result = apply_kernel(kind, partial(try_cast, kind=kind), operand)
    literal = operand.constant
    if literal is not None and literal.is_valid and not (result.constant or literal).is_valid:
        call.refuse(f"a literal that is a {kind}, not {literal.as_py()!r}, as it meets one")
    return result


def unify(call: BoundCall, operands: Sequence[Operand], of_nulls: pa.DataType) -> list[Operand]:
    """The operands in their common type, which is ``of_nulls`` where all are null. Raises `UsageError`
    (``expression-type``) if they have none, ``expression-decimal`` if it has too many digits.
    """
    kind = common_type(operands)
    if kind is None:
        call.refuse("arguments of types that meet: numbers, text, times; convert one with cast")
    if pa.types.is_decimal256(kind):
        raise call.decimal_error("a decimal that holds all of the arguments has more than 38 digits")
    kind = of_nulls if pa.types.is_null(kind) else kind
    return [brought_to(call, operand, kind) for operand in operands]


def is_comparable_type(kind: pa.DataType) -> bool:
    """Whether values of this type are equal to or before others."""
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_temporal,
    )
    return any(test(kind) for test in tests)


def comparands(call: BoundCall, operands: tuple[Operand, ...]) -> list[Operand]:
    """Operands in the type in which they are compared; decimals may have 76 digits for that."""
    kind = common_type(operands)
    if kind is None or not (pa.types.is_null(kind) or is_comparable_type(kind)):
        call.refuse("arguments of one kind: numbers, texts, bytes, conditions, or times; convert one with cast")
    if pa.types.is_null(kind):
        kind = pa.bool_()
    return [brought_to(call, operand, kind) for operand in operands]
