"""Numbers of messages within their key, and windows over them, as counting one by one gives them."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidestate.operators.windows.counting import message_number, windows_of_numbers
from tidestate.statestore.table.sorting import ranks

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "name": (pa.string(), ["", "a", "a\0", "ab", "ü"]),
    "number": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "amount": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("0.01"), Decimal("99999999.99")]),
    "flag": (pa.bool_(), [False, True]),
}


def _table(keys: list[str], rows: list[tuple[Any, ...]], **more: list[int]) -> pa.Table:
    columns = {key: pa.array([row[place] for row in rows], KEYS[key][0]) for place, key in enumerate(keys)}
    return pa.table(columns | {name: pa.array(values, pa.int64()) for name, values in more.items()})


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]], dict[tuple[Any, ...], int]]:
    """Key columns, the keys of messages in order, and the counts so far of some keys, which may have no message."""
    keys = draw(st.lists(st.sampled_from(list(KEYS)), max_size=3, unique=True))
    values = st.tuples(*(st.sampled_from(KEYS[key][1]) for key in keys))
    counts = st.sampled_from([0, 1, 2**62]) | st.integers(0, 20)
    return keys, draw(st.lists(values, max_size=40)), draw(st.dictionaries(values, counts, max_size=8))


def number(keys: list[str], rows: pa.Table, counts: dict[tuple[Any, ...], int]) -> npt.NDArray[np.int64]:
    """The number of each message, by the messages of each key so far."""
    owner, many = ranks(rows.select(keys)) if keys else (np.zeros(rows.num_rows, np.int64), 1)
    before = np.zeros(many, np.int64)
    for place, row in enumerate(rows.to_pylist()):
        before[owner[place]] = counts.get(tuple(row[key] for key in keys), 0)
    return message_number(owner, before)


@given(given_=inputs(), pieces=st.integers(1, 3))
def test_a_number_is_how_many_of_the_key_came_before(given_: tuple[Any, Any, Any], pieces: int) -> None:
    keys, messages, counts = given_
    rows = _table(keys, messages, value=list(range(len(messages))))
    cuts = np.linspace(0, rows.num_rows, pieces + 1).astype(int)
    rows = pa.concat_tables([rows.slice(low, high - low) for low, high in pairwise(cuts)])
    found = number(keys, rows, counts)
    so_far, expected = dict(counts), []
    for key in messages:
        expected.append(so_far.get(key, 0))
        so_far[key] = expected[-1] + 1
    assert found.tolist() == expected
    assert found.dtype == np.int64


@given(given_=inputs(), cut=st.integers(0, 40))
def test_numbers_do_not_depend_on_where_a_batch_ends(given_: tuple[Any, Any, Any], cut: int) -> None:
    keys, messages, counts = given_
    rows = _table(keys, messages, value=list(range(len(messages))))
    early = number(keys, rows.slice(0, cut), counts)
    later = counts | {key: int(n) + 1 for key, n in zip(messages, early, strict=False)}
    late = number(keys, rows.slice(cut), later)
    assert [*early, *late] == number(keys, rows, counts).tolist()


@given(
    numbers=st.lists(st.integers(0, 60), max_size=20),
    far=st.sampled_from([0, 2**40]),
    n=st.integers(1, 12),
    step=st.integers(1, 12),
)
def test_a_message_lies_in_the_windows_that_hold_its_number(numbers: list[int], far: int, n: int, step: int) -> None:
    numbers = [far + one for one in numbers]
    rows, starts = windows_of_numbers(np.array(numbers, np.int64), n, step)
    expected = [
        (row, k * step)
        for row, i in enumerate(numbers)
        for k in range(max(0, (i - n) // step - 1), i // step + 2)
        if k * step <= i < k * step + n
    ]
    assert list(zip(rows.tolist(), starts.tolist(), strict=True)) == expected
    assert rows.dtype == starts.dtype == np.int64


def test_the_first_windows_and_the_gaps_between() -> None:
    def windows(n: int, step: int) -> list[tuple[int, int]]:
        rows, starts = windows_of_numbers(np.arange(5), n, step)
        return list(zip(rows.tolist(), starts.tolist(), strict=True))

    assert windows(2, 2) == [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)]
    assert windows(3, 2) == [(0, 0), (1, 0), (2, 0), (2, 2), (3, 2), (4, 2), (4, 4)]
    assert windows(1, 3) == [(0, 0), (3, 3)]
