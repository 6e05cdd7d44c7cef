"""A case's values as Arrow columns and back, and when two values count as equal."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

Shape = Literal["value", "values", "ordered", "counts", "number", "total"]
"""What an aggregate answers: an input value, several (a multiset, or in order), counts per value, a number, or a
total (a number that nothing at all may stand for)."""


@dataclass(frozen=True)
class Codec:
    """An Arrow type, and how values of JSON go in and come out."""

    type: pa.DataType
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    comparable: bool = True

    def column(self, values: Sequence[Any]) -> pa.Array:
        """Values as a column of this type."""
        return pa.array([None if value is None else self.encode(value) for value in values], self.type)


def codec_for(values: Sequence[Any], *, key: bool = False, flat: bool = False) -> Codec:
    """The plainest type that holds all of ``values``: numbers, text, rows of fields; else JSON text.

    A ``key`` is a whole number or text; with ``flat`` there are no rows of fields.
    """
    given = [value for value in values if value is not None]
    kinds = {type(value) for value in given}
    if kinds <= {int} and all(-(2**63) <= value < 2**63 for value in given):
        return _plain(pa.int64())
    if kinds == {str}:
        return _plain(pa.string())
    if not key and kinds == {bool}:
        return _plain(pa.bool_())
    if not key and kinds <= {int} and all(abs(value) < 10**38 for value in given):
        return Codec(pa.decimal128(38, 0), Decimal, int)
    if not key and kinds <= {int, float}:
        return Codec(pa.float64(), float, _same)
    rows = None if key or flat else _rows(given, kinds)
    return rows or Codec(pa.string(), lambda value: json.dumps(value, sort_keys=True), json.loads, flat or key)


def order(value: Any) -> bytes:
    """Bytes that compare as the value does: numbers, text, and lists of them from left to right."""
    if value is None:
        return b"\x00"
    if isinstance(value, int | float):
        bits = int.from_bytes(struct.pack(">d", value))
        return b"\x01" + ((~bits if bits >> 63 else bits | 1 << 63) & (1 << 64) - 1).to_bytes(8)
    if isinstance(value, str):
        return b"\x02" + value.encode() + b"\x00"
    parts = [part for pair in sorted(value.items()) for part in pair] if isinstance(value, dict) else value
    return b"\x03" + b"".join(map(order, parts)) + b"\x00"


def _rows(given: list[Any], kinds: set[type]) -> Codec | None:
    """Lists of one length, or objects of one set of names, as structs."""
    if kinds == {list} and len({len(value) for value in given}) == 1 and given[0]:
        fields = [codec_for(column) for column in zip(*given, strict=True)]
        names = [f"f{number}" for number in range(len(fields))]
        return Codec(
            pa.struct(list(zip(names, (field.type for field in fields), strict=True))),
            lambda value: {n: _in(f, v) for n, f, v in zip(names, fields, value, strict=True)},
            lambda row: [_out(f, row[n]) for n, f in zip(names, fields, strict=True)],
            comparable=False,
        )
    if kinds == {dict} and len({tuple(sorted(value)) for value in given}) == 1 and given[0]:
        named = {name: codec_for([value[name] for value in given]) for name in sorted(given[0])}
        return Codec(
            pa.struct([(name, field.type) for name, field in named.items()]),
            lambda value: {name: _in(field, value[name]) for name, field in named.items()},
            lambda row: {name: _out(field, row[name]) for name, field in named.items()},
            comparable=False,
        )
    return None


def _in(codec: Codec, value: Any) -> Any:
    return None if value is None else codec.encode(value)


def _out(codec: Codec, value: Any) -> Any:
    return None if value is None else codec.decode(value)


def _same(value: Any) -> Any:
    return value


def _plain(kind: pa.DataType) -> Codec:
    return Codec(kind, _same, _same)


def decoded(shape: Shape, codec: Codec, found: Any) -> Any:
    """An aggregate's result as the case writes it."""
    if found is None or shape in ("number", "total"):
        return int(found) if isinstance(found, Decimal) and found == found.to_integral_value() else found
    if shape == "value":
        return codec.decode(found)
    if shape == "counts":
        pairs = found.items() if isinstance(found, dict) else (_pair(entry) for entry in found)
        return {_name(codec.decode(value)): number for value, number in pairs}
    return [_out(codec, value) for value in found]


def _pair(entry: Any) -> tuple[Any, Any]:
    value, number = entry.values() if isinstance(entry, dict) else entry
    return value, number


def _name(value: Any) -> str:
    """As a key of a JSON object."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def same(expected: Any, found: Any, shape: Shape = "value") -> bool:
    """Whether a result is the expected one. ``values`` compare as multisets, numbers up to the last bits.

    The sum of nothing is null by the rules of SQL and 0 in most peers: both count as nothing.
    """
    if shape == "total" and expected in (None, 0) and found in (None, 0):
        return True
    if shape == "values" and isinstance(expected, list) and isinstance(found, list):
        return same_multiset(expected, found, same)
    return _equal(expected, found)


def _equal(expected: Any, found: Any) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return expected == found or math.isclose(expected, found, rel_tol=1e-12, abs_tol=0.0)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_equal, expected, found))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_equal(expected[name], found[name]) for name in expected)
    return type(expected) is type(found) and bool(expected == found)


def same_multiset(expected: Sequence[Any], found: Sequence[Any], matches: Callable[[Any, Any], bool]) -> bool:
    """Whether each expected thing can be paired with a found one of its own, none left over."""
    if len(expected) != len(found):
        return False
    candidates = [[at for at, other in enumerate(found) if matches(wanted, other)] for wanted in expected]
    owner: dict[int, int] = {}

    def place(wanted: int, tried: set[int]) -> bool:
        for at in candidates[wanted]:
            if at not in tried:
                tried.add(at)
                if at not in owner or place(owner[at], tried):
                    owner[at] = wanted
                    return True
        return False

    return all(place(wanted, set()) for wanted in range(len(expected)))
