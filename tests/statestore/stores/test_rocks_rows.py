"""Rows and keys as bytes: exact round trips of every type, and keys whose bytes sort as Arrow sorts the values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidestate.statestore.spec.keyrange import Cut, comparable, key_before
from tidestate.statestore.stores.rocks.bytestrings import Strings, matrix, strings_between
from tidestate.statestore.stores.rocks.keys import KeyCodec, prefix_end
from tidestate.statestore.stores.rocks.rows import decode_rows, encode_rows

INTS = {str(t): t for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())}
INTS["uint64"] = pa.uint64()
FLOATS = {pa.float16(): 16, pa.float32(): 32, pa.float64(): 64}
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3), pa.binary(0)]
DATES = [pa.date32(), pa.date64()]
TIMES = [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC")]
CLOCKS = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
DURATIONS = [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]
DECIMALS = [pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal256(50, 5)]
OTHERS = [pa.null(), pa.bool_(), pa.month_day_nano_interval()]
LEAVES = [*INTS.values(), *FLOATS, *TEXTS, *BINARIES, *DATES, *TIMES, *CLOCKS, *DURATIONS, *DECIMALS, *OTHERS]
KEYS = [*INTS.values(), pa.string(), pa.binary(), pa.bool_(), pa.date32(), *TIMES, *DECIMALS[:2]]


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(pa.list_, inner, st.integers(0, 3)),
        st.lists(inner, max_size=3).map(lambda kinds: pa.struct([(f"f{i}", kind) for i, kind in enumerate(kinds)])),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int16()]), inner),
    )


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


def decimals(kind: pa.DataType) -> st.SearchStrategy[Any]:
    whole = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
    return whole.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale)))


def leaf(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if str(kind) in INTS:
        limits = np.iinfo(kind.to_pandas_dtype())
        return st.sampled_from([0, int(limits.min), int(limits.max)]) | st.integers(int(limits.min), int(limits.max))
    if kind in FLOATS:
        number = st.floats(width=FLOATS[kind]) | st.sampled_from([-0.0, float("nan"), float("inf")])
        return number.map(np.float16) if kind == pa.float16() else number
    if kind in TEXTS:
        return st.text(st.sampled_from("a\x00\x01\xffé\U0001f600"), max_size=5)
    if kind in BINARIES:
        size = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
        letters = st.lists(
            st.sampled_from([0, 1, 97, 254, 255]), min_size=size or 0, max_size=5 if size is None else size
        )
        return letters.map(bytes)
    if kind in DATES:
        return st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1))
    if kind in CLOCKS:
        return st.integers(0, 86_399).map(lambda s: s * 1000 if kind.unit != "s" else s)
    if pa.types.is_decimal(kind):
        return decimals(kind)
    if kind == pa.bool_():
        return st.booleans()
    if kind == pa.null():
        return st.none()
    if kind == pa.month_day_nano_interval():
        return st.tuples(st.integers(-99, 99), st.integers(-99, 99), st.integers(-(2**60), 2**60))
    return st.integers(-(2**22), 2**22).map(lambda n: n * 1000)  # timestamps and durations


def value(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_map(kind):
        pairs = st.tuples(leaf(kind.key_type), value(kind.item_type))
        return st.none() | st.lists(pairs, max_size=3)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: value(field.type) for field in kind})
    if pa.types.is_fixed_size_list(kind):
        return st.none() | st.lists(value(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    if pa.types.is_nested(kind):
        return st.none() | st.lists(value(kind.value_type), max_size=3)
    return st.none() | leaf(kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(TYPES, min_size=1, max_size=3))
    count = draw(st.integers(0, 6))
    columns = [draw(st.lists(value(kind), min_size=count, max_size=count)) for kind in kinds]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    whole = pa.table({"key": pa.array(range(count), pa.int64()), **{f"c{i}": a for i, a in enumerate(arrays)}})
    first, last = sorted(draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    return draw(
        st.sampled_from([whole, whole.slice(first, last - first), pa.concat_tables([whole, whole.slice(first)])])
    )


def exactly(rows: pa.Table) -> str:
    """Rows as text: NaN equals itself there, and -0.0 differs from 0.0."""
    return repr([column.to_pylist() for column in rows.columns])


@given(tables())
@settings(max_examples=settings.default.max_examples * 3)
def test_rows_survive(rows: pa.Table) -> None:
    again = decode_rows(encode_rows(rows).to_list(), rows.schema)
    again.validate(full=True)
    assert again.schema == rows.schema
    assert exactly(again) == exactly(rows)


@pytest.mark.parametrize("kind", LEAVES, ids=str)
def test_nulls_only(kind: pa.DataType) -> None:
    for rows in (pa.table({"a": pa.nulls(3, kind)}), pa.table({"a": pa.nulls(3, pa.list_(kind))})):
        again = decode_rows(
            encode_rows(rows.append_column("b", pa.array([1, 2, 3]))).to_list(), rows.schema.append(B)
        )
        assert again.select(["a"]).equals(rows)


B = pa.field("b", pa.int64())


def test_payload_of_nan_survives() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000002, 0x8000000000000000], np.uint64)
    rows = pa.table({"f": bits.view(np.float64), "l": pa.array([[x] for x in bits.view(np.float64)])})
    again = decode_rows(encode_rows(rows).to_list(), rows.schema)
    for column in (again["f"], pa.chunked_array([again["l"].chunk(0).flatten()])):
        assert column.to_numpy().view(np.uint64).tolist() == bits.tolist()


def test_wide_rows_and_narrow_ones() -> None:
    rows = pa.table({"k": [1, 2, 3], "b": [b"x" * (16 << 20), None, b"y"], "l": [["z" * 9] * 1000, [], None]})
    assert decode_rows(encode_rows(rows).to_list(), rows.schema).equals(rows)


def test_buffers_are_aligned() -> None:
    """Arrow's joins complain about others; one row is the case where a slice needs no copy to be contiguous."""
    rows = pa.table({"a": [True], "b": [1], "c": [[1.5, 2.5]], "d": ["x"]})
    again = decode_rows(encode_rows(rows).to_list(), rows.schema)
    buffers = [buffer for column in (again["b"], again["c"].chunk(0).values) for buffer in _buffers(column)]
    assert all(buffer.address % 8 == 0 for buffer in buffers)


def _buffers(column: pa.ChunkedArray | pa.Array) -> list[pa.Buffer]:
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return [buffer for buffer in array.buffers() if buffer is not None]


@st.composite
def keys(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    row = st.tuples(*(leaf(kind) for kind in kinds))
    rows = draw(st.lists(row, min_size=1, max_size=8))
    return pa.table({f"k{i}": pa.array([r[i] for r in rows], kind) for i, kind in enumerate(kinds)})


@given(keys())
@settings(max_examples=settings.default.max_examples * 3)
def test_bytes_sort_as_arrow_sorts(rows: pa.Table) -> None:
    codec = KeyCodec(b"\x05", rows.schema)
    encoded = codec.encode(rows).to_list()
    ordered = rows.sort_by([(name, "ascending") for name in rows.column_names])
    assert codec.encode(ordered).to_list() == sorted(encoded)
    distinct = rows.group_by(rows.column_names).aggregate([]).num_rows
    assert len(set(encoded)) == distinct
    assert all(codec.start <= key < codec.end for key in encoded)


@given(keys(), st.data())
@settings(max_examples=settings.default.max_examples * 3)
def test_a_cut_divides_bytes_as_it_divides_rows(rows: pa.Table, data: st.DataObject) -> None:
    codec = KeyCodec(b"\x05", rows.schema)
    width = data.draw(st.integers(1, rows.num_columns))
    place = data.draw(st.integers(0, rows.num_rows - 1))
    values = tuple(comparable(rows.column(i)[place]) for i in range(width))
    for after in (False, True):
        cut = Cut(values, after)
        bound = codec.cut(cut)
        assert [key < bound for key in codec.encode(rows).to_list()] == key_before(rows, cut).to_pylist()


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.date32(), pa.timestamp("us")], ids=str)
@pytest.mark.parametrize("after", [False, True])
def test_a_bound_beyond_its_column_is_an_end(kind: pa.DataType, after: bool) -> None:
    codec = KeyCodec(b"\x05", pa.schema([("a", kind), ("b", pa.string())]))
    assert codec.cut(Cut((1 << 64,), after)) == codec.end
    assert codec.cut(Cut((-(1 << 64),), after)) == codec.start


def test_successor() -> None:
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"\x00") == b"\x01"


@given(st.lists(st.binary(max_size=3), max_size=8), st.booleans())
def test_strings_in_order(values: list[bytes], padded: bool) -> None:
    values = [value.ljust(3, b"\x00") for value in values] if padded else values
    ends = np.cumsum([0, *map(len, values)])
    strings: Strings = strings_between(np.frombuffer(b"".join(values), np.uint8), ends)
    assert strings.to_list() == values
    order = strings.order()
    ordered = strings if order is None else strings.take(order)
    assert ordered.to_list() == sorted(values)
    assert int(ordered.starts().sum()) == len(set(values))
    assert strings.slice(1, 2).to_list() == values[1:3]
    assert strings.widest() == max(map(len, values), default=0)


def test_a_matrix_of_nothing() -> None:
    assert matrix(np.empty((3, 0), np.uint8)).to_list() == [b""] * 3


@pytest.mark.parametrize("count", [1, 3])
def test_bytes_that_are_no_row_are_refused(count: int) -> None:
    """Whether the rows are equally long or not: none takes bytes of the one behind it."""
    schema = pa.schema([("k", pa.int64()), ("names", pa.list_(pa.string())), ("v", pa.string())])
    rows = pa.table({"k": range(count), "names": [["a", "bc"]] * count, "v": ["xy"] * count}, schema=schema)
    good = encode_rows(rows).to_list()
    assert decode_rows(good, schema).equals(rows)
    last = good[-1]
    wrong = [last[:size] for size in range(len(last))] + [last + b"\x00", last + last]
    wrong += [last[:9] + b"\x01\xff\xff\xff\x7f" + last[14:], last[:15] + b"\xff" * 4 + last[19:]]
    for packed in wrong:
        for place in (0, count - 1):
            with pytest.raises(ValueError, match=r".*"):
                decode_rows([*good[:place], packed, *good[place + 1 :]], schema)
