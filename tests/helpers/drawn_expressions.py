"""Drawn expressions, well typed, over a table with a column of each type; and rows of it with values at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.twins.expressions import CLOCK, DATE, DOUBLE, INSTANT, LONG, SPAN, TEXT
from tidestate.operators.expressions.casts import DAY_LENGTH_US
from tidestate.operators.expressions.tree import CallNode, ColumnNode, ExprNode, LiteralNode, literal_node
from tidestate.operators.zones.installed import installed_rules

DRAWN_COLUMNS = pa.schema(
    {
        "i8": pa.int8(),
        "i16": pa.int16(),
        "i32": pa.int32(),
        "i64": LONG,
        "u8": pa.uint8(),
        "u32": pa.uint32(),
        "u64": pa.uint64(),
        "f32": pa.float32(),
        "f64": DOUBLE,
        "d9": pa.decimal128(9, 2),
        "d18": pa.decimal128(18, 6),
        "s": TEXT,
        "digits": TEXT,
        "flag": pa.bool_(),
        "day": DATE,
        "at": INSTANT,
        "clock": CLOCK,
    }
)
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u32")
"""No type of Spark's; ``u64`` meets signed ones as a decimal, so whole numbers are drawn without it."""
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "America/Sao_Paulo", "Pacific/Apia")
RULES = {zone: installed_rules(zone) for zone in ZONES}
TRUNCATED_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
NAMED_TYPES = (
    *("int8", "int16", "int32", "int64", "float", "double", "string", "bool", "date32[day]"),
    *("decimal128(9, 2)", "decimal128(38, 10)", "decimal128(5, 0)", "timestamp[us, tz=UTC]"),
)
LETTERS = "ab1 ,.-%_ßéıΣ😀'\\\n"
_FIRST, _END = -2_208_988_800, 4_102_444_800  # 1900 to 2100, in seconds


def times() -> st.SearchStrategy[int]:
    """Microseconds: any, near changes of clocks, at midnight."""
    near = [1_774_746_000, 1_792_890_000, 1_325_239_200, 1_321_149_600, 951_782_400, -1, 0]
    near_us = st.builds(
        lambda second, step: (second + step) * 1_000_000, st.sampled_from(near), st.integers(-7300, 7300)
    )
    any_us = st.integers(_FIRST * 1_000_000, _END * 1_000_000)
    return near_us | any_us | st.builds(lambda day: day * DAY_LENGTH_US, st.integers(-25_000, 47_000))


def whole_numbers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [low, low + 1, high, high - 1, *(value for value in (-1, 0, 1, 2, 7, 10) if low <= value)]
    return st.sampled_from(edges) | st.integers(max(low, -1_000), min(high, 1_000)) | st.integers(low, high)


def floats() -> st.SearchStrategy[float]:
    edges = [
        0.0,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        2.675,
        1.005,
        0.5,
        -2.5,
        1e300,
        5e-324,
        2.0**63,
        -(2.0**63),
        1e22,
    ]
    return st.sampled_from(edges) | st.integers(-2_000, 2_000).map(lambda cents: cents / 8) | st.floats()


def texts() -> st.SearchStrategy[str]:
    return st.text(LETTERS, max_size=6) | st.sampled_from(["", "Straße", "ab,c,,d", "ΑΣ", "a%b_c"])


def digit_texts() -> st.SearchStrategy[str]:
    """What reads as a number, a time or a condition, and what nearly does."""
    listed = [
        *(
            "1",
            "-7",
            " 42 ",
            "+5",
            "1.5",
            ".5",
            "1.",
            "1e3",
            "-1E-2",
            "NaN",
            "-inf",
            "Infinity",
            "9" * 25,
            "1_0",
            "x",
            "",
        ),
        *("true", "F", "yes", "2026-03-29", "2026-02-30", "2026-03-29T02:30:00", "2026-03-29 10:00:00.123456Z"),
        *("2026-10-25T02:30:00+02:00", "2011-12-30T12:00:00", "2026-03-29T25:00", "٣"),
    ]
    return st.sampled_from(listed) | st.integers(-(10**6), 10**6).map(str)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    whole = st.integers(-most, most) | st.sampled_from([0, 1, -1, 5, 250, most, -most])
    return whole.map(lambda number: Decimal(number).scaleb(-scale))


DRAWN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{
        name: whole_numbers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for name, bits in zip(SIGNED, (8, 16, 32, 64), strict=True)
    },
    **{name: whole_numbers(0, 2**bits - 1) for name, bits in zip((*UNSIGNED, "u64"), (8, 32, 64), strict=True)},
    "f32": floats().map(lambda value: float(_single(value))),
    "f64": floats(),
    "d9": decimals(9, 2),
    "d18": decimals(18, 6),
    "s": texts(),
    "digits": digit_texts(),
    "flag": st.booleans(),
    "day": st.integers(-25_000, 47_000),
    "at": times(),
    "clock": times(),
}


def _single(value: float) -> Any:
    with np.errstate(over="ignore"):
        return np.float32(value)


def rows(size: int = 8) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows as the twin has them: times in microseconds, dates in days."""
    row = st.fixed_dictionaries({name: st.none() | values for name, values in DRAWN_VALUES.items()})
    return st.lists(row, min_size=1, max_size=size)


def table_of(listed: list[dict[str, Any]]) -> pa.Table:
    columns = [column_of([row[field.name] for row in listed], field.type) for field in DRAWN_COLUMNS]
    return pa.Table.from_arrays(columns, schema=DRAWN_COLUMNS)


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values of the twin as a column."""
    if kind in (INSTANT, CLOCK, SPAN):
        return pa.array(values, LONG).view(kind)
    return pa.array(values, pa.int32()).view(kind) if kind == DATE else pa.array(values, kind)


def call(function: str, *args: ExprNode | object, zone: str | None = None, kind: str | None = None) -> CallNode:
    nodes = [arg if isinstance(arg, ColumnNode | LiteralNode | CallNode) else literal_node(arg) for arg in args]
    return CallNode(function, tuple(nodes), zone, kind)


class Draw:
    """Trees of each kind of value; ``spark``: only what Spark has too."""

    def __init__(self, spark: bool = False) -> None:
        self.spark = spark
        self.zones = st.none() | st.sampled_from(ZONES[:4] if spark else ZONES)
        self.whole_columns = SIGNED if spark else SIGNED + UNSIGNED
        self.of = cache(self._of)

    def any(self, depth: int) -> st.SearchStrategy[ExprNode]:
        kinds = ("number", "bool", "text", "date", "time", "clock")
        return st.one_of([self.of(kind, depth) for kind in kinds])

    def _of(self, kind: str, depth: int) -> st.SearchStrategy[ExprNode]:
        leaves = st.one_of([*self.leaves(kind)])
        if not depth:
            return leaves
        return st.one_of([leaves, *(st.deferred(branch) for branch in self.branches(kind, depth - 1))])

    def leaves(self, kind: str) -> Iterator[st.SearchStrategy[ExprNode]]:
        columns: dict[str, tuple[str, ...]] = {
            "whole": self.whole_columns,
            "float": ("f32", "f64"),
            "decimal": ("d9", "d18"),
            "number": (*self.whole_columns, "f32", "f64", "d9", "d18", *([] if self.spark else ["u64"])),
            "text": ("s", "digits"),
            "bool": ("flag",),
            "date": ("day",),
            "time": ("at",),
            "clock": ("clock",),
        }
        yield st.sampled_from(columns[kind]).map(ColumnNode)
        literals: dict[str, st.SearchStrategy[Any]] = {
            "whole": whole_numbers(-(2**63), 2**63 - 1),
            "float": floats(),
            "decimal": decimals(5, 2),
            "number": whole_numbers(-100, 300),
            "text": texts(),
            "bool": st.booleans() | st.none(),
        }
        if kind in literals:
            yield literals[kind].map(literal_node)

    def branches(self, kind: str, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        """Calls that give this kind; strategies are made when they are drawn from."""
        yield lambda: self.chosen(kind, depth)
        yield from getattr(self, f"{kind}s")(depth)

    def chosen(self, kind: str, depth: int) -> st.SearchStrategy[ExprNode]:
        """What gives the type of its arguments."""
        part, flag = self.of(kind, depth), self.of("bool", depth)
        several = st.sampled_from(["greatest", "least", "coalesce"] if kind != "bool" else ["coalesce"])
        return st.one_of(
            st.builds(lambda name, args: call(name, *args), several, st.lists(part, min_size=2, max_size=3)),
            st.builds(lambda test, a, b: call("when", test, a, b), flag, part, part),
            st.builds(lambda one, other, a, b: call("when", one, a, other, b), flag, flag, part, part),
            st.builds(lambda a, b: call("nullif", a, b), part, part),
        )

    def binary(self, names: list[str], kind: str, depth: int) -> Callable[[], st.SearchStrategy[ExprNode]]:
        part = st.deferred(lambda: self.of(kind, depth))
        return lambda: st.builds(lambda name, a, b: call(name, a, b), st.sampled_from(names), part, part)

    def unary(self, names: list[str], kind: str, depth: int) -> Callable[[], st.SearchStrategy[ExprNode]]:
        part = st.deferred(lambda: self.of(kind, depth))
        return lambda: st.builds(lambda name, a: call(name, a), st.sampled_from(names), part)

    def cast_to(self, kinds: list[str], sources: list[str], depth: int) -> Callable[[], st.SearchStrategy[ExprNode]]:
        parts = st.one_of([st.deferred(lambda source=source: self.of(source, depth)) for source in sources])
        return lambda: st.builds(lambda kind, a: call("cast", a, kind=kind), st.sampled_from(kinds), parts)

    def wholes(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        yield self.binary(["add", "sub", "mul", "int_div", "mod", "pmod"], "whole", depth)
        yield self.unary(["length"], "text", depth)
        yield self.unary(["floor", "ceil"], "float", depth)
        yield self.cast_to(["int8", "int16", "int32", "int64"], ["float", "text", "bool", "decimal", "whole"], depth)
        yield lambda: self.parts("at", depth)
        yield self.binary(["date_diff"], "date", depth)
        yield self.unary(["unix_micros"], "time", depth)
        yield self.unary(["xxhash64", "crc32"], "text", depth)
        yield self.unary(["xxhash64"], "date", depth)

    def parts(self, kind: str, depth: int) -> st.SearchStrategy[ExprNode]:
        names = ["year", "quarter", "month", "day", "day_of_week", "day_of_year", "week", "hour", "minute", "second"]
        names += [] if self.spark else ["iso_year"]
        source = self.of("time", depth) | self.of("date", depth) | self.of("clock", depth)
        return st.builds(lambda name, a, zone: call(name, a, zone=zone), st.sampled_from(names), source, self.zones)

    def floats(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        yield self.binary(["add", "sub", "mul", "div", "mod"], "float", depth)
        yield self.binary(["div"], "whole", depth)
        yield self.unary(["neg", "abs", "sqrt"], "float", depth)
        yield self.cast_to(["float", "double"], ["text", "whole", "decimal", "bool"], depth)
        part = st.deferred(lambda: self.of("float", depth))
        yield lambda: st.builds(lambda a, digits: call("round", a, digits), part, st.integers(0, 6))

    def decimals(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        yield self.binary(["add", "sub", "mul", "div"], "decimal", 0)
        whole = st.deferred(lambda: self.of("whole", 0))
        leaf = st.sampled_from(["d9", "d18"]).map(ColumnNode)
        names = st.sampled_from(["add", "sub", "mul", "div"])
        yield lambda: st.builds(lambda name, a, b: call(name, a, b), names, leaf, whole)
        yield self.unary(["neg", "abs", "floor", "ceil"], "decimal", depth)
        yield self.cast_to(["decimal128(9, 2)", "decimal128(12, 4)"], ["text", "whole", "float", "decimal"], depth)
        part = st.deferred(lambda: self.of("decimal", depth))
        yield lambda: st.builds(lambda a, digits: call("round", a, digits), part, st.integers(0, 4))

    def numbers(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        for kind in ("whole", "float", "decimal"):
            yield lambda kind=kind: self.of(kind, depth)
        mixed = st.deferred(lambda: self.of("whole", depth) | self.of("float", depth))
        names = st.sampled_from(["add", "sub", "mul", "div", "mod"])
        yield lambda: st.builds(lambda name, a, b: call(name, a, b), names, mixed, mixed)

    def bools(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        compared = ["eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe"]
        for kind in ("number", "text", "bool", "date", "time", "clock"):
            yield self.binary(compared, kind, depth)
            yield self.unary(["is_null"], kind, depth)
        yield self.unary(["is_nan"], "float", depth)
        yield self.unary(["not"], "bool", depth)
        flags = st.deferred(lambda: self.of("bool", depth))
        several = st.lists(flags, min_size=2, max_size=4)
        yield lambda: st.builds(lambda name, args: call(name, *args), st.sampled_from(["and", "or"]), several)
        for kind in ("number", "text"):
            part = st.deferred(lambda kind=kind: self.of(kind, depth))
            choices = st.lists(st.deferred(lambda kind=kind: self.of(kind, 0)), min_size=1, max_size=3)
            yield lambda part=part, choices=choices: st.builds(lambda a, b: call("isin", a, *b), part, choices)
            yield lambda part=part: st.builds(lambda a, b, c: call("between", a, b, c), part, part, part)
        text = st.deferred(lambda: self.of("text", depth))
        pattern = st.sampled_from(["a%", "%", "_", "%\\%%", "a_c", "", "%é", "1.5", "%\n%"])
        regular = st.sampled_from(["a+b", "^[0-9]+$", "", "(?i)straße", "[^a]", "\\d{2}"])
        searched = st.sampled_from(["contains", "startswith", "endswith"])
        yield lambda: st.builds(lambda a, b: call("like", a, b), text, pattern)
        yield lambda: st.builds(lambda a, b: call("rlike", a, b), text, regular)
        yield lambda: st.builds(lambda name, a, b: call(name, a, b), searched, text, st.text(LETTERS, max_size=2))
        yield self.cast_to(["bool"], ["text", "whole"], depth)

    def texts(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        text = st.deferred(lambda: self.of("text", depth))
        short, place = st.text("ab,", max_size=2), st.integers(-4, 6)
        yield self.unary(["lower", "upper", "trim", "ltrim", "rtrim"], "text", depth)
        yield lambda: st.builds(lambda a, b, c: call("substring", a, b, c), text, place, place)
        yield lambda: st.builds(lambda a: call("concat", *a), st.lists(text, min_size=1, max_size=3))
        yield lambda: st.builds(lambda a, b: call("concat_ws", a, *b), short, st.lists(text, min_size=1, max_size=3))
        yield lambda: st.builds(lambda a, b, c: call("replace", a, b, c), text, short, short)
        yield lambda: st.builds(lambda a, b, c: call("split_part", a, b, c or 1), text, short, place)
        yield lambda: st.builds(lambda a, b, c: call("lpad", a, b, c), text, st.integers(0, 9), short)
        sources = ["whole", "bool", "date", "time", "clock", "decimal", *([] if self.spark else ["float"])]
        yield self.cast_to(["string"], sources, depth)
        time = st.deferred(lambda: self.of("time", depth) | self.of("date", depth))
        formats = st.sampled_from(["yyyy-MM-dd", "dd.MM.yyyy 'at' HH:mm:ss", "yyyy''MM"])
        yield lambda: st.builds(lambda a, b, zone: call("date_format", a, b, zone=zone), time, formats, self.zones)

    def dates(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        date, text = (st.deferred(lambda kind=kind: self.of(kind, depth)) for kind in ("date", "text"))
        time, clock = (st.deferred(lambda kind=kind: self.of(kind, depth)) for kind in ("time", "clock"))
        days = st.integers(-9_000, 9_000)  # further the twin has no dates
        yield lambda: st.builds(lambda a, zone: call("to_date", a, zone=zone), time | clock | date, self.zones)
        if not self.spark:
            yield lambda: st.builds(lambda a: call("to_date", a), text)
            yield self.cast_to(["date32[day]"], ["text"], depth)
        yield lambda: st.builds(lambda a, b: call("date_add", a, b), st.just(ColumnNode("day")), days)
        units = st.sampled_from(TRUNCATED_UNITS[:5])
        yield lambda: st.builds(lambda unit, a: call("date_trunc", unit, a), units, date)
        yield self.cast_to(["date32[day]"], ["time", "clock"], depth)

    def times(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        time, text = (st.deferred(lambda kind=kind: self.of(kind, depth)) for kind in ("time", "text"))
        clock = st.deferred(lambda: self.of("clock", depth) | self.of("date", depth))
        units = st.sampled_from(TRUNCATED_UNITS)
        yield lambda: st.builds(lambda u, a, zone: call("date_trunc", u, a, zone=zone), units, time, self.zones)
        if not self.spark:
            yield lambda: st.builds(lambda a, zone: call("to_timestamp", a, zone=zone), text | clock, self.zones)
            yield self.cast_to(["timestamp[us, tz=UTC]"], ["text"], depth)
        yield self.cast_to(["timestamp[us, tz=UTC]"], ["date"], depth)
        spans = st.integers(-(10**9), 10**9).map(lambda span: LiteralNode(str(span), "duration[us]"))
        added = st.sampled_from(["add", "sub"])
        yield lambda: st.builds(lambda name, a, b: call(name, a, b), added, time, spans)

    def clocks(self, depth: int) -> Iterator[Callable[[], st.SearchStrategy[ExprNode]]]:
        time, clock = (st.deferred(lambda kind=kind: self.of(kind, depth)) for kind in ("time", "clock"))
        units = st.sampled_from(TRUNCATED_UNITS)
        yield lambda: st.builds(lambda a, zone: call("from_utc", a, zone=zone), time, self.zones)
        yield lambda: st.builds(lambda unit, a: call("date_trunc", unit, a), units, clock)
