"""Numbering the messages of each key, and the windows over those numbers. Pure and vectorised.

A message's number is how many of its key were accepted before it. Numbers are given once, in the order in which the
messages count, and stay; only the number of messages so far is kept per key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]


def number(keys: list[str], rows: pa.Table, counted: pa.Table) -> Numbers:
    """The number of each row within its key, the key's first message being 0. Int64 of shape ``(rows,)``.

    ``rows`` come in the order in which they count. ``counted`` has the columns ``keys``, of the same types, and
    ``count`` (int64): the messages so far, one row per key; a key without one starts at 0. No column has nulls.
    """
    known = counted.num_rows
    counts = counted["count"].to_numpy().astype(np.int64, copy=False)
    if not keys:
        return np.arange(rows.num_rows) + (counts[0] if known else 0)
    asked = rows.select(keys)
    both = pa.concat_tables([counted.select(keys).cast(asked.schema), asked])
    both = both.append_column("__row", pa.array(np.arange(both.num_rows)))
    # Without threads the rows of a key are listed in their order: its count, if there is one, comes first.
    members = both.group_by(keys, use_threads=False).aggregate([("__row", "list")])["__row_list"].combine_chunks()
    places = members.flatten().to_numpy()
    lengths = pc.list_value_length(members).to_numpy().astype(np.int64)
    heads = np.cumsum(lengths) - lengths
    leading = places[heads]
    has_count = leading < known
    before = np.zeros(len(heads), np.int64)
    before[has_count] = counts[leading[has_count]] - 1
    numbers = np.empty(both.num_rows, np.int64)
    numbers[places] = np.arange(len(places)) + np.repeat(before - heads, lengths)
    return numbers[known:]


def count_windows(numbers: Numbers, n: int, step: int) -> tuple[Numbers, Numbers]:
    """Every (message, window) pair: indices into ``numbers``, and the number each window starts at.

    Both int64 of shape ``(pairs,)``, by message, then window. Windows are ``[k * step, k * step + n)`` for k >= 0;
    steps longer than windows leave messages in none. ``numbers`` is int64, none negative; ``n`` and ``step`` are > 0.
    """
    first = np.maximum((numbers - n) // step + 1, 0)
    held = numbers // step - first + 1
    rows = np.repeat(np.arange(len(numbers)), held)
    skipped = np.cumsum(held) - held
    windows = np.arange(len(rows)) + np.repeat(first - skipped, held)
    return rows, windows * step
