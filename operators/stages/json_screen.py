"""Values that Arrow refuses for sure, found a value at a time by a second parser. Pure.

Arrow reads a block of values or none of them, and most of its errors name no row: to find the rows with it alone
takes some calls for each, of 0.15 ms. msgspec takes 0.2 µs for a value and says whether it is an object of the
schema. Its word counts where it refuses; what it lets through Arrow still reads. So this parser may be laxer than
Arrow's, which costs time and no row, and must nowhere be stricter: where it is (``_STRICTER``), nothing is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidestate.operators.describe.stages import TimeUnit
from tidestate.statestore.arrays import Flags

_STRICTER = re.compile(rb"(?:NaN|Inf(?:inity)?)[ \t\r\n,\]}]")
"""What Arrow takes for a number, and msgspec does not."""
_NOT_IN_NAMES = re.compile(r'["\\\x00-\x1f]')
"""Characters that msgspec has in no name: it does not look at fields with them."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def refused_values(texts: pa.Array, schema: pa.Schema, epoch: TimeUnit | None) -> Flags:
    """Which texts, UTF-8 in bytes, are surely no objects of the schema; there may be more. Shape ``(rows,)``."""
    flags = np.zeros(len(texts), bool)
    decode = _decoder(schema, epoch).decode
    for row, text in enumerate(texts.to_pylist()):
        try:
            decode(text)
        except msgspec.DecodeError:
            flags[row] = _STRICTER.search(text) is None
        except (RecursionError, ValueError):
            pass  # deeper, or with more digits, than Python goes, which says nothing about Arrow
    return flags


def repeated_names(texts: pa.Array, schema: pa.Schema) -> Flags:
    """Which texts, JSON objects in UTF-8, surely name a field of the schema twice, which msgspec does not mind and
    Arrow does. Shape ``(rows,)``.
    """
    flags, often = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    for name in schema.names:
        quoted = json.dumps(name, ensure_ascii=False).encode()
        often |= pc.greater(pc.count_substring(texts, quoted), 1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(often)
    for row, text in zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            counts = Counter(name for name, _ in json.loads(text.decode(), object_pairs_hook=list))
        except (RecursionError, ValueError):
            continue
        flags[row] = any(counts[name] > 1 for name in schema.names)
    return flags


@lru_cache(maxsize=16)
def _decoder(schema: pa.Schema, epoch: TimeUnit | None) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_object_type(schema, epoch), dec_hook=_decimal, float_hook=str)


def _object_type(fields: Iterable[pa.Field], epoch: TimeUnit | None) -> Any:
    """A struct of msgspec with these fields, which it may lack, as it may have others."""
    checked = [field for field in fields if not _NOT_IN_NAMES.search(field.name)]
    names = {f"field_{number}": field.name for number, field in enumerate(checked)}
    types = [_value_type(field.type, epoch) | None for field in checked]
    parts = [(name, kind, None) for name, kind in zip(names, types, strict=True)]
    return msgspec.defstruct("Values", parts, rename=names, gc=False)


def _value_type(kind: pa.DataType, epoch: TimeUnit | None) -> Any:
    """The Python type whose values have at least those of this one, in JSON."""
    if pt.is_struct(kind):
        return _object_type(kind, epoch)
    if pt.is_list(kind):
        return list[_value_type(kind.value_type, epoch) | None]  # type: ignore[misc]
    if pt.is_boolean(kind):
        return bool
    if pt.is_floating(kind):
        return float
    if pt.is_decimal(kind):
        return type("Decimal", (_Digits,), {"precision": kind.precision, "scale": kind.scale})
    if pt.is_timestamp(kind) and epoch is not None:
        return _whole_number(64, signed=True)
    if pt.is_integer(kind):
        return _whole_number(kind.bit_width, signed=pt.is_signed_integer(kind))
    return str


def _whole_number(bits: int, *, signed: bool) -> Any:
    least = -(2 ** (bits - 1)) if signed else 0
    # msgspec has no bound beyond 64 bits with a sign; Arrow refuses what is above.
    most = min(2 ** (bits - signed) - 1, 2**63 - 1) if bits < 64 or signed else None
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


class _Digits:
    """A decimal that has no more digits than its type, which is a class of its own."""

    precision: int
    scale: int


def _decimal(kind: type[_Digits], value: object) -> _Digits:
    """What msgspec calls for a decimal. Raises `ValueError` for what is none; ``value`` is a text or a whole number
    where it may be one.
    """
    text = str(value)
    if type(value) not in (int, str) or _NUMBER.fullmatch(text) is None:
        raise ValueError("no decimal")
    units = Fraction(text) * 10**kind.scale
    # Zeros behind the last digit of the type take no room in it.
    if units.denominator > 1 or abs(units) >= 10**kind.precision:
        raise ValueError("too many digits")
    return kind()
