"""Casts that never raise: a value that does not fit is null, as with Spark's ``try_cast``. Pure and vectorised.

Texts of numbers and times are read one distinct value at a time, where Arrow's own readers take another grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.arrays import (
    arrow_column,
    by_distinct,
    digits_and_scale,
    dtype_of,
    nulls_of,
    numbers_of,
    run,
    whole_numbers_of,
    without,
)
from tidestate.operators.expressions.tree import INSTANT, LOCAL

DAY_LENGTH_US = 86_400_000_000
FARTHEST_DAY = 2**63 // DAY_LENGTH_US - 1
"""Days before and after 1970 whose midnights are times in microseconds, some 292,000 years."""
_WIDE, _LONGEST = pa.decimal256, 76
_EXACT = Context(prec=100)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLOAT_NAMES = re.compile(r"(?P<sign>[+-]?)(?:(?P<inf>inf|infinity)|(?P<nan>nan))", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?))?\s?(Z|[+-]\d{2}:\d{2})?", re.ASCII
)
_TRUE, _FALSE = frozenset(["t", "true", "y", "yes", "1"]), frozenset(["f", "false", "n", "no", "0"])
_BLANKS = " \t\n\r\x0b\x0c"


def try_cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """``column`` as ``kind``; null where a value does not fit. Only for pairs that `can_cast` allows."""
    source = column.type
    if source == kind:
        return column
    if pa.types.is_null(source):
        return pa.nulls(len(column), kind)
    if pa.types.is_string(source):
        return _of_text(column, kind)
    if pa.types.is_string(kind):
        return _as_text(column)
    if pa.types.is_boolean(source):
        return try_cast(column.cast(pa.int8()), kind)
    if pa.types.is_boolean(kind):
        return run("not_equal", column, pa.scalar(0, source))
    if pa.types.is_timestamp(source) or pa.types.is_date32(source):
        return _of_time(column, kind)
    if pa.types.is_decimal(kind):
        return to_decimal(column, kind)
    if pa.types.is_decimal(source):
        return _of_decimal(column, kind)
    return _number_as(column, kind)


def can_cast(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a cast between both has a meaning."""
    groups = [_group(source), _group(kind)]
    if source == kind or groups[0] == "null":
        return True
    if groups[1] == "text":
        return groups[0] != "other" and groups[0] != "span"
    if groups[0] == "text":
        return groups[1] in ("number", "bool", "bytes", "time")
    return set(groups) <= {"number", "bool"} or groups == ["time", "time"]


def _group(kind: pa.DataType) -> str:
    tests = {
        "null": pa.types.is_null(kind),
        "bool": pa.types.is_boolean(kind),
        "number": pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind),
        "text": pa.types.is_string(kind),
        "bytes": pa.types.is_binary(kind),
        "time": pa.types.is_timestamp(kind) or pa.types.is_date32(kind),
        "span": pa.types.is_duration(kind),
    }
    return next((name for name, holds in tests.items() if holds), "other")


def _number_as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whole numbers and floats as each other: floats are cut towards zero, what is out of range is null."""
    if pa.types.is_floating(kind):
        return column.cast(kind, safe=False)
    values, nulls = numbers_of(column), nulls_of(column)
    limits = np.iinfo(dtype_of(kind))
    if values.dtype.kind == "f":
        # Both bounds are exact as doubles: minimum, and the first number above the maximum.
        values = np.trunc(values)
        fits = (values >= float(limits.min)) & (values < float(limits.max + 1))
    else:
        # Unsigned and signed are compared each with bounds that their own type has.
        low, high = max(limits.min, int(np.iinfo(values.dtype).min)), min(limits.max, int(np.iinfo(values.dtype).max))
        fits = (values >= low) & (values <= high)
    return arrow_column(np.where(fits, values, 0).astype(dtype_of(kind)), nulls | ~fits, kind)


def to_decimal(column: pa.Array, kind: pa.Decimal128Type | pa.Decimal256Type) -> pa.Array:
    """Numbers as decimals: rounded half up to the scale; null where the digits do not do."""
    if pa.types.is_floating(column.type):
        return by_distinct(column, partial(_decimal_of_float, kind=kind), kind)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.decimal128(20, 0))
    return rounded_decimals(column, kind)


def rounded_decimals(
    column: pa.Array, kind: pa.Decimal128Type | pa.Decimal256Type, mode: str = "half_towards_infinity"
) -> pa.Array:
    """Decimals as ``kind``, rounded to its scale; null where the digits do not do."""
    digits, scale = digits_and_scale(column.type)
    if scale <= kind.scale:
        return fit_digits(column, kind)
    # One digit more in front of the point: 9.5 becomes 10.
    wide = column.cast(_WIDE(min(digits + 1, _LONGEST), scale))
    return fit_digits(pc.round(wide, kind.scale, mode), kind)


def fit_digits(column: pa.Array, kind: pa.Decimal128Type | pa.Decimal256Type) -> pa.Array:
    """Decimals whose digits past the scale of ``kind`` are zeros as ``kind``; null where they have too many."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        longest = Decimal(10) ** (kind.precision - kind.scale)
        return _between(column, -longest, longest).cast(kind)


def _between(column: pa.Array, low: Decimal, high: Decimal) -> pa.Array:
    """Decimals in the widest type; null where they are not between these bounds, or are one of them."""
    widest = _WIDE(_LONGEST, digits_and_scale(column.type)[1])
    wide = column.cast(widest)
    is_inside = run("and", run("less", wide, pa.scalar(high, widest)), run("greater", wide, pa.scalar(low, widest)))
    return without(wide, ~is_inside.fill_null(True).to_numpy(zero_copy_only=False))


def _decimal_of_float(value: float, kind: pa.Decimal128Type | pa.Decimal256Type) -> Decimal | None:
    """By the shortest digits that are this float, as Java and Python print it."""
    return _decimal_of_text(repr(value), kind) if np.isfinite(value) else None


def _decimal_of_text(text: str, kind: pa.Decimal128Type | pa.Decimal256Type) -> Decimal | None:
    if not _NUMBER.fullmatch(text := text.strip(_BLANKS)) or len(text) > 1_000:
        return None
    value = Decimal(text)
    if value.adjusted() > 40 and value:
        return None
    try:
        decimal_value = value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return None
    return decimal_value if decimal_value.adjusted() < kind.precision - kind.scale or not decimal_value else None


def _of_decimal(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals as floats, or as whole numbers, cut towards zero."""
    if pa.types.is_floating(kind):
        # Through text a decimal is the float that is nearest to it; Arrow's own cast may be the next one.
        return column.cast(pa.string()).cast(pa.float64()).cast(kind, safe=False)
    limits = np.iinfo(dtype_of(kind))
    low, high = Decimal(int(limits.min) - 1), Decimal(int(limits.max) + 1)
    wide = column.cast(_WIDE(_LONGEST, digits_and_scale(column.type)[1]))
    return _between(pc.round(wide, 0, "towards_zero"), low, high).cast(_WIDE(_LONGEST, 0)).cast(kind)


def _of_time(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Dates and times as each other, in UTC, without a shift."""
    numbers, nulls = whole_numbers_of(column), nulls_of(column)
    if pa.types.is_date32(kind):
        days = numbers // DAY_LENGTH_US
        fits = np.abs(days) < 2**31
        return arrow_column(np.where(fits, days, 0), nulls | ~fits, kind)
    if pa.types.is_date32(column.type):
        fits = np.abs(numbers) <= FARTHEST_DAY
        return arrow_column(np.where(fits, numbers, 0) * DAY_LENGTH_US, nulls | ~fits, kind)
    return column.view(kind)


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        return column.cast(pa.string())
    if pa.types.is_binary(kind):
        return _valid_text(column)
    if pa.types.is_timestamp(kind):
        return _time_texts(column)
    if pa.types.is_decimal(kind):
        return by_distinct(column, _decimal_text, pa.string())
    write: Callable[[float], str] = _single_text if pa.types.is_float32(kind) else _float_text
    return by_distinct(column, write, pa.string())


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _single_text(value: float) -> str:
    return _java_text(str(np.float32(value)))


def _float_text(value: float) -> str:
    return _java_text(repr(value))


def _java_text(digits: str) -> str:
    """A float as Java writes it, of its shortest digits: 1.0E10 from ten million on, 1.0E-4 below a thousandth."""
    if digits in ("nan", "inf", "-inf"):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[digits]
    value = Decimal(digits)
    if not value or -3 <= value.adjusted() < 7:
        plain = format(value, "f")
        return plain if "." in plain else f"{plain}.0"
    sign, numbers, _ = value.normalize(_EXACT).as_tuple()
    mantissa = f"{numbers[0]}.{''.join(map(str, numbers[1:])) or '0'}"
    return f"{'-' if sign else ''}{mantissa}E{value.adjusted()}"


def _valid_text(column: pa.Array) -> pa.Array:
    """Bytes as text; null where they are no UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in column.to_pylist()], pa.string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _time_texts(column: pa.Array) -> pa.Array:
    """``2026-01-01 10:00:00`` with the fraction, if there is one, without zeros at its end. In UTC."""
    numbers = whole_numbers_of(column)
    far = (numbers < -62_135_596_800_000_000) | (numbers >= 253_402_300_800_000_000)
    near_times = without(column, far).view(LOCAL)
    text = pc.strftime(near_times, "%Y-%m-%d %H:%M:%S")
    has_fractions = (whole_numbers_of(near_times) % 1_000_000).any()
    return pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".") if has_fractions else pc.utf8_slice_codeunits(text, 0, 19)


def _of_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return column.cast(kind)
    if pa.types.is_integer(kind):
        limits = np.iinfo(dtype_of(kind))
        return by_distinct(column, partial(_whole_of_text, low=int(limits.min), high=int(limits.max)), kind)
    if pa.types.is_floating(kind):
        return by_distinct(column, _float_of_text, pa.float64()).cast(kind, safe=False)
    if pa.types.is_decimal128(kind):
        return by_distinct(column, partial(_decimal_of_text, kind=kind), kind)
    if pa.types.is_boolean(kind):
        return by_distinct(column, _bool_of_text, kind)
    if pa.types.is_date32(kind):
        return by_distinct(column, _date_of_text, kind)
    zoned = kind == INSTANT
    return by_distinct(column, partial(time_us_of_text, zoned=zoned), pa.int64()).view(kind)


def _whole_of_text(text: str, low: int, high: int) -> int | None:
    if not _WHOLE.fullmatch(text := text.strip(_BLANKS)) or len(text) > 1_000:
        return None
    value = int(text)
    return value if low <= value <= high else None


def _float_of_text(text: str) -> float | None:
    text = text.strip(_BLANKS)
    if (match := _FLOAT_NAMES.fullmatch(text)) is not None:
        value = float("nan") if match["nan"] else float("inf")
        return -value if match["sign"] == "-" else value
    return float(text) if _NUMBER.fullmatch(text) else None


def _bool_of_text(text: str) -> bool | None:
    word = text.strip(_BLANKS).lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _date_of_text(text: str) -> date | None:
    text = text.strip(_BLANKS)
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def time_us_of_text(text: str, *, zoned: bool) -> int | None:
    """Microseconds since 1970 of a time in ISO 8601; without an offset as if in UTC. None for other text, and for one
    with an offset where the clock of no place is asked for.
    """
    match = _TIME.fullmatch(text.strip(_BLANKS))
    if match is None or (match[3] is not None and not zoned):
        return None
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}{match[3] or 'Z'}")
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None
