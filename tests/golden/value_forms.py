"""Calls of every function of expressions, on every type that it takes, over values at the edges: what
``tests/golden/values.jsonl.gz`` keeps the results of. A form is one call over columns ``a``, ``b`` and ``c``.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.helpers.drawn_expressions import call, column_of
from tests.twins.expressions import CLOCK, DATE, INSTANT, SPAN, plain
from tidestate.operators.expressions.binding import BoundExpression, bind_expression
from tidestate.operators.expressions.names import SIGNATURES
from tidestate.operators.expressions.tree import CallNode, ColumnNode, LiteralNode, stored_tree, tree_of
from tidestate.operators.zones.rules import ZoneRules, rules_from
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import parse_type, type_text

VALUES_FILE = Path(__file__).with_name("values.jsonl.gz")
MOST_ALONE, MOST_OF_PAIRS, MOST_OF_THREES = 6, 5, 4
"""Rows of a form of one column, of two and of three. Functions of texts and times have all values of their type."""
VALUE_ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia")
"""Whole and half hours of summer, one that begins at midnight, a day that was skipped."""


def _us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def _single(*values: float | None) -> list[float | None]:
    return [None if value is None else float(np.float32(value)) for value in values]


def _whole(bits: int, *others: int) -> list[int | None]:
    limit = 2 ** (bits - 1)
    return [None, 0, 1, -1, 7, -7, limit - 1, -limit, *others]


def _unsigned(bits: int) -> list[int | None]:
    return [None, 0, 1, 7, 2 ** (bits - 1), 2**bits - 1]


TIME_EDGES = [
    *(None, 0, -1, -1_500_000, _us("2000-02-29T23:59:59"), _us("2024-12-30T00:00:00") + 123_456),
    # Berlin: a gap, and an hour that is shown twice.
    *(_us("2026-03-29T00:59:59"), _us("2026-03-29T01:00:00"), _us("2026-10-25T00:30:00"), _us("2026-10-25T01:30:00")),
    *(_us("2026-03-08T07:00:00"), _us("2026-11-01T05:30:00"), _us("2026-11-01T06:30:00")),
    *(_us("2026-04-04T14:45:00"), _us("2026-04-04T15:15:00"), _us("2026-10-03T15:30:00")),
    *(_us("2018-11-04T02:59:59"), _us("2018-11-04T03:00:00"), _us("2018-02-18T02:30:00")),
    *(_us("2011-12-30T09:59:59"), _us("2011-12-30T10:00:00"), _us("1901-12-31T23:00:00")),
]
"""Instants; as times without a zone they lie in some of these gaps and folds too."""
LOCAL_TIMES = [
    *(None, 0, -1, _us("2026-03-29T02:30:00"), _us("2026-10-25T02:30:00"), _us("2026-03-08T02:30:00")),
    *(_us("2026-11-01T01:30:00"), _us("2026-04-05T01:45:00"), _us("2026-10-04T02:15:00"), _us("2018-11-04T00:30:00")),
    *(_us("2018-02-17T23:30:00"), _us("2011-12-30T12:00:00"), _us("2024-02-29T12:00:00") + 1),
]
DAY_EDGES = [None, 0, -1, 11_016, 15_338, 17_839, 20_541, -25_000, 47_000]
TEXT_EDGES = [
    *(None, "", "a", "A b", " ab ", "Straße", "ΑΣ", "😀x", "é", "a%b_c", "ab,c,,d", "x\ny"),
    *("1", "-7", " 42 ", "1.5", "-0.0", "1e3", "NaN", "-inf", "9" * 25, "true", "F", "yes"),
    *("2026-03-29", "2026-02-30", "2026-03-29T02:30:00", "2026-10-25T02:30:00+02:00", "2011-12-30T12:00:00"),
]
LIST_EDGES = [None, [], [1], [1, None, 3], [3, 1, 2]]
EDGES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "int8": (pa.int8(), _whole(8)),
    "int16": (pa.int16(), _whole(16)),
    "int32": (pa.int32(), _whole(32)),
    "int64": (pa.int64(), _whole(64, 2**53 + 1)),
    "uint8": (pa.uint8(), _unsigned(8)),
    "uint16": (pa.uint16(), _unsigned(16)),
    "uint32": (pa.uint32(), _unsigned(32)),
    "uint64": (pa.uint64(), _unsigned(64)),
    "float": (pa.float32(), _single(None, 0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, -2.5, 3e38, 1e-38, 2**24)),
    "double": (
        pa.float64(),
        [None, 0.0, -0.0, math.nan, math.inf, -math.inf, 2.675, -2.5, 1e300, 5e-324, 2.0**63, 1e22, 0.1],
    ),
    "decimal9": (
        pa.decimal128(9, 2),
        [None, *map(Decimal, ("0.00", "0.01", "-0.01", "9999999.99", "-9999999.99", "2.50", "-2.55"))],
    ),
    "decimal18": (
        pa.decimal128(18, 6),
        [None, *map(Decimal, ("0.000000", "0.000001", "999999999999.999999", "-1234.500000", "-0.500000"))],
    ),
    "string": (pa.string(), TEXT_EDGES),
    "binary": (pa.binary(), [None, b"", b"ok", b"\xff", b"ab"]),
    "bool": (pa.bool_(), [None, True, False]),
    "date": (DATE, DAY_EDGES),
    "instant": (INSTANT, TIME_EDGES),
    "clock": (CLOCK, LOCAL_TIMES),
    "span": (SPAN, [None, 0, 1, -1, 86_400_000_000, -3_600_000_000, 2**63 - 1]),
    "list": (pa.list_(pa.int64()), LIST_EDGES),
    "map": (pa.map_(pa.string(), pa.int64()), [None, [], [("a", 1)], [("b", None), ("a", -1)]]),
    "struct": (
        pa.struct({"x": pa.int64(), "é y": pa.string()}),
        [None, {"x": 1, "é y": "z"}, {"x": None, "é y": None}],
    ),
}
"""By name a type, and values of it as the twin has them: times in microseconds, dates in days."""
NUMBER_NAMES = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float",
    "double",
    "decimal9",
)
PARTNERS = ("int64", "double", "decimal9")
"""What numbers of other types meet."""
MIXED = ("eq", "lt", "add", "mul", "div", "mod", "coalesce", "greatest", "pow", "nullif")
"""Functions for which they do."""
EXHAUSTIVE = ("cast", "abs", "floor", "round", "length", "lower", "upper", "trim", "substring", "like", "rlike")
CAST_TARGETS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint64", "float", "double", "bool", "string", "date32[day]"),
    *("decimal128(9, 2)", "decimal128(38, 10)", "timestamp[us, tz=UTC]", "timestamp[us]"),
)
A, B, C = map(ColumnNode, "abc")


@dataclass(frozen=True)
class Form:
    """A call over columns of these types."""

    tree: CallNode
    types: tuple[str, ...]
    """Names of `EDGES`, of the columns in their order."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({name: EDGES[kind][0] for name, kind in zip("abc", self.types, strict=False)})

    @property
    def key(self) -> str:
        """What it is told from others by."""
        return _key(self.tree, self.schema)

    def bound(self, zones: Mapping[str, ZoneRules]) -> BoundExpression | None:
        """It bound to its columns; None where the function does not take them."""
        try:
            return bind_expression(self.tree, self.schema, zones)
        except UsageError:
            return None

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows it is computed for: of several columns values that take turns, in steps that differ by form."""
        values = [EDGES[kind][1] for kind in self.types]
        function = self.tree.function
        if len(values) == 1 and (SIGNATURES[function].takes_zone or function in EXHAUSTIVE):
            return [(value,) for value in values[0]]
        number = zlib.crc32(self.key.encode())
        most = (MOST_ALONE, MOST_OF_PAIRS, MOST_OF_THREES)[len(values) - 1]
        steps = [1, 1 + number % 5, 2 + number % 3]
        return [
            tuple(
                edges[(step * row + number // 7 * (row > 0)) % len(edges)]
                for edges, step in zip(values, steps, strict=False)
            )
            for row in range(most)
        ]

    def table(self, rows: Sequence[Sequence[Any]]) -> pa.Table:
        """Such rows as a table."""
        return _table(self.schema, rows)


def _key(tree: CallNode, schema: pa.Schema) -> str:
    return json.dumps([stored_tree(tree), *(type_text(field.type) for field in schema)], ensure_ascii=False)


def _table(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    columns = [column_of([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def results(bound: BoundExpression, rows: pa.Table) -> list[Any]:
    """What it gives for these rows, as the twin has values."""
    return [plain(value) for value in bound.evaluate(rows)]


def forms(zones: Mapping[str, ZoneRules]) -> Iterator[tuple[Form, BoundExpression]]:
    """All that bind, each once."""
    seen = set[str]()
    for form in _proposed():
        bound = form.bound(zones) if form.key not in seen else None
        seen.add(form.key)
        if bound is not None:
            yield form, bound


def _proposed() -> Iterator[Form]:
    """More than bind: which types a function takes is for it to say."""
    for name, signature in SIGNATURES.items():
        if name == "cast":
            yield from (Form(call(name, A, kind=kind), (source,)) for source, kind in product(EDGES, CAST_TARGETS))
        elif signature.takes_zone and signature.minimum == 1:
            yield from _zoned(name)
        elif signature.minimum == 1:
            yield from (Form(call(name, A), (kind,)) for kind in EDGES)
        if signature.minimum <= 2 and signature.maximum != 1 and not signature.takes_zone:
            yield from _pairs(name)
    yield from _threes()
    yield from _with_literals()


def _zoned(name: str) -> Iterator[Form]:
    for kind in EDGES:
        yield Form(call(name, A), (kind,))
    kinds = ("instant", "clock", "date", "string") if name == "to_timestamp" else ("instant",)
    few = (
        VALUE_ZONES if name in ("hour", "to_date", "to_timestamp", "from_utc") else (VALUE_ZONES[0], VALUE_ZONES[-1])
    )
    yield from (Form(call(name, A, zone=zone), (kind,)) for kind, zone in product(kinds, few))


def _pairs(name: str) -> Iterator[Form]:
    for kind in EDGES:
        yield Form(call(name, A, B), (kind, kind))
    if name in ("concat", "and", "or", "isin", "when"):
        return
    for kind, partner in product(NUMBER_NAMES, PARTNERS) if name in MIXED else ():
        yield Form(call(name, A, B), (kind, partner))
    for left, right in product(("date", "instant", "clock", "span"), repeat=2):
        yield Form(call(name, A, B), (left, right))


def _threes() -> Iterator[Form]:
    for kind in EDGES:
        yield Form(call("between", A, B, C), (kind,) * 3)
        yield Form(call("isin", A, B, C), (kind,) * 3)
        yield Form(call("when", A, B, C), ("bool", kind, kind))
        yield Form(call("when", A, B), ("bool", kind))
        yield Form(call("coalesce", A, B, C), (kind,) * 3)
    for name in ("and", "or"):
        yield Form(call(name, A, B, C), ("bool",) * 3)
    yield Form(call("concat", A, B, C), ("string",) * 3)
    yield Form(call("greatest", A, B, C), ("int8", "double", "decimal9"))
    yield Form(call("least", A, B, C), ("uint8", "int64", "int16"))


def _with_literals() -> Iterator[Form]:
    yield from (Form(call(name, A, number), (kind,)) for name, number, kind in product(*_NUMBER_CALLS))
    yield from (Form(call(name, A, text), ("string",)) for name, text in product(*_SEARCHES))
    yield from (Form(call("like", A, pattern), ("string",)) for pattern in ("a%", "%_", "a\\%b\\_c", "", "%é", "x_y"))
    yield from (Form(call("rlike", A, pattern), ("string",)) for pattern in ("^[0-9]+$", "(?i)straße", "", "[^a]b"))
    for start, length in ((1, 2), (0, 1), (-2, 1), (-2, 9), (3, 0), (2, -1), (99, 1), (-99, 99)):
        yield Form(call("substring", A, start, length), ("string",))
    for search, other in (("a", "é"), ("", "x"), ("ab", ""), ("ß", "ss")):
        yield Form(call("replace", A, search, other), ("string",))
    for separator, place in ((",", 1), (",", 3), (",", -1), ("", 1), (",c", 2), (" ", 9)):
        yield Form(call("split_part", A, separator, place), ("string",))
    yield from (
        Form(call("lpad", A, width, fill), ("string",)) for width, fill in ((5, "*"), (3, "é1"), (0, "x"), (4, ""))
    )
    yield from (Form(call("concat_ws", separator, A, B), ("string", "string")) for separator in ("", "-", "😀"))
    for digits, kind in product((0, 1, 2, 6), ("float", "double", "decimal9", "decimal18", "int64")):
        yield Form(call("round", A, digits), (kind,))
    yield from _of_times()
    yield from _of_nested()


_NUMBER_CALLS: tuple[Sequence[str], Sequence[Any], Sequence[str]] = (
    ("eq", "lt", "add", "mul", "div", "int_div", "mod", "pmod", "coalesce", "nullif", "isin"),
    (0, 200, 1.5, None),
    ("int8", "int64", "uint8", "double", "decimal9"),
)
_SEARCHES = (("contains", "startswith", "endswith", "eq", "ge"), ("a", "", "é", "ß", "😀"))


def _of_times() -> Iterator[Form]:
    units = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
    for unit in units:
        yield from (Form(call("date_trunc", unit, A), (kind,)) for kind in ("instant", "clock", "date"))
        yield from (Form(call("date_trunc", unit, A, zone=zone), ("instant",)) for zone in VALUE_ZONES)
    for pattern in ("yyyy-MM-dd HH:mm:ss", "dd.MM.yyyy 'um' HH", "yyyy''MM"):
        yield from (Form(call("date_format", A, pattern), (kind,)) for kind in ("instant", "clock", "date"))
        yield from (Form(call("date_format", A, pattern, zone=zone), ("instant",)) for zone in VALUE_ZONES)
    yield from (Form(call("date_add", A, days), ("date",)) for days in (0, 1, -366, 9_000))
    yield from (Form(call("date_add", A, B), ("date", kind)) for kind in ("int8", "int16"))
    for name, span in product(("add", "sub"), (1, -86_400_000_000, 10**9)):
        literal = LiteralNode(str(span), "duration[us]")
        yield from (Form(call(name, A, literal), (kind,)) for kind in ("instant", "clock", "span"))
    for name, text in product(("eq", "lt", "ge"), ("2026-03-29", "2026-03-29T01:00:00")):
        yield from (Form(call(name, A, text), (kind,)) for kind in ("instant", "clock", "date"))


def _of_nested() -> Iterator[Form]:
    yield from (Form(call("element_at", A, place), ("list",)) for place in (1, 2, -1, -3, 9))
    yield from (Form(call("element_at", A, key), ("map",)) for key in ("a", "b", "é"))
    yield from (Form(call("array_contains", A, value), ("list",)) for value in (1, 3, 9))
    yield from (Form(call("field", A, name), ("struct",)) for name in ("x", "é y"))


@dataclass(frozen=True)
class KeptForm:
    """A form as the file has it, with its results. ``basis``: what they were compared with when they were made,
    "spark", or the twin and why not Spark.
    """

    tree: CallNode
    schema: pa.Schema
    type: pa.DataType
    rows: list[list[Any]]
    results: list[Any]
    basis: str

    @property
    def key(self) -> str:
        """What it is told from other forms by."""
        return _key(self.tree, self.schema)

    def table(self) -> pa.Table:
        """The rows as a table of its columns."""
        return _table(self.schema, self.rows)


def line_of(form: KeptForm) -> str:
    """A form as a line of JSON."""
    stored = {
        "call": stored_tree(form.tree),
        "columns": [type_text(field.type) for field in form.schema],
        "type": type_text(form.type),
        "basis": form.basis,
        "rows": [
            [*(as_json(value) for value in row), as_json(result)]
            for row, result in zip(form.rows, form.results, strict=True)
        ],
    }
    return json.dumps(stored, ensure_ascii=False, separators=(",", ":"))


def form_of(line: str) -> KeptForm:
    """The form of such a line."""
    stored = json.loads(line)
    kinds, kind = [parse_type(text) for text in stored["columns"]], parse_type(stored["type"])
    tree = tree_of(stored["call"])
    assert isinstance(tree, CallNode)
    return KeptForm(
        tree,
        pa.schema(dict(zip("abc", kinds, strict=False))),
        kind,
        [[of_json(one, value) for one, value in zip(kinds, row, strict=False)] for row in stored["rows"]],
        [of_json(kind, row[-1]) for row in stored["rows"]],
        stored["basis"],
    )


def as_json(value: Any) -> Any:
    """A value as the file has it: floats, decimals and bytes as texts."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return {name: as_json(part) for name, part in value.items()} if isinstance(value, dict) else value


def of_json(kind: pa.DataType, value: Any) -> Any:
    """The value of a type that `as_json` made so."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_binary(kind):
        return bytes.fromhex(value)
    return list(map(tuple, value)) if pa.types.is_map(kind) else value


def pack(zones: Mapping[str, ZoneRules], kept: Sequence[KeptForm]) -> None:
    """Write the file: the rules of the zones, then a line a form; the same bytes for the same forms."""
    first = json.dumps({name: rules.text for name, rules in zones.items()})
    data = "\n".join([first, *map(line_of, kept), ""]).encode()
    VALUES_FILE.write_bytes(gzip.compress(data, 9, mtime=0))


@cache
def unpack() -> tuple[dict[str, ZoneRules], tuple[KeptForm, ...]]:
    """The rules by which zones are meant there, and the forms; nothing where there is no file yet."""
    if not VALUES_FILE.exists():
        return {}, ()
    first, *lines = gzip.decompress(VALUES_FILE.read_bytes()).decode().rstrip("\n").split("\n")
    zones = {name: rules_from(name, text) for name, text in json.loads(first).items()}
    return zones, tuple(map(form_of, lines))
