"""Which partition a key belongs to, against crc32 of the key's text put together one row at a time."""

from __future__ import annotations

import zlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.keyhash import key_hash, partition_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(-(2**55), 2**55).map(lambda us: EPOCH + timedelta(microseconds=us))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), INT64),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "string": (pa.string(), st.text(max_size=12)),
    "large_string": (pa.large_string(), st.text(max_size=4)),
    "bool": (pa.bool_(), st.booleans()),
    "date32": (pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "timestamp": (pa.timestamp("us", tz="UTC"), TIMES),
    "timestamp_ms": (pa.timestamp("ms", tz="UTC"), TIMES.map(lambda t: t.replace(microsecond=0))),
    "decimal": (pa.decimal128(20, 3), st.decimals(-(10**15), 10**15, places=3)),
    "binary": (pa.binary(), st.binary(max_size=6)),
}


def text(value: Any) -> str:
    """The canonical text of one value, naively."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return str((value - EPOCH) // timedelta(microseconds=1))
    if isinstance(value, date):
        return str((value - date(1970, 1, 1)).days)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def naive_hash(row: tuple[Any, ...]) -> int:
    parts = [text(value).encode() for value in row]
    return zlib.crc32(b"".join(b"%d:%s" % (len(part), part) for part in parts))


def hashes(keys: pa.Table) -> list[int]:
    found = key_hash(keys)
    assert found.dtype == np.uint32
    assert found.shape == (keys.num_rows,)
    return [int(h) for h in found]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_one_column(kind: str, data: st.DataObject) -> None:
    arrow, values = KINDS[kind]
    column = data.draw(st.lists(values, max_size=8))
    keys = pa.table({"k": pa.array(column, arrow)})
    assert hashes(keys) == [naive_hash((value,)) for value in column]


@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=4))
def test_several_columns(kinds: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*(KINDS[kind][1] for kind in kinds)), max_size=6))
    columns = [pa.array([row[i] for row in rows], KINDS[kind][0]) for i, kind in enumerate(kinds)]
    keys = pa.table(columns, names=[f"c{i}" for i in range(len(kinds))])
    assert hashes(keys) == [naive_hash(row) for row in rows]


@given(st.lists(st.tuples(st.text(max_size=5), INT64, st.booleans()), max_size=12), st.data())
def test_slices_and_chunks_hash_like_their_rows(rows: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    columns = [
        pa.array(values, kind)
        for values, kind in zip(_turned(rows), (pa.string(), pa.int64(), pa.bool_()), strict=True)
    ]
    whole = pa.table(columns, names=["a", "b", "c"])
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    expected = [naive_hash(row) for row in rows]
    assert hashes(whole.slice(first, last - first)) == expected[first:last]
    chunked = pa.concat_tables([whole.slice(last), whole.slice(0, first), whole.slice(first, last - first)])
    assert hashes(chunked) == expected[last:] + expected[:first] + expected[first:last]


def _turned(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], []]


def test_columns_do_not_run_into_one_another() -> None:
    keys = pa.table({"a": ["a", "ab", ""], "b": ["bc", "c", "abc"]})
    assert len(set(hashes(keys))) == 3


def test_a_dictionary_hashes_like_its_values() -> None:
    words = pa.array(["x", "é", "x", ""])
    assert hashes(pa.table({"k": words.dictionary_encode()})) == hashes(pa.table({"k": words}))


@given(st.lists(INT64, min_size=1, max_size=20), st.integers(1, 1 << 15))
def test_a_partition_is_a_contiguous_range_of_the_hash(values: list[int], partitions: int) -> None:
    keys = pa.table({"k": pa.array(values, pa.int64())})
    found = partition_of(keys, partitions)
    assert found.dtype == np.int64
    assert found.tolist() == [(naive_hash((value,)) * partitions) >> 32 for value in values]
    assert all(0 <= partition < partitions for partition in found)


def test_every_partition_gets_its_share() -> None:
    keys = pa.table({"k": pa.array(range(20_000), pa.int64())})
    counts = np.bincount(partition_of(keys, 7), minlength=7)
    assert counts.sum() == 20_000
    assert counts.min() > 2000


def test_no_key_and_one_partition_need_no_hash() -> None:
    assert partition_of(pa.table({"k": [1.5, 2.5]}), 1).tolist() == [0, 0]
    assert partition_of(pa.table({"k": [1, 2]}).select([]), 5).tolist() == [0, 0]


def test_a_type_without_a_text_is_refused() -> None:
    with pytest.raises(UsageError, match="key-type"):
        key_hash(pa.table({"k": [1.5]}))


def test_a_time_finer_than_a_microsecond_is_refused_in_our_words() -> None:
    with pytest.raises(UsageError):
        key_hash(pa.table({"k": pa.array([1], pa.timestamp("ns"))}))


@pytest.mark.parametrize("value", ["0.00000001", "0.00000000", "-0.00000025"])
def test_a_small_decimal_has_the_text_spark_gives_it(value: str) -> None:
    keys = pa.table({"k": pa.array([Decimal(value)], pa.decimal128(20, 8))})
    assert hashes(keys) == [naive_hash((Decimal(value),))]


@pytest.mark.parametrize("kind", ["int64", "int32", "timestamp", "date"])
def test_whole_numbers_of_any_length_hash_like_their_text(kind: str) -> None:
    most = 2**63 - 1 if kind in ("int64", "timestamp") else 2**31 - 1
    chance = np.random.default_rng(0)
    numbers = {max(0, min(most, 10**power + more)) for power in range(20) for more in (-1, 0, 1)}
    numbers |= {int(number) >> shift for number in chance.integers(0, most, 50) for shift in range(0, 62, 7)}
    types = {"int64": pa.int64(), "int32": pa.int32(), "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32()}
    column = pa.array(sorted(numbers), pa.int64() if most > 2**31 else pa.int32()).cast(types[kind])
    expected = [zlib.crc32(b"%d:%d" % (len(str(number)), number)) for number in sorted(numbers)]
    assert key_hash(pa.table({"key": column})).tolist() == expected
