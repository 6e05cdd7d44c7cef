"""What one JSON value is by a schema, a value at a time and with Python's own parser: `JsonReader` without Arrow."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

_ZERO = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?)? ?([Zz]|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class NotDecodable(Exception):
    """A value that is no object of the schema."""


@dataclass(frozen=True)
class Number:
    """A number as it is written."""

    text: str


class Twice(list[tuple[str, Any]]):
    """An object as pairs, in which a name may stand twice."""


def naive_row(value: bytes | None, schema: pa.Schema, epoch: str | None = None) -> dict[str, Any] | None:
    """The columns of a value; None of one that is no such object. Timestamps are microseconds."""
    if value is None:
        return dict.fromkeys(schema.names)
    try:
        text = value.decode("utf-8")
        # Python would take a list, or a number alone.
        if not text.lstrip(" \t\r\n").startswith("{"):
            return None
        # Numbers stay texts: a double has not the digits of a decimal, and ``1.0`` is no whole number.
        tree = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number, object_pairs_hook=Twice)
        _check(tree)
        return _fields(tree, list(schema), epoch)
    except (UnicodeError, json.JSONDecodeError, NotDecodable):
        return None


def _check(tree: Any) -> None:
    """What is no JSON for Arrow, wherever it stands: numbers beyond a double, half of a pair of surrogates."""
    if isinstance(tree, Twice):
        for name, part in tree:
            _check(name)
            _check(part)
    elif isinstance(tree, list):
        for part in tree:
            _check(part)
    elif isinstance(tree, str):
        # Half of a pair of surrogates raises here.
        tree.encode("utf-8")
    elif isinstance(tree, Number) and "Inf" not in tree.text:
        _, _, power = tree.text.lower().partition("e")
        if math.isinf(float(tree.text)) or int(power or 0) > 308:  # of a zero too
            raise NotDecodable


def _fields(tree: Any, fields: list[pa.Field], epoch: str | None) -> dict[str, Any]:
    if not isinstance(tree, Twice):
        raise NotDecodable
    found: dict[str, Any] = {field.name: None for field in fields}
    seen = set()
    types = {field.name: field.type for field in fields}
    for name, part in tree:
        if name in types:
            # Which of two values counts is not said by JSON, so neither does.
            if name in seen:
                raise NotDecodable
            seen.add(name)
            found[name] = None if part is None else _value(part, types[name], epoch)
    return found


def _value(part: Any, kind: pa.DataType, epoch: str | None) -> Any:
    if pt.is_struct(kind):
        return _fields(part, list(kind), epoch)
    if pt.is_list(kind):
        # An object of Python's parser is a list of pairs here.
        if not isinstance(part, list) or isinstance(part, Twice):
            raise NotDecodable
        return [None if item is None else _value(item, kind.value_type, epoch) for item in part]
    if pt.is_boolean(kind):
        return _of(part, bool)
    if pt.is_string(kind):
        return _of(part, str)
    if pt.is_timestamp(kind):
        return _instant(_of(part, str)) if epoch is None else _counted(_of(part, Number).text, epoch)
    if pt.is_date32(kind):
        text = _of(part, str)
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            raise NotDecodable
        return _date(text)
    return _number(part, kind)


def _of(part: Any, kind: type) -> Any:
    if type(part) is not kind:
        raise NotDecodable
    return part


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?\d+", text, re.ASCII):
        raise NotDecodable
    return int(text)


def _number(part: Any, kind: pa.DataType) -> Any:
    if pt.is_decimal(kind) and isinstance(part, str | Number):
        return _decimal(part if isinstance(part, str) else part.text, kind)
    text = _of(part, Number).text
    if pt.is_integer(kind):
        bits, signed = kind.bit_width, pt.is_signed_integer(kind)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
        whole = _whole(text)
        # Minus zero has no place in an unsigned type.
        if not low <= whole < high or (not signed and text.startswith("-")):
            raise NotDecodable
        return whole
    return float(text)


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        raise NotDecodable
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise NotDecodable from None
    scaled = number.scaleb(kind.scale)
    # Digits that the type has no room for are not rounded away.
    if -number.as_tuple().exponent > kind.scale or abs(scaled) >= 10**kind.precision:
        raise NotDecodable
    return number


def _instant(text: str) -> int:
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise NotDecodable
    day, hour, minute, second, fraction, zone = match.groups()
    of_day = [int(part or 0) for part in (hour, minute, second)]
    if of_day[0] > 23 or of_day[1] > 59 or of_day[2] > 59:
        raise NotDecodable
    days = (_date(day) - date(1970, 1, 1)).days
    seconds = days * 86400 + of_day[0] * 3600 + of_day[1] * 60 + of_day[2]
    offset = 0
    if zone and zone not in "zZ":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        hours, minutes = int(digits[:2]), int(digits[2:])
        if hours > 23 or minutes > 59:
            raise NotDecodable
        offset = (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
    # Digits beyond microseconds are cut off.
    return (seconds - offset) * 10**6 + int(((fraction or "") + "000000")[:6])


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise NotDecodable from None


def _counted(text: str, epoch: str) -> int:
    number = _whole(text)
    if not -(2**63) <= number < 2**63:
        raise NotDecodable
    us = number * 10**6 // _PER_SECOND[epoch]
    if not -(2**63) <= us < 2**63:
        raise NotDecodable
    return us


def as_moment(us: int) -> datetime:
    """The instant as Python has it."""
    return _ZERO + timedelta(microseconds=us)
