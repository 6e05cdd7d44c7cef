"""Expressions of one row, by plain Python: a function a node, with `None` for null and ``math.nan``.

It has its own rules of types, so that what the product finds out is not taken over.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import xxhash

from tidestate.operators.expressions.tree import CallNode, ColumnNode, ExprNode, LiteralNode, literal_scalar
from tidestate.statestore.spec.arrowtypes import parse_type

BOOL, INT, LONG, DOUBLE, TEXT, DATE = pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.date32()
INSTANT, CLOCK, SPAN, NULL = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us"), pa.null()
FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
NUMBER_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
EXACT = Context(prec=200)
Typed = tuple[pa.DataType, Any]
"""The type of a node, and its value for a row; of times and spans microseconds, of dates days."""


def is_whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind)


def is_float(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind)


def bounds(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    return (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def meet(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The common type of two that are no literals."""
    if left == right or right == NULL:
        return left
    if left == NULL:
        return right
    if {left, right} & {DATE}:
        return ({left, right} - {DATE}).pop()
    decimals = [kind for kind in (left, right) if pa.types.is_decimal(kind)]
    if decimals and not any(map(is_float, (left, right))):
        digits = [as_digits(left), as_digits(right)]
        scale = max(scale for _, scale in digits)
        return decimal_type(max(p - s for p, s in digits) + scale, scale)
    if decimals or (is_float(left) != is_float(right)):
        return DOUBLE
    if is_float(left):
        return DOUBLE
    signs = {pa.types.is_unsigned_integer(kind) for kind in (left, right)}
    if len(signs) == 2:
        low, high = min(bounds(left)[0], bounds(right)[0]), max(bounds(left)[1], bounds(right)[1])
        fits = [kind for kind in NUMBER_TYPES[:4] if bounds(kind)[0] <= low and high <= bounds(kind)[1]]
        return fits[0] if fits else pa.decimal128(20, 0)
    return left if left.bit_width > right.bit_width else right


def decimal_type(digits: int, scale: int) -> pa.DataType:
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def as_digits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    return {8: 3, 16: 5, 32: 10, 64: 20}[kind.bit_width], 0


def together(nodes: Sequence[ExprNode], values: Sequence[Typed]) -> pa.DataType:
    """The common type of arguments: literals take that of the others."""
    fixed = [kind for node, (kind, _) in zip(nodes, values, strict=True) if not isinstance(node, LiteralNode)]
    result = fixed[0] if fixed else None
    for kind in fixed[1:]:
        result = meet(result, kind)
    for node, (kind, value) in zip(nodes, values, strict=True):
        if isinstance(node, LiteralNode):
            result = kind if result is None else literal_meets(result, kind, value)
    assert result is not None
    return BOOL if result == NULL else result  # of nulls alone


def literal_meets(result: pa.DataType, kind: pa.DataType, value: Any) -> pa.DataType:
    if is_float(result) and (is_whole(kind) or is_float(kind)):
        return result
    if is_whole(result) and is_whole(kind) and bounds(result)[0] <= value <= bounds(result)[1]:
        return result
    if pa.types.is_decimal(result) and is_whole(kind):
        return meet(result, pa.decimal128(len(str(abs(value))), 0))
    if kind == TEXT and (result in (INSTANT, CLOCK) or result == DATE):
        return result
    return INSTANT if (kind, result) == (CLOCK, INSTANT) else meet(result, kind)


def as_type(kind: pa.DataType, typed: Typed) -> Any:
    """A value as another type that holds it."""
    source, value = typed
    if value is None or source == kind:
        return value
    if source == TEXT:
        return cast_text(kind, value)
    if source == DATE and kind in (INSTANT, CLOCK):
        return value * 86_400_000_000
    if kind == pa.float32():
        return float(single(value))
    if is_float(kind):
        return float(value)
    if pa.types.is_decimal(kind):  # with all the digits after the point that its type has: as text these are seen
        return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=EXACT)
    return value


def single(value: float) -> Any:
    with np.errstate(over="ignore"):
        return np.float32(value)


def rank(value: Any) -> tuple[int, Any]:
    """By which values are compared: NaN is above all."""
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)


def evaluate(node: ExprNode, row: dict[str, Any], schema: pa.Schema) -> Typed:
    """The type and value of a tree for one row."""
    if isinstance(node, ColumnNode):
        return schema.field(node.name).type, row[node.name]
    if isinstance(node, LiteralNode):
        scalar = literal_scalar(node)
        return scalar.type, plain(scalar)
    values = [evaluate(arg, row, schema) for arg in node.args]
    for table in (COMPARISON_TWINS, CHOSEN):
        if node.function in table:
            return table[node.function](node, values)
    return FUNCTIONS[node.function](node, values)


def plain(scalar: pa.Scalar) -> Any:
    """A value as the twin has it."""
    if scalar.is_valid and (pa.types.is_timestamp(scalar.type) or pa.types.is_duration(scalar.type)):
        return scalar.cast(pa.int64()).as_py()
    if scalar.is_valid and scalar.type == DATE:
        return scalar.cast(pa.int32()).as_py()
    return scalar.as_py()


def compared(holds: Callable[[Any, Any], bool]) -> Callable[[CallNode, list[Typed]], Typed]:
    def compare(node: CallNode, values: list[Typed]) -> Typed:
        kind = together(node.args, values)
        left, right = (as_type(kind, value) for value in values)
        return BOOL, None if left is None or right is None else holds(rank(left), rank(right))

    return compare


def either(flags: Sequence[bool | None]) -> bool | None:
    return True if True in flags else None if None in flags else False


def both(flags: Sequence[bool | None]) -> bool | None:
    return False if False in flags else None if None in flags else True


def isin(node: CallNode, values: list[Typed]) -> Typed:
    kind = together(node.args, values)
    value, *choices = (as_type(kind, each) for each in values)
    if value is None:
        return BOOL, None
    return BOOL, either([None if choice is None else rank(choice) == rank(value) for choice in choices])


def between(node: CallNode, values: list[Typed]) -> Typed:
    kind = together(node.args, values)
    value, low, high = (as_type(kind, each) for each in values)
    tests = [(low, value), (value, high)]
    return BOOL, both([None if None in test else rank(test[0]) <= rank(test[1]) for test in tests])


def null_safe(node: CallNode, values: list[Typed]) -> Typed:
    kind = together(node.args, values)
    left, right = (as_type(kind, each) for each in values)
    return BOOL, left is right if left is None or right is None else rank(left) == rank(right)


def extreme(choose: Callable[..., Any]) -> Callable[[CallNode, list[Typed]], Typed]:
    def find(node: CallNode, values: list[Typed]) -> Typed:
        kind = together(node.args, values)
        present = [value for value in (as_type(kind, each) for each in values) if value is not None]
        return kind, choose(present, key=rank) if present else None

    return find


COMPARISON_TWINS: dict[str, Callable[[CallNode, list[Typed]], Typed]] = {
    "eq": compared(lambda left, right: left == right),
    "ne": compared(lambda left, right: left != right),
    "lt": compared(lambda left, right: left < right),
    "le": compared(lambda left, right: left <= right),
    "gt": compared(lambda left, right: left > right),
    "ge": compared(lambda left, right: left >= right),
    "eq_null_safe": null_safe,
    "isin": isin,
    "between": between,
    "greatest": extreme(max),
    "least": extreme(min),
}


def when(node: CallNode, values: list[Typed]) -> Typed:
    choices = len(values) // 2
    places = [2 * place + 1 for place in range(choices)] + ([len(values) - 1] if len(values) % 2 else [])
    kind = together([node.args[place] for place in places], [values[place] for place in places])
    chosen = next((place for place in range(choices) if values[2 * place][1] is True), None)
    if chosen is not None:
        return kind, as_type(kind, values[2 * chosen + 1])
    return kind, as_type(kind, values[-1]) if len(values) % 2 else None


def coalesce(node: CallNode, values: list[Typed]) -> Typed:
    kind = together(node.args, values)
    return kind, next((as_type(kind, each) for each in values if each[1] is not None), None)


def nullif(node: CallNode, values: list[Typed]) -> Typed:
    same = COMPARISON_TWINS["eq"](node, values)[1]
    return BOOL if values[0][0] == NULL else values[0][0], None if same else values[0][1]


CHOSEN: dict[str, Callable[[CallNode, list[Typed]], Typed]] = {
    "and": lambda node, values: (BOOL, both([value for _, value in values])),
    "or": lambda node, values: (BOOL, either([value for _, value in values])),
    "not": lambda node, values: (BOOL, None if values[0][1] is None else not values[0][1]),
    "is_null": lambda node, values: (BOOL, values[0][1] is None),
    "is_nan": lambda node, values: (BOOL, values[0][1] is not None and math.isnan(values[0][1])),
    "when": when,
    "coalesce": coalesce,
    "nullif": nullif,
}


def fit(kind: pa.DataType, value: int) -> int | None:
    low, high = (-(2**63), 2**63 - 1) if not is_whole(kind) else bounds(kind)
    return value if low <= value <= high else None


def arithmetic(name: str) -> Callable[[CallNode, list[Typed]], Typed]:
    def compute(node: CallNode, values: list[Typed]) -> Typed:
        kinds = [kind for kind, _ in values]
        if any(kind in (INSTANT, CLOCK, SPAN) for kind in kinds):
            kind = SPAN if name == "sub" and SPAN not in kinds else next((k for k in kinds if k != SPAN), SPAN)
            left, right = (
                value * 86_400_000_000 if k == DATE and value is not None else value for k, value in values
            )
            return kind, None if left is None or right is None else fit(LONG, apply(name, left, right))
        if any(map(pa.types.is_decimal, kinds)) and not any(map(is_float, kinds)):
            return decimal_arithmetic(name, node, values)
        kind = DOUBLE if name == "div" else together(node.args, values)
        left, right = (as_type(kind, each) for each in values)
        if left is None or right is None:
            return kind, None
        if is_whole(kind):
            return kind, whole_arithmetic(name, kind, left, right)
        return kind, float_arithmetic(name, kind, left, right)

    return compute


def apply(name: str, left: Any, right: Any) -> Any:
    return left + right if name == "add" else left - right if name == "sub" else left * right


def whole_arithmetic(name: str, kind: pa.DataType, left: int, right: int) -> int | None:
    if name in ("add", "sub", "mul"):
        return fit(kind, apply(name, left, right))
    if right == 0:
        return None
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if name == "int_div":
        return fit(kind, quotient)
    rest = left - quotient * right
    return rest + right if name == "pmod" and rest < 0 < right else rest


def float_arithmetic(name: str, kind: pa.DataType, left: float, right: float) -> float | None:
    number = np.float32 if kind == pa.float32() else np.float64
    with np.errstate(all="ignore"):
        first, second = number(left), number(right)
        if name in ("add", "sub", "mul"):
            return float(apply(name, first, second))
        if second == 0:
            return None
        if name == "div":
            return float(first / second)
        rest = np.fmod(first, second)
        return float(np.fmod(rest + second, second) if name == "pmod" and rest < 0 else rest)


def decimal_arithmetic(name: str, node: CallNode, values: list[Typed]) -> Typed:
    kinds = [values[1 - place][0] if kind == NULL else kind for place, (kind, _) in enumerate(values)]
    (p1, s1), (p2, s2) = (
        (len(str(abs(value))), 0) if isinstance(arg, LiteralNode) and is_whole(kind) else as_digits(kind)
        for arg, kind, (_, value) in zip(node.args, kinds, values, strict=True)
    )
    if name == "mul":
        precision, scale = p1 + p2 + 1, s1 + s2
    elif name == "div":
        scale = max(6, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
    else:
        scale = max(s1, s2)
        precision = min(max(p1 - s1, p2 - s2) + scale + 1, 38)
    kind = pa.decimal128(precision, scale)
    left, right = values[0][1], values[1][1]
    if left is None or right is None or (name == "div" and right == 0):
        return kind, None
    exact = Fraction(left) / Fraction(right) if name == "div" else apply(name, Fraction(left), Fraction(right))
    return kind, fit_decimal(rounded(exact, scale), kind)


def rounded(exact: Fraction, scale: int) -> Decimal:
    """The decimal that is nearest, of two the one away from zero."""
    shifted = abs(exact) * 10**scale
    number = math.floor(shifted + Fraction(1, 2))
    return Decimal(-number if exact < 0 else number).scaleb(-scale, EXACT)


def fit_decimal(value: Decimal, kind: pa.DataType) -> Decimal | None:
    return value if abs(value) < Decimal(10) ** (kind.precision - kind.scale) else None


def signed(name: str) -> Callable[[CallNode, list[Typed]], Typed]:
    def compute(node: CallNode, values: list[Typed]) -> Typed:
        ((kind, value),) = values
        kind = DOUBLE if kind == NULL else kind
        if value is None:
            return kind, None
        result = -value if name == "neg" else abs(value)
        return kind, fit(kind, result) if is_whole(kind) else result

    return compute


def to_whole(mode: str, how: Callable[[float], int]) -> Callable[[CallNode, list[Typed]], Typed]:
    def compute(node: CallNode, values: list[Typed]) -> Typed:
        ((kind, value),) = values
        if is_whole(kind) or kind == NULL:
            return LONG if kind == NULL else kind, value
        if pa.types.is_decimal(kind):
            return round_decimal(kind, value, 0, mode)
        return LONG, None if value is None or not math.isfinite(value) else fit(LONG, how(value))

    return compute


def round_decimal(kind: pa.DataType, value: Decimal | None, digits: int, mode: str) -> Typed:
    scale = min(digits, kind.scale)
    result = pa.decimal128(min(kind.precision - kind.scale + 1 + scale, 38), scale)
    if value is None:
        return result, None
    return result, fit_decimal(value.quantize(Decimal(1).scaleb(-scale), mode, EXACT), result)


def round_(node: CallNode, values: list[Typed]) -> Typed:
    kind, value = values[0]
    digits = values[1][1] if len(values) > 1 else 0
    if pa.types.is_decimal(kind):
        return round_decimal(kind, value, digits, ROUND_HALF_UP)
    if kind == NULL:
        return DOUBLE, None
    if value is None or is_whole(kind) or not math.isfinite(value):
        return kind, value
    text = str(np.float32(value)) if kind == pa.float32() else repr(value)
    result = float(Decimal(text).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, Context(prec=400)))
    return kind, float(single(result)) if kind == pa.float32() else result


def of_double(function: Callable[[float], float | None]) -> Callable[[CallNode, list[Typed]], Typed]:
    def compute(node: CallNode, values: list[Typed]) -> Typed:
        value = as_type(DOUBLE, values[0])
        return DOUBLE, None if value is None else function(value)

    return compute


def exponential(value: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.exp(np.float64(value)))


def power(node: CallNode, values: list[Typed]) -> Typed:
    left, right = (as_type(DOUBLE, each) for each in values)
    if left is None or right is None:
        return DOUBLE, None
    with np.errstate(all="ignore"):
        return DOUBLE, float(np.power(np.float64(left), np.float64(right)))


def of_text(function: Callable[..., Any], kind: pa.DataType = TEXT) -> Callable[[CallNode, list[Typed]], Typed]:
    """A function of text and literals, null where the text is."""

    def compute(node: CallNode, values: list[Typed]) -> Typed:
        value, *others = (value for _, value in values)
        return kind, None if value is None else function(value, *others)

    return compute


def substring(text: str, start: int, length: int) -> str:
    first = start - 1 if start > 0 else start + len(text) if start < 0 else 0
    return text[max(first, 0) : max(first + length, 0)] if length > 0 else ""


def like(text: str, pattern: str) -> bool:
    regular = re.sub(r"\\(.)|(%)|(_)|(.)", like_part, pattern, flags=re.DOTALL)
    return re.fullmatch(regular, text, re.DOTALL) is not None


def like_part(match: re.Match[str]) -> str:
    return ".*" if match[2] else "." if match[3] else re.escape(match[1] or match[4])


def split_part(text: str, separator: str, place: int) -> str:
    parts = text.split(separator) if separator else [text]
    index = place - 1 if place > 0 else len(parts) + place
    return parts[index] if 0 <= index < len(parts) else ""


def lpad(text: str, width: int, padding: str) -> str:
    return ((padding * width)[: max(width - len(text), 0)] if padding else "") + text[:width]


def concat(node: CallNode, values: list[Typed]) -> Typed:
    texts = [value for _, value in values]
    return TEXT, None if None in texts else "".join(texts)


def concat_ws(node: CallNode, values: list[Typed]) -> Typed:
    separator, *texts = (value for _, value in values)
    return TEXT, separator.join(text for text in texts if text is not None)


def cast(node: CallNode, values: list[Typed]) -> Typed:
    ((source, value),) = values
    kind = parse_type(node.type or "")
    if value is None or source == kind:
        return kind, value
    if source == TEXT:
        return kind, cast_text(kind, value)
    if kind == TEXT:
        return kind, text_of_value(source, value)
    if kind == BOOL:
        return kind, value != 0
    if is_whole(kind):
        if isinstance(value, float) and not math.isfinite(value):
            return kind, None
        return kind, fit(kind, int(value))
    if pa.types.is_decimal(kind):
        return kind, cast_decimal(kind, source, value)
    if kind == DATE:
        return kind, value // 86_400_000_000
    return kind, as_type(kind, (source, value))


def cast_decimal(kind: pa.DataType, source: pa.DataType, value: Any) -> Decimal | None:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = Decimal(repr(value))
    return fit_decimal(rounded(Fraction(value), kind.scale), kind)


def cast_text(kind: pa.DataType, text: str) -> Any:
    text = text.strip(" \t\n\r\x0b\x0c")
    if is_whole(kind):
        return fit(kind, int(text)) if re.fullmatch(r"[+-]?[0-9]+", text) else None
    if is_float(kind):
        word = text.lower().lstrip("+-")
        special = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}.get(word)
        if special is None and not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
            return None
        value = float(text) if special is None else -special if text[0] == "-" else special
        return float(single(value)) if kind == pa.float32() else value
    if pa.types.is_decimal(kind):
        if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
            return None
        return fit_decimal(rounded(Fraction(text), kind.scale), kind)
    if kind == BOOL:
        words = {True: ("t", "true", "y", "yes", "1"), False: ("f", "false", "n", "no", "0")}
        return next((flag for flag, choices in words.items() if text.lower() in choices), None)
    if kind == DATE:
        try:
            return (
                (date.fromisoformat(text) - date(1970, 1, 1)).days if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else None
            )
        except ValueError:
            return None
    return iso_time(text, kind == INSTANT)


def iso_time(text: str, zoned: bool) -> int | None:
    pattern = r"(\d{4}-\d\d-\d\d)([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?( ?(Z|[+-]\d\d:\d\d))?"
    match = re.fullmatch(pattern, text, re.ASCII)
    if match is None or (match[5] and not zoned):
        return None
    try:
        moment = datetime.fromisoformat(match[1] + (match[2] or "T00:00") + (match[6] or "+00:00"))
        return (moment - FIRST_MOMENT) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def text_of_value(source: pa.DataType, value: Any) -> str | None:
    if source == BOOL:
        return "true" if value else "false"
    if is_float(source):
        return java_float(str(np.float32(value)) if source == pa.float32() else repr(value))
    if source == DATE:
        return str(date(1970, 1, 1) + timedelta(days=value))
    if source in (INSTANT, CLOCK):
        moment = FIRST_MOMENT + timedelta(microseconds=value)
        text = moment.strftime("%H:%M:%S.%f").rstrip("0").rstrip(".") if moment.microsecond else f"{moment:%H:%M:%S}"
        return f"{moment.date()} {text}"
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def java_float(text: str) -> str:
    if text in ("nan", "inf", "-inf"):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[text]
    value = Decimal(text)
    if value == 0 or 0.001 <= abs(value) < 10**7:
        return text if "e" not in text and "." in text else f"{value:f}" + ("" if "." in f"{value:f}" else ".0")
    digits = "".join(map(str, value.as_tuple().digits)).rstrip("0")
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{value.adjusted()}"


def shown(kind: pa.DataType, value: int, zone: str | None) -> datetime:
    """What a clock in a zone shows, without a zone."""
    if kind == DATE:
        return datetime(1970, 1, 1) + timedelta(days=value)
    moment = FIRST_MOMENT + timedelta(microseconds=value)
    return (moment.astimezone(ZoneInfo(zone or "UTC")) if kind == INSTANT else moment).replace(tzinfo=None)


def of_time(function: Callable[[datetime], Any], kind: pa.DataType = INT) -> Callable[[CallNode, list[Typed]], Typed]:
    def compute(node: CallNode, values: list[Typed]) -> Typed:
        source, value = values[0]
        return kind, None if value is None else function(shown(source, value, node.zone))

    return compute


def day_number(moment: datetime) -> int:
    return (moment.date() - date(1970, 1, 1)).days


def to_date(node: CallNode, values: list[Typed]) -> Typed:
    ((kind, value),) = values
    if kind in (TEXT, NULL):
        return DATE, None if value is None else cast_text(DATE, value)
    return DATE, None if value is None else day_number(shown(kind, value, node.zone))


def clock_us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def first_instant(local: datetime, zone: str | None) -> int:
    """When a clock shows ``local`` first; in a gap the moment of the change."""
    place = ZoneInfo(zone or "UTC")
    early = local.replace(tzinfo=place, fold=0)
    if early.astimezone(UTC).astimezone(place).replace(tzinfo=None) == local:
        return (early - FIRST_MOMENT) // timedelta(microseconds=1)
    # In a gap the earlier fold has the offset of before the change: the change is where that offset ends.
    low, high = clock_us(local) - 10**11, clock_us(local) + 10**11
    while high - low > 1:
        middle = (low + high) // 2
        is_before = clock_us(shown(INSTANT, middle, zone)) < clock_us(local)
        low, high = (middle, high) if is_before else (low, middle)
    return high


def date_trunc(node: CallNode, values: list[Typed]) -> Typed:
    unit, (kind, value) = values[0][1], values[1]
    if value is None:
        return kind, None
    local = shown(kind, value, node.zone)
    if unit in ("hour", "minute", "second"):
        size = {"hour": 3_600, "minute": 60, "second": 1}[unit] * 1_000_000
        return kind, value - clock_us(local) % size
    day = local.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = {
        "day": day,
        "week": day - timedelta(days=day.weekday()),
        "month": day.replace(day=1),
        "quarter": day.replace(day=1, month=(day.month - 1) // 3 * 3 + 1),
        "year": day.replace(day=1, month=1),
    }[unit]
    if kind == DATE:
        return kind, day_number(begin)
    return kind, clock_us(begin) if kind == CLOCK else first_instant(begin, node.zone)


def date_add(node: CallNode, values: list[Typed]) -> Typed:
    start, days = as_type(DATE, values[0]), values[1][1]
    total = None if start is None or days is None else start + days
    return DATE, total if total is not None and -(2**31) <= total < 2**31 else None


def date_diff(node: CallNode, values: list[Typed]) -> Typed:
    end, start = (as_type(DATE, each) for each in values)
    days = None if end is None or start is None else end - start
    return INT, days if days is not None and -(2**31) < days < 2**31 else None


def to_timestamp(node: CallNode, values: list[Typed]) -> Typed:
    ((kind, value),) = values
    if value is None or kind == INSTANT:
        return INSTANT, value
    if kind == TEXT:
        local = iso_time(value.strip(" \t\n\r\x0b\x0c"), False)
        if local is None:
            return INSTANT, iso_time(value.strip(" \t\n\r\x0b\x0c"), True)
        return INSTANT, first_instant(datetime(1970, 1, 1) + timedelta(microseconds=local), node.zone)
    return INSTANT, first_instant(shown(kind, value, None), node.zone)


def date_format(node: CallNode, values: list[Typed]) -> Typed:
    (kind, value), (_, pattern) = values
    if value is None:
        return TEXT, None
    local = shown(kind, value, node.zone)
    letters = {"yyyy": f"{local.year:04}", "MM": f"{local:%m}", "dd": f"{local:%d}"}
    letters |= {"HH": f"{local:%H}", "mm": f"{local:%M}", "ss": f"{local:%S}"}
    return TEXT, re.sub(
        r"yyyy|MM|dd|HH|mm|ss|'((?:[^']|'')*)'",
        lambda part: letters.get(part[0]) or (part[1] or "'").replace("''", "'"),
        pattern,
    )


def xxhash64(node: CallNode, values: list[Typed]) -> Typed:
    ((kind, value),) = values
    if value is None:
        return LONG, 42
    width = 4 if kind == DATE or (is_whole(kind) and kind.bit_width < 64) else 8
    data = value.encode() if isinstance(value, str) else value
    data = data.to_bytes(width, "little", signed=True) if isinstance(data, int) else data
    number = xxhash.xxh64_intdigest(data, 42)
    return LONG, number - 2**64 if number >= 2**63 else number


def same(kind: pa.DataType) -> Callable[[CallNode, list[Typed]], Typed]:
    return lambda node, values: (kind, values[0][1])


FUNCTIONS: dict[str, Callable[[CallNode, list[Typed]], Typed]] = {
    **{name: arithmetic(name) for name in ("add", "sub", "mul", "div", "int_div", "mod", "pmod")},
    "neg": signed("neg"),
    "abs": signed("abs"),
    "floor": to_whole(ROUND_FLOOR, math.floor),
    "ceil": to_whole(ROUND_CEILING, math.ceil),
    "round": round_,
    "sqrt": of_double(lambda value: math.sqrt(value) if not value < 0 else math.nan),
    "exp": of_double(exponential),
    "ln": of_double(lambda value: None if value <= 0 else float(np.log(np.float64(value)))),
    "pow": power,
    "length": of_text(len, INT),
    "lower": of_text(str.lower),
    "upper": of_text(str.upper),
    "trim": of_text(lambda text: text.strip(" ")),
    "ltrim": of_text(lambda text: text.lstrip(" ")),
    "rtrim": of_text(lambda text: text.rstrip(" ")),
    "substring": of_text(substring),
    "contains": of_text(lambda text, other: other in text, BOOL),
    "startswith": of_text(str.startswith, BOOL),
    "endswith": of_text(str.endswith, BOOL),
    "like": of_text(like, BOOL),
    "rlike": of_text(lambda text, pattern: re.search(pattern, text) is not None, BOOL),
    "replace": of_text(lambda text, search, other: text.replace(search, other) if search else text),
    "split_part": of_text(split_part),
    "lpad": of_text(lpad),
    "concat": concat,
    "concat_ws": concat_ws,
    "cast": cast,
    "year": of_time(lambda local: local.year),
    "quarter": of_time(lambda local: (local.month - 1) // 3 + 1),
    "month": of_time(lambda local: local.month),
    "day": of_time(lambda local: local.day),
    "day_of_week": of_time(lambda local: local.isoweekday() % 7 + 1),
    "day_of_year": of_time(lambda local: local.timetuple().tm_yday),
    "week": of_time(lambda local: local.isocalendar().week),
    "iso_year": of_time(lambda local: local.isocalendar().year),
    "hour": of_time(lambda local: local.hour),
    "minute": of_time(lambda local: local.minute),
    "second": of_time(lambda local: local.second),
    "to_date": to_date,
    "to_timestamp": to_timestamp,
    "from_utc": of_time(clock_us, CLOCK),
    "date_trunc": date_trunc,
    "date_add": date_add,
    "date_diff": date_diff,
    "date_format": date_format,
    "unix_micros": same(LONG),
    "timestamp_micros": same(INSTANT),
    "xxhash64": xxhash64,
    "crc32": of_text(lambda value: zlib.crc32(value.encode() if isinstance(value, str) else value), LONG),
}
