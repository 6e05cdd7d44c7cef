"""Doubles that are the nearest to quotients of whole numbers and decimals. Pure and vectorised.

A double is right to the last bit if it is one division of whole numbers that doubles hold; other rows are divided as
Python's whole numbers, which are as long as needed.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Flags, Numbers, Values
from tidestate.statestore.spec.units import whole_units

WholeNumbers = npt.NDArray[Any]
"""Int64, or Python's own where these might not do."""
_EXACT = 2**53
"""Whole numbers up to this are exact as a double."""
_LARGEST = 2**63
_LONGEST_SHARE = 10**9
"""Of a quantile as a fraction the largest denominator: with more digits it is the nearest one."""


def quotients(decimals: Values, divisor: Values) -> pa.Array:
    """The doubles that are nearest to ``decimals`` by whole numbers; null where either is."""
    shorter = _shortest(decimals)
    is_null = np.asarray(pc.or_(decimals.is_null(), divisor.is_null()))
    by = pc.fill_null(divisor, 1).to_numpy()
    return pa.array(divided(digits_of(shorter), scaled(by, 10 ** scale_of(shorter))), mask=is_null)


def doubles_of(decimals: Values) -> pa.Array:
    """The doubles that are nearest to ``decimals``."""
    return quotients(decimals, pa.array(np.ones(len(decimals), np.int64)))


def between_decimals(decimals: Values, starts: Numbers, counts: Numbers, q: float) -> pa.Array:
    """Of ``counts`` sorted decimals from each of ``starts`` the quantile, linear between two: the nearest double.

    ``q`` is the fraction that was written: 0.1 is a tenth, which no double is.
    """
    share = Fraction(repr(q)).limit_denominator(_LONGEST_SHARE)
    # The quantile is at (count - 1) * q from the first row: ``lower`` rows after it, and ``remainder`` parts of
    # ``share.denominator`` towards the next one. All of it in whole numbers, with one division at the end.
    lower, remainder = np.divmod(np.maximum(counts - 1, 0) * share.numerator, share.denominator)
    shorter, empty = _shortest(decimals), counts == 0
    pair = [digits_of(shorter.take(pa.array(starts + step, mask=empty))) for step in (lower, lower + (remainder > 0))]
    terms = [
        scaled(digits, weight)
        for digits, weight in zip(pair, (share.denominator - remainder, remainder), strict=True)
    ]
    by = share.denominator * 10 ** scale_of(shorter)
    return pa.array(divided(_added(*terms), scaled(np.ones(len(counts), np.int64), by)), mask=empty)


def divided(numbers: WholeNumbers, by: WholeNumbers) -> npt.NDArray[np.float64]:
    """The doubles that are nearest to quotients of whole numbers."""
    exact = _is_exact(numbers) & _is_exact(by)
    if exact.all():
        return numbers.astype(np.float64) / by.astype(np.float64)
    result = np.empty(len(numbers))
    result[exact] = numbers[exact].astype(np.float64) / by[exact].astype(np.float64)
    result[~exact] = (numbers[~exact].astype(object) / by[~exact].astype(object)).astype(np.float64)
    return result


def scaled(numbers: WholeNumbers, by: int | Numbers) -> WholeNumbers:
    """Products of whole numbers, exact: as Python's integers where int64 could overflow."""
    largest = _magnitude(numbers)
    factor = by if isinstance(by, int) else _magnitude(by)
    if largest * factor < _LARGEST:
        product: WholeNumbers = numbers * by
        return product
    product = numbers.astype(object) * (by if isinstance(by, int) else by.astype(object))
    return product


def _added(numbers: WholeNumbers, addends: WholeNumbers) -> WholeNumbers:
    if _magnitude(numbers) + _magnitude(addends) >= _LARGEST:
        numbers, addends = numbers.astype(object), addends.astype(object)
    total: WholeNumbers = numbers + addends
    return total


def digits_of(decimals: Values) -> WholeNumbers:
    """Decimals without their point; 0 for null."""
    units = whole_units(decimals)
    return decimal_units(decimals) if units is None else pc.fill_null(units, 0).to_numpy()


def decimal_units(decimals: Values) -> npt.NDArray[np.object_]:
    """Decimals without their point, as long as they are; 0 for null."""
    return np.array([_units(value, scale_of(decimals)) for value in decimals.to_pylist()], np.object_)


def _units(value: Decimal | None, scale: int) -> int:
    sign, digits, power = (value or Decimal(0)).as_tuple()
    units = int("".join(map(str, digits))) * int(10 ** (scale + int(power)))
    return -units if sign else units


def scale_of(decimals: Values) -> int:
    """How many digits they have after the point."""
    kind = decimals.type
    return kind.scale if pa.types.is_decimal(kind) else 0


def _shortest(decimals: Values) -> Values:
    """The same decimals with as few digits after the point as they need: how they are declared says nothing."""
    if scale_of(decimals) < 0:
        return decimals.cast(pa.decimal256(76, 0))
    units = whole_units(decimals)
    if units is not None and _is_exact(pc.fill_null(units, 0).to_numpy()).all():
        return decimals
    low, high, best = 0, scale_of(decimals), decimals
    while low < high:
        middle = (low + high) // 2
        try:
            best, high = decimals.cast(_with_scale(decimals.type, middle)), middle
        except pa.ArrowInvalid:
            low = middle + 1
    return best


def _with_scale(kind: pa.DataType, scale: int) -> pa.DataType:
    return pa.decimal256(76, scale) if pa.types.is_decimal256(kind) else pa.decimal128(38, scale)


def _is_exact(numbers: WholeNumbers) -> Flags:
    is_exact: Flags = np.asarray((numbers < _EXACT) & (numbers > -_EXACT), bool)
    return is_exact


def _magnitude(numbers: WholeNumbers) -> int:
    return max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)))
