"""Sorting by packed keys gives what sorting key by key gives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.statestore.spec.arrowtypes import is_position
from tidestate.statestore.table import sorting
from tidestate.statestore.table.sorting import firsts, lasts, order, ranks, search, shared_ranks

PREFIXES = st.sampled_from(["", "user-", "a\0", "ü"])
STRINGS = st.tuples(PREFIXES, st.text(alphabet="ab\0ü", max_size=12)).map("".join)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]) | st.integers(-100, 100)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.sampled_from([0, 1, 2**64 - 1])),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), STRINGS),
    "binary": (pa.binary(), st.binary(max_size=20)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "decimal": (pa.decimal128(10, 2), st.decimals(-1000, 1000, places=2)),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3, unique=True))
    size = draw(st.integers(0, 40))
    columns = {}
    for name in names:
        kind, values = VALUES[name]
        few = draw(st.lists(values, min_size=1, max_size=draw(st.sampled_from([2, 40]))))
        columns[name] = pa.array(draw(st.lists(st.sampled_from(few), min_size=size, max_size=size)), kind)
    return pa.table(columns)


@given(keys=tables(), pieces=st.integers(1, 3))
def test_the_order_is_that_of_a_stable_sort_by_all_columns(keys: pa.Table, pieces: int) -> None:
    cuts = np.linspace(0, keys.num_rows, pieces + 1).astype(int)
    keys = pa.concat_tables([keys.slice(low, high - low) for low, high in pairwise(cuts)])
    with pytest.MonkeyPatch.context() as patch:
        expected = order(keys).tolist()
        patch.setattr(sorting, "FEW_ROWS", 1)
        assert order(keys).tolist() == expected


@pytest.mark.parametrize("room", [0, 4])
@given(keys=tables(), pieces=st.integers(1, 3))
def test_ranks_number_distinct_keys(room: int, keys: pa.Table, pieces: int) -> None:
    cuts = np.linspace(0, keys.num_rows, pieces + 1).astype(int)
    keys = pa.concat_tables([keys.slice(low, high - low) for low, high in pairwise(cuts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "ROOM", room)
        found, count = ranks(keys)
    numbers, rows = found.tolist(), [tuple(row.values()) for row in keys.to_pylist()]
    assert count == len(set(rows)) == len(set(zip(rows, numbers, strict=True)))
    assert sorted(set(numbers)) == list(range(count))
    assert firsts(found, count).tolist() == [numbers.index(number) for number in range(count)]
    assert lasts(found, count).tolist() == [len(rows) - 1 - numbers[::-1].index(number) for number in range(count)]
    if all(is_position(column.type) for column in keys.columns):
        assert [sorted(set(rows))[number] for number in numbers] == rows
    cut = keys.num_rows // 2
    (low, high), shared = shared_ranks([keys.slice(0, cut), keys.slice(cut)])
    assert [*low, *high] == ranks(keys)[0].tolist()
    assert shared == count


@given(keys=tables(), asked=st.data())
def test_a_search_finds_each_place_and_who_is_there(keys: pa.Table, asked: st.DataObject) -> None:
    rows = [tuple(row.values()) for row in keys.to_pylist()]
    chosen = asked.draw(st.lists(st.integers(0, max(0, len(rows) - 1)), max_size=len(rows)))
    wanted = keys.take(pa.array(chosen, pa.int64()))
    kept = keys.take(pa.array(order(keys))).slice(0, asked.draw(st.integers(0, len(rows))))
    below = [tuple(row.values()) for row in kept.to_pylist()]
    places, found = search(kept, wanted)
    for key, place, there in zip(wanted.to_pylist(), places, found, strict=True):
        plain = tuple(value.encode() if isinstance(value, str) else value for value in key.values())
        plainly = [tuple(v.encode() if isinstance(v, str) else v for v in row) for row in below]
        assert place == sum(row < plain for row in plainly)
        assert there == (plain in plainly)


KINDS = (np.int64, np.uint64, np.int32, np.int16)


@given(drawn=st.data(), kind=st.sampled_from(KINDS))
def test_packed_sorting_is_stable(drawn: st.DataObject, kind: Any) -> None:
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    values = st.sampled_from([int(least), int(most), 0]) | st.integers(0, 100)
    codes = np.array(drawn.draw(st.lists(values, max_size=60)), kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "FEW_CODES", 2)
        assert sorting.sorting(codes).tolist() == np.argsort(codes, kind="stable").tolist()


def test_codes_that_leave_no_room_for_places_are_sorted_in_two_passes() -> None:
    chance = np.random.default_rng(0)
    for codes in (chance.integers(-(2**63), 2**63 - 1, 5000), chance.integers(0, 2**64 - 1, 5000, np.uint64)):
        codes = np.concatenate([codes, codes[::-1]])
        assert sorting.sorting(codes).tolist() == np.argsort(codes, kind="stable").tolist()
