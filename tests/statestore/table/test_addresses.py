"""Rows that are added up by the addresses of their keys: to the same result as by numbering these."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.statestore.errors import LimitError
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table import addresses, fold
from tidestate.statestore.table.addresses import addresses_of
from tidestate.statestore.table.fold import combine, combine_if_fewer

MINUTE_US = 60_000_000
# Between these two lie more numbers than an array has places.
EDGES = st.sampled_from([-(2**63), 2**63 - 1, 0])
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.integers(-3, 3) | st.integers(-3, 3).map(lambda number: number * MINUTE_US + 7) | EDGES,
    "int8": st.integers(-128, 127),
    "date32[day]": st.dates(date(1969, 12, 1), date(1970, 2, 1)),
    "timestamp[us, tz=UTC]": st.integers(-3, 3).map(lambda number: number * MINUTE_US),
    "string": st.sampled_from(["", "a"]),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.none() | st.integers(-(2**31), 2**31),
    "uint64": st.none() | st.integers(0, 2**31),
    "float64": st.none() | st.floats(width=32),
    "decimal128(38, 2)": st.none() | st.integers(-(10**20), 10**20).map(lambda cents: Decimal(cents) / 100),
    "timestamp[us, tz=UTC]": st.none() | st.integers(0, 2**50),
}
SUMMED = ("int64", "uint64", "float64", "decimal128(38, 2)")


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSpec, pa.Table]:
    kinds = [draw(st.sampled_from(sorted(KEYS))) for _ in range(draw(st.integers(1, 3)))]
    keys = tuple(Column(f"k{place}", kind) for place, kind in enumerate(kinds))
    values = []
    for place, kind in enumerate(draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=3))):
        how = draw(st.sampled_from(["min", "max", *(["sum"] if kind in SUMMED else [])]))
        values.append(Column(f"v{place}", kind, combiner=how))
    spec = TableSpec("t", keys, tuple(values))
    size = draw(st.integers(2, 30))
    drawn = [KEYS[column.type] for column in keys] + [VALUES[column.type] for column in values]
    columns = [draw(st.lists(one, min_size=size, max_size=size)) for one in drawn]
    rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, spec.schema, strict=True)], spec.schema)
    # Two chunks, one of which may be empty.
    cut = draw(st.integers(0, size))
    return spec, pa.concat_tables([rows.slice(0, cut), rows.slice(cut)])


def _numbered(spec: TableSpec, rows: pa.Table) -> pa.Table:
    # As for keys that have no addresses.
    with mock.patch.object(fold, "_addresses", return_value=None), mock.patch.object(fold, "MANY_ROWS", 1000):
        return combine(spec, rows)


@given(given=tables(), most=st.integers(0, 30))
def test_rows_are_added_up_by_address_as_by_number(given: tuple[TableSpec, pa.Table], most: int) -> None:
    spec, rows = given
    expected = _numbered(spec, rows)
    # However few rows there are, and with little room, so that some keys have no addresses.
    with mock.patch.object(fold, "SORTED_ROWS", 0), mock.patch.object(addresses, "ROOM", 40):
        combined, fewer = combine(spec, rows), combine_if_fewer(spec, rows, most)
    by = [(name, "ascending") for name in spec.key_names]
    # As texts, in which NaN equals NaN.
    assert str(combined.sort_by(by).to_pylist()) == str(expected.sort_by(by).to_pylist())
    assert combined.schema == expected.schema
    if fewer is None:
        assert expected.num_rows > most
    else:
        assert fewer.equals(combined) or str(fewer.to_pylist()) == str(combined.to_pylist())


@given(given=tables())
def test_an_address_gives_back_its_key(given: tuple[TableSpec, pa.Table]) -> None:
    spec, rows = given
    keys = rows.select(spec.key_names)
    found = addresses_of(keys.columns)
    if found is None:
        return
    assert found.keys(spec.key_schema).take(pa.array(np.searchsorted(found.groups, found.of_rows))).equals(keys)
    ordered = [tuple(row.values()) for row in found.keys(spec.key_schema).to_pylist()]
    assert ordered == sorted(set(ordered))


def test_starts_of_windows_have_addresses_and_scattered_numbers_none() -> None:
    starts = pa.chunked_array([pa.array(np.arange(10**15, 10**15 + 300 * MINUTE_US, MINUTE_US))])
    found = addresses_of([starts])
    assert found is not None
    assert found.count == 300
    # One number off the minutes makes the step of all one microsecond.
    odd = pa.chunked_array([pa.array(np.append(starts.to_numpy(), 10**15 + 1))])
    assert addresses_of([odd]) is None
    assert addresses_of([pa.chunked_array([pa.array([1, None])])]) is None


def test_columns_that_are_the_same_values_are_added_up_once() -> None:
    ones = pa.array(np.ones(1000, np.int64))
    spec = TableSpec(
        "t", (Column("k", "int64"),), tuple(Column(name, "int64", combiner="sum") for name in ("a", "b", "c"))
    )
    rows = pa.table([pa.array(np.arange(1000) % 3), ones, ones, pa.array(np.full(1000, 2))], schema=spec.schema)
    scattered = mock.Mock(side_effect=fold._scattered)
    with mock.patch.object(fold, "_scattered", scattered):
        combined = combine(spec, rows)
    assert scattered.call_count == 2
    assert combined.to_pylist()[0] == {"k": 0, "a": 334, "b": 334, "c": 668}


def test_a_sum_that_leaves_its_type_is_refused() -> None:
    spec = TableSpec("t", (Column("k", "int64"),), (Column("total", "int64", combiner="sum"),))
    rows = pa.table({"k": pa.array([1] * 300), "total": pa.array([2**62] * 300)}, schema=spec.schema)
    with pytest.raises(LimitError) as refused:
        combine(spec, rows)
    assert refused.value.code == "sum-overflow"
