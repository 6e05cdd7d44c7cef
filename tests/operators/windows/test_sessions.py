"""Merging sessions gives what joining any two that overlap, until none do, gives."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.operators.windows.sessions import merge_sessions
from tidestate.statestore.table import sorting

FAR = 2**61
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "name": (pa.string(), ["", "a", "a\0", "ab", "ü"]),
    "number": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "amount": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("0.01"), Decimal("99999999.99")]),
    "flag": (pa.bool_(), [False, True]),
}
NEAR_TIMES = st.integers(-30, 30)
FAR_TIMES = st.sampled_from([-FAR, 0, FAR]).flatmap(lambda time: st.integers(time - 12, time + 12))
GAPS = st.integers(1, 12) | st.sampled_from([1, 2 * FAR, FAR])

Row = tuple[tuple[Any, ...], int, int]


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[str], pa.Table]:
    keys = draw(st.lists(st.sampled_from(list(KEYS)), max_size=3, unique=True))
    size = draw(st.integers(0, 30))
    columns = {
        name: pa.array(draw(st.lists(st.sampled_from(KEYS[name][1]), min_size=size, max_size=size)), KEYS[name][0])
        for name in keys
    }
    times = draw(st.sampled_from([NEAR_TIMES, FAR_TIMES]))
    starts = draw(st.lists(times, min_size=size, max_size=size))
    gaps = draw(st.lists(draw(st.sampled_from([st.integers(1, 12), st.just(5), GAPS])), min_size=size, max_size=size))
    ends = [start + gap for start, gap in zip(starts, gaps, strict=True)]
    columns |= {"window_start": pa.array(starts, pa.int64()), "window_end": pa.array(ends, pa.int64())}
    return keys, _in_pieces(pa.table(columns), draw(st.integers(1, 3)))


def _in_pieces(rows: pa.Table, pieces: int) -> pa.Table:
    cuts = np.linspace(0, rows.num_rows, pieces + 1).astype(int)
    return pa.concat_tables([rows.slice(low, high - low) for low, high in pairwise(cuts)])


def _rows(keys: list[str], table: pa.Table) -> list[Row]:
    return [(tuple(row[key] for key in keys), row["window_start"], row["window_end"]) for row in table.to_pylist()]


def _naive(rows: list[Row]) -> list[set[int]]:
    """The rows of each session: any two groups with rows that overlap are joined, until no two are left."""
    groups: list[set[int]] = []
    for place, (key, start, end) in enumerate(rows):
        touched = [
            group
            for group in groups
            if any(rows[i][0] == key and rows[i][1] < end and start < rows[i][2] for i in group)
        ]
        groups = [group for group in groups if group not in touched] + [{place}.union(*touched)]
    return groups


def _check(keys: list[str], intervals: pa.Table) -> None:
    rows, merged = _rows(keys, intervals), merge_sessions(keys, intervals)
    expected = {
        (rows[min(group)][0], min(rows[i][1] for i in group), max(rows[i][2] for i in group)): group
        for group in _naive(rows)
    }
    windows = _rows(keys, merged.windows)
    assert windows == sorted(expected)
    assert merged.windows.schema == intervals.schema
    assert merged.owner.dtype == np.int64
    assert merged.owner.shape == (len(rows),)
    for place, window in enumerate(windows):
        assert set(np.flatnonzero(merged.owner == place).tolist()) == expected[window]


@given(given_=inputs())
def test_sessions_are_the_transitive_closure_of_overlap(given_: tuple[list[str], pa.Table]) -> None:
    _check(*given_)


@given(given_=inputs())
def test_also_where_keys_are_packed_to_be_sorted(given_: tuple[list[str], pa.Table]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "FEW_ROWS", 1)
        _check(*given_)


@given(given_=inputs(), order=st.randoms(use_true_random=False))
def test_merging_what_is_merged_or_in_another_order_changes_nothing(
    given_: tuple[list[str], pa.Table], order: Any
) -> None:
    keys, intervals = given_
    merged = merge_sessions(keys, intervals)
    again = merge_sessions(keys, merged.windows)
    assert again.windows == merged.windows
    assert again.owner.tolist() == list(range(merged.windows.num_rows))
    places = order.sample(range(intervals.num_rows), intervals.num_rows)
    shuffled = merge_sessions(keys, intervals.take(pa.array(places, pa.int64())))
    assert shuffled.windows == merged.windows
    assert shuffled.owner.tolist() == merged.owner[places].tolist()


def _sessions(*intervals: tuple[str, int, int]) -> tuple[list[tuple[str, int, int]], list[int]]:
    names = ["key", "window_start", "window_end"]
    types = [pa.string(), pa.int64(), pa.int64()]
    arrays = [pa.array(list(values), kind) for values, kind in zip(zip(*intervals, strict=True), types, strict=True)]
    merged = merge_sessions(["key"], pa.table(arrays, names))
    return [tuple(row.values()) for row in merged.windows.to_pylist()], merged.owner.tolist()


def test_sessions_that_only_touch_stay_apart() -> None:
    assert _sessions(("a", 0, 10), ("a", 10, 20)) == ([("a", 0, 10), ("a", 10, 20)], [0, 1])
    assert _sessions(("a", 0, 10), ("a", 9, 19)) == ([("a", 0, 19)], [0, 0])


def test_an_event_between_two_sessions_joins_them() -> None:
    found = _sessions(("b", 0, 10), ("a", 0, 10), ("a", 18, 28), ("a", 9, 19))
    assert found == ([("a", 0, 28), ("b", 0, 10)], [1, 0, 0, 0])


def test_a_long_gap_outlasts_later_short_ones() -> None:
    found = _sessions(("a", 0, 100), ("a", 5, 6), ("a", 99, 101), ("a", 101, 102))
    assert found == ([("a", 0, 101), ("a", 101, 102)], [0, 0, 0, 1])


def test_many_keys_at_the_ends_of_time() -> None:
    count = 5000
    starts = np.where(np.arange(count) % 2, 2 * FAR, -2 * FAR)
    columns = {"key": np.arange(count) // 2, "window_start": starts, "window_end": starts + 1}
    merged = merge_sessions(["key"], pa.table(columns))
    assert merged.windows == pa.table(columns)
    assert merged.owner.tolist() == list(range(count))
