"""JSON objects as columns: each value as a parser for one value at a time reads it, whatever stands beside it."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.json_texts import TIME_ZONED, Drawing
from tests.twins.json_values import as_moment, naive_row
from tidestate.operators.stages import json_types, json_values
from tidestate.operators.stages.bad_rows import failing_rows
from tidestate.operators.stages.json_types import why_not_json
from tidestate.operators.stages.json_values import JsonReader

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def column(values: list[bytes | None], *cuts: int) -> pa.ChunkedArray:
    whole = pa.array(values, pa.binary())
    edges = [0, *cuts, len(whole)]
    return pa.chunked_array([whole[start:end] for start, end in pairwise(edges)], pa.binary())


def counted(kind: pa.DataType) -> pa.DataType:
    """The type with whole numbers for timestamps."""
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(counted(kind.value_type)))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(counted(field.type)) for field in kind])
    return pa.int64() if pt.is_timestamp(kind) else kind


def comparable(value: Any, kind: pa.DataType) -> Any:
    """A float as its column has it, and NaN as a text, which equals itself."""
    if isinstance(value, dict):
        return {field.name: comparable(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [comparable(item, kind.value_type) for item in value]
    if isinstance(value, float):
        narrow = float(np.float32(value)) if pt.is_float32(kind) else value
        return "NaN" if math.isnan(narrow) else narrow
    return value


def decoded(schema: pa.Schema, values: list[bytes | None], epoch: Any = None) -> list[dict[str, Any] | None]:
    """The row of each value, None of one that is no object."""
    table, found = JsonReader(schema, epoch).read(column(values))
    table.validate(full=True)
    assert table.schema == schema
    plain = pa.schema([field.with_type(counted(field.type)) for field in schema])
    rows = iter(table.cast(plain).to_pylist())
    flags = [True] * len(values) if found is None else found.tolist()
    return [next(rows) if flag else None for flag in flags]


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_every_value_is_read_as_by_a_parser_of_one(seed: int) -> None:
    drawing = Drawing(seed)
    schema, epoch = drawing.schema(), drawing.epoch()
    values = drawing.values(schema)
    kind = pa.struct(list(schema))
    wanted = [naive_row(value, schema, epoch) for value in values]
    with np.errstate(over="ignore"):
        assert [comparable(row, kind) for row in decoded(schema, values, epoch)] == [
            comparable(row, kind) for row in wanted
        ]


def varied(kind: pa.DataType, chance: Random) -> pa.DataType:
    """A type of the same kind of values, with other bounds."""
    if pt.is_timestamp(kind):
        return pa.timestamp(chance.choice(("s", "ms", "us", "ns")), "UTC")
    if pt.is_decimal(kind):
        precision = chance.randint(1, 38)
        return pa.decimal128(precision, chance.randint(0, precision))
    return kind


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_what_is_refused_without_arrow_arrow_refuses(seed: int) -> None:
    """Both as they search in whole columns, and as Arrow alone would find each row by halves."""
    drawing, chance = Drawing(seed), Random(seed)
    schema, epoch = drawing.schema(), drawing.epoch()
    values = [value for _ in range(4) for value in drawing.values(schema)]
    # Other units and digits than those that the values were drawn for.
    schema = pa.schema([field.with_type(varied(field.type, chance)) for field in schema])
    kind = pa.struct(list(schema))
    rows = decoded(schema, values, epoch)
    with (
        patch.object(json_values, "refused_values", lambda texts, *_: np.zeros(len(texts), bool)),
        patch.object(json_values, "repeated_names", lambda texts, **_: np.zeros(len(texts), bool)),
        patch.object(json_types, "_misfits", lambda values, *_: np.zeros(len(values), bool)),
    ):
        by_halves = decoded(schema, values, epoch)
    assert [comparable(row, kind) for row in rows] == [comparable(row, kind) for row in by_halves]


BAD_VALUES = {
    "text": b"a line of a log",
    "cut off": b'{"n":1,"s":"x"',
    "another kind": b'{"n":"x"}',
    "a number that is too large": b'{"n":9223372036854775808}',
    "a fraction": b'{"n":1.0}',
    "two of a name": b'{"n":1,"n":2}',
    "no UTF-8": b'{"s":"\xff"}',
    "no day": b'{"d":"2023-02-29"}',
    "no instant": b'{"t":"2024-04-31T00:00:00Z"}',
    "no instant of its type": b'{"f":"9999-12-31T00:00:00Z"}',
    "no day in a list": b'{"l":[{"d":"2024-13-01"}]}',
    "too many digits": b'{"m":123456}',
    "too many digits behind the point": b'{"m":"1.505"}',
    "too many digits behind an exponent": b'{"m":15e-4}',
    "no decimal": b'{"m":"much"}',
}


@pytest.mark.parametrize("share", [1, 50])
@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES)
def test_bad_values_take_as_many_calls_as_blocks(value: bytes, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as many as bad values, of which a topic of another format has nothing else."""
    monkeypatch.setattr(json_values, "PARSED_ROWS", 500)
    schema = pa.schema(
        [
            *(("n", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("t", TIME_ZONED)),
            *(("f", pa.timestamp("ns", "UTC")), ("m", pa.decimal128(5, 2))),
            ("l", pa.list_(pa.struct([("d", pa.date32())]))),
        ]
    )
    calls = list[str]()
    for module, name in ((JsonReader, "_read"), (json_types, "_attempt")):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, call=original: calls.append("call") or call(*args))
    values = [value if number % share == 0 else b'{"n":%d}' % number for number in range(2000)]
    _, flags = JsonReader(schema).read(column(values))
    assert flags is not None
    assert flags.tolist() == [number % share != 0 for number in range(2000)]
    assert len(calls) <= 4 * (4 + 2 * len(schema)), "four blocks; in each some calls, and some for a column"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"null",
        b"5",
        b"[]",
        b'"text"',
        b"oops",
        b"{",
        b'{"a":1',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":1}{"a":2}',
        b'{"a":1}\n{"a":2}',
        b"{}null{}",
        b"{} 5",
        b'{"a":1} // no comment',
        b"\xef\xbb\xbf{}",
        b'{"a":1}\0',
        b'{"other":"\xff"}',
        b'{"b":"\x01"}',
        rb'{"b":"\ud800"}',
        b'{"a":"1"}',
        b'{"a":1.0}',
        b'{"a":9223372036854775808}',
        b'{"b":5}',
        b'{"b":{"c":1}}',
        b'{"b":true}',
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"other":1e999}',
    ],
)
def test_what_is_no_such_object_takes_no_neighbour_along(value: bytes) -> None:
    good = [b'{"a":%d,"b":"}{"}' % number for number in range(7)]
    for place in (0, 3, 7):
        values = [*good[:place], value, *good[place:]]
        wanted: list[dict[str, Any] | None] = [{"a": number, "b": "}{"} for number in range(7)]
        wanted.insert(place, None)
        assert decoded(SCHEMA, values) == wanted


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (None, {"a": None, "b": None}),
        (b"{}", {"a": None, "b": None}),
        (b'{"a":null}', {"a": None, "b": None}),
        (b' \r\n\t{ "b" :\n"x" } \n', {"a": None, "b": "x"}),
        (b'{"other":{"a":[1,{"b":2}]},"a":-5}', {"a": -5, "b": None}),
        (b'{"other":1,"other":2,"a":3}', {"a": 3, "b": None}),
        (rb'{"\u0061":1,"b":"\ud834\udd1e\u0000\/"}', {"a": 1, "b": "𝄞\0/"}),
        (b'{"other":[-Inf,NaN , Infinity],"b":"NaN"}', {"a": None, "b": "NaN"}),
        (b'{"A":1,"b":""}', {"a": None, "b": ""}),
        (b'{"other":' + b"[" * 5000 + b"]" * 5000 + b"}", {"a": None, "b": None}),
        (b'{"other":NaN}', {"a": None, "b": None}),
        (b'{"b":"} x"}', {"a": None, "b": "} x"}),
        (rb'{"b":"\"} x"}', {"a": None, "b": '"} x'}),
    ],
)
def test_objects(value: bytes | None, row: dict[str, Any]) -> None:
    # No object at all, and one of another kind, which takes another way.
    assert decoded(SCHEMA, [value, b"bad", b'{"a":"x"}', value]) == [row, None, None, row]


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2024-01-31T10:20:30Z", "2024-01-31T10:20:30+00:00"),
        ("2024-01-31 10:20:30", "2024-01-31T10:20:30+00:00"),
        ("2024-01-31", "2024-01-31T00:00:00+00:00"),
        ("2024-01-31T10", "2024-01-31T10:00:00+00:00"),
        ("2024-01-31T10:20-01:30", "2024-01-31T11:50:00+00:00"),
        ("2024-01-31T10:20:30.123456789+0100", "2024-01-31T09:20:30.123456+00:00"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999+00:00"),
        ("9999-12-31t23:59:59z", "9999-12-31T23:59:59+00:00"),
        ("2000-02-29T23:59:59+23:59", "2000-02-29T00:00:59+00:00"),
        ("2024-02-30T00:00:00Z", None),
        ("1900-02-29T00:00:00Z", None),
        ("2024-01-31T24:00:00Z", None),
        ("2024-01-31T10:20:60Z", None),
        ("31.1.2024", None),
        ("", None),
    ],
)
def test_instants(text: str, instant: str | None) -> None:
    schema = pa.schema([("t", TIME_ZONED)])
    for other in ('"2024-01-01T00:00:00Z"', '"2024-01-01"', '"nothing"', "5"):  # each takes another way through Arrow
        row = decoded(schema, [b'{"t":"%s"}' % text.encode(), b'{"t":%s}' % other.encode()])[0]
        assert (row and as_moment(row["t"]).isoformat()) == instant


def test_a_decimal_has_no_more_digits_than_its_type() -> None:
    schema = pa.schema([("d", pa.decimal128(10, 2))])
    values = [b'{"d":12345678e2}', b'{"d":1234567e1}', b'{"d":"0.50"}', b'{"d":1.505}', b'{"d":99999999.99}']
    found = [row and str(row["d"]) for row in decoded(schema, values)]
    assert found == [None, "12345670.00", "0.50", None, "99999999.99"]
    assert decoded(schema, values[:1]) == [None], "Arrow alone would take it"


def test_numbers_that_are_times() -> None:
    schema = pa.schema([("t", TIME_ZONED), ("l", pa.list_(TIME_ZONED))])
    for epoch, number, us in (("s", -1, -1_000_000), ("ms", 5, 5000), ("us", 5, 5), ("ns", -1, -1), ("ns", 1999, 1)):
        value = b'{"t":%d,"l":[%d,null]}' % (number, number)
        assert decoded(schema, [value], epoch) == [{"t": us, "l": [us, None]}]
        assert decoded(schema, [value]) == [None]
        assert decoded(schema, [b'{"t":"2024-01-01"}', b'{"t":1.5}', b'{"t":%d}' % 2**63], epoch) == [None] * 3
    assert decoded(schema, [b'{"t":%d}' % 10**18], "s") == [None]


def test_many_bad_rows_in_several_blocks_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "PARSED_ROWS", 50)
    monkeypatch.setattr(json_values, "PARSED_BYTES", 700)
    monkeypatch.setattr(json_values, "ROWS_SEARCHED", 16)
    bad = (b"x", b'{"a":"x"}', b'{"a":1.5}', b'{"b":"\xff"}')
    values = [bad[n % 4] if n % 7 == 3 else b'{"a":%d,"b":"%s"}' % (n, b"y" * (n % 90)) for n in range(500)]
    rows, flags = JsonReader(SCHEMA).read(column(values, 1, 1, 250, 499))
    assert flags is not None
    assert flags.tolist() == [n % 7 != 3 for n in range(500)]
    assert rows["a"].to_pylist() == [n for n in range(500) if n % 7 != 3]
    assert rows["b"].to_pylist() == ["y" * (n % 90) for n in range(500) if n % 7 != 3]


def test_as_many_objects_as_values_are_not_one_in_each() -> None:
    values = [b'{"a":1,"other":[', b'{"a":2}]}', b'{"a":3}{"a":4}', b'{"a":5}']
    assert decoded(SCHEMA, values) == [None, None, None, {"a": 5, "b": None}]
    for values in ([b"null"], [b"null", b"null"], [b"{}null", b"null"]):
        assert decoded(SCHEMA, values) == [None] * len(values)


def test_no_rows() -> None:
    assert JsonReader(SCHEMA).read(pa.chunked_array([], pa.binary())) == (SCHEMA.empty_table(), None)


def test_a_reader_that_names_another_row_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Arrow says of a row in its message is tried, and not believed."""
    read = JsonReader._read

    def misleading(self: JsonReader, texts: pa.Array) -> pa.Table:
        try:
            return read(self, texts)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid("JSON parse error: something in row 0") from None

    monkeypatch.setattr(JsonReader, "_read", misleading)
    values = [b'{"a":1}', b'{"a":2}', b'{"a"', b'{"a":4}']
    assert decoded(SCHEMA, values) == [{"a": 1, "b": None}, {"a": 2, "b": None}, None, {"a": 4, "b": None}]


def test_rows_that_fail_are_found_by_halves() -> None:
    for count in (0, 1, 2, 9):
        for bad in ([], [0], [count - 1], list(range(count))):
            calls: list[tuple[int, int]] = []

            def fails(start: int, end: int, bad: list[int] = bad, calls: list[tuple[int, int]] = calls) -> bool:
                calls.append((start, end))
                return any(start <= row < end for row in bad)

            assert np.flatnonzero(failing_rows(count, fails)).tolist() == (sorted(set(bad)) if count else [])
            assert bad or len(calls) <= 1, "without a bad row there is one call"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.timestamp("us"), "time zone"),
        (pa.map_(pa.string(), pa.int64()), "fields"),
        (pa.binary(), "text"),
        (pa.struct([]), "fields"),
        (pa.list_(pa.struct([("x", pa.time64("us"))])), "x: "),
        (pa.duration("us"), "number"),
        (pa.float16(), "number"),
        (pa.dictionary(pa.int8(), pa.string()), "text"),
        (TIME_ZONED, ""),
        (pa.list_(pa.list_(pa.struct([("x", pa.decimal128(5, 1))]))), ""),
    ],
)
def test_types_that_no_value_becomes(kind: pa.DataType, words: str) -> None:
    reason = why_not_json(kind)
    assert words in reason
    assert bool(reason) == bool(words)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("epoch", ["s", "ms", "us", "ns"])
def test_instants_of_numbers_at_the_edges(unit: Any, epoch: Any) -> None:
    """As Python counts: what microseconds, or the type, cannot hold is no instant, and nothing goes round."""
    kind, scale = pa.timestamp(unit, "UTC"), {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    tops = [2**63 // by for by in (1, 10**3, 10**6, 10**9)]
    numbers = sorted({sign * top + step for top in tops for sign in (1, -1) for step in (-1001, -1, 0, 1)})
    numbers = [number for number in numbers if -(2**63) <= number < 2**63]
    rows = decoded(pa.schema([("t", kind)]), [f'{{"t": {number}}}'.encode() for number in numbers], epoch)
    for number, row in zip(numbers, rows, strict=True):
        count = number * scale[unit] // scale[epoch]
        stored_us = count * 10**6 // scale[unit]
        fits = all(-(2**63) <= bound < 2**63 for bound in (count, stored_us))
        assert row == ({"t": count} if fits else None), number


def test_a_number_that_no_double_holds() -> None:
    """However it is written, and in a field that nobody reads."""
    schema = pa.schema([("x", pa.float64())])
    texts = [
        "1" + 308 * "0",
        "1" + 309 * "0",
        400 * "9",
        "-" + 309 * "9" + ".0",
        "1e309",
        "1.8e308",
        "1.7E+0308",
        "0." + 400 * "1",
        "Infinity",
    ]
    found = [decoded(schema, [f'{{"{name}": {text}}}'.encode() for text in texts]) for name in ("x", "y")]
    assert [row is not None for row in found[0]] == [True, False, False, False, False, False, True, True, True]
    assert [row is not None for row in found[1]] == [True, False, False, False, False, False, True, True, True]
    assert decoded(schema, [b'{"y": "' + 400 * b"9" + b'"}']) == [{"x": None}]
