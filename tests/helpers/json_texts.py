"""Drawn JSON texts by a drawn schema, most of them objects of it, and some damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

TIME_ZONED = pa.timestamp("us", "UTC")
_LEAVES = (
    pa.int64(),
    pa.int8(),
    pa.uint16(),
    pa.float64(),
    pa.float32(),
    pa.string(),
    pa.bool_(),
    TIME_ZONED,
    pa.date32(),
    pa.decimal128(10, 2),
    pa.decimal128(38, 10),
)
_NAMES = ("a", "b", "value", "é", "A", "c.d")
# What ends a string or an object in a parser that looks for brackets alone.
_TEXTS = (
    *("", "x", "é", "𝄞", "\0", "}", "{", "\\", '"', "a}b{", "null"),
    *("2024-01-01", "2024-01-01T10:00:00Z", "2024-01-01 10:00:00.123456789+01:00", "2024-02-30", "2024-01-01T24:00Z"),
    *("1.50", "1e3", "01.5", "+5", ".5", "5."),
)
# On and beside the bounds of each type.
_NUMBERS = (
    *("0", "-0", "1", "-1", "127", "128", "-128", "65535", "65536", "9223372036854775807", "9223372036854775808"),
    *("1.5", "1.0", "1e2", "1E+2", "-0.0", "1e400", "NaN", "Infinity", "-Infinity", "0.001", "123456789.12", "1e38"),
    *("123456789012345678901234567890", "1e-400", "3.4e39", "12345678e2"),
    # The largest power of ten that a double holds, and what is beyond it with all its digits.
    *("1.7e308", "1.8e308", "17976931348623157e292", "17976931348623159e+0292", "99999999999999999999.5"),
    *("1" + 308 * "0", "1" + 309 * "0", 400 * "9", "-" + 309 * "9" + ".0", "0." + 400 * "1"),
)
# Put in anywhere: halves of characters, marks of JSON, comments, a second object.
_DAMAGE = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"\n", b" ", b"\t", b"\0", b"\1", b"\xff", b"\xc3"),
    *(rb"\ud800", rb"\udc00", rb"\u0041", rb"\ud834\udd1e", b"\xef\xbb\xbf", b"1", b"-", b".", b"e", b"{}", b"{}{}"),
    *(b"/", b"//x\n", b"'", b"true", b"{}null{}"),
)


class Drawing:
    """Types, objects and texts of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)

    def schema(self) -> pa.Schema:
        names = self._chance.sample(_NAMES, self._chance.randint(1, 4))
        return pa.schema([(name, self.kind()) for name in names])

    def epoch(self) -> Any:
        return self._chance.choice((None, None, None, "s", "ms", "us", "ns"))

    def kind(self, depth: int = 0) -> pa.DataType:
        share = self._chance.random() if depth < 2 else 1
        if share < 0.12:
            return pa.list_(self.kind(depth + 1))
        if share < 0.24:
            names = self._chance.sample(("x", "y", "é"), self._chance.randint(1, 2))
            return pa.struct([(name, self.kind(depth + 1)) for name in names])
        return self._chance.choice(_LEAVES)

    def values(self, schema: pa.Schema) -> list[bytes | None]:
        return [self.value(schema) for _ in range(self._chance.choice((1, 2, 5, 30)))]

    def value(self, schema: pa.Schema) -> bytes | None:
        # Half of a pair of surrogates has no other encoding.
        text = self._object(list(schema)).encode("utf-8", "surrogatepass")
        text = self._chance.choice((b"", b"", b" ", b"\n")) + text + self._chance.choice((b"", b"", b"\n"))
        share = self._chance.random()
        if share < 0.03:
            return None
        return self._damaged(text) if share < 0.3 else text

    def _damaged(self, text: bytes) -> bytes:
        for _ in range(self._chance.randint(1, 3)):
            place, share = self._chance.randint(0, len(text)), self._chance.random()
            if share < 0.5:
                text = text[:place] + self._chance.choice(_DAMAGE) + text[place:]
            elif share < 0.8:
                text = text[:place] + text[place + self._chance.randint(1, 4) :]
            else:
                text = text[:place]
        return text

    def _object(self, fields: Sequence[pa.Field]) -> str:
        parts = []
        for field in fields:
            if self._chance.random() < 0.85:
                name = json.dumps(field.name, ensure_ascii=self._chance.random() < 0.5)
                parts.append(name + self._chance.choice((":", ": ", " :\n")) + self._of(field.type))
        if self._chance.random() < 0.2:
            parts.append('"other":' + self._of(self.kind()))
        if self._chance.random() < 0.02:
            parts.append('"other":1,"other":2')
        if parts and self._chance.random() < 0.03:
            parts.append(parts[0])
        self._chance.shuffle(parts)
        return "{" + ",".join(parts) + "}"

    def _of(self, kind: pa.DataType) -> str:
        share = self._chance.random()
        if share < 0.1:
            return "null"
        if share < 0.15:
            # A value of another type than the field's.
            kind = self.kind(2)
        if pt.is_list(kind):
            return "[" + ",".join(self._of(kind.value_type) for _ in range(self._chance.randint(0, 3))) + "]"
        if pt.is_struct(kind):
            return self._object(list(kind))
        if pt.is_string(kind):
            return json.dumps(self._chance.choice(_TEXTS), ensure_ascii=self._chance.random() < 0.5)
        if pt.is_timestamp(kind):
            return self._instant()
        if pt.is_date32(kind):
            return f'"{self._day()}"'
        return self._chance.choice(("true", "false") if pt.is_boolean(kind) else _NUMBERS)

    def _instant(self) -> str:
        draw = self._chance.randint
        if self._chance.random() < 0.15:
            return str(draw(-(10 ** draw(1, 19)), 10 ** draw(1, 19)))
        text = self._day()
        if self._chance.random() < 0.9:
            most = self._chance.choice((23, 24, 59))
            text += self._chance.choice("T  t") + ":".join(f"{draw(0, most):02d}" for _ in range(draw(1, 3)))
            if self._chance.random() < 0.3:
                text += "." + "".join(str(draw(0, 9)) for _ in range(draw(0, 10)))
        return f'"{text}{self._chance.choice(("", "Z", "Z", "z", " Z", "+01:00", "-0530", "+01", "+24:00", "+1"))}"'

    def _day(self) -> str:
        year = self._chance.choice((2024, 1969, 1, 9999, 2023))
        return f"{year:04d}-{self._chance.randint(1, 13):02d}-{self._chance.randint(1, 31):02d}"
