"""Numbers the messages of each key, and assigns the numbers to count windows. Pure and vectorised.

The number of a message is how many of its key were accepted before it; it never changes. Only the number of messages
so far is stored per key.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.table.sorting import shared_ranks, sorting


def number(keys: list[str], rows: pa.Table, counted: pa.Table) -> Numbers:
    """The number of each row within its key, the key's first message being 0. Int64 of shape ``(rows,)``.

    ``rows`` are in the order that numbers them. ``counted`` has the columns ``keys``, of the same types, and
    ``count`` (int64): the messages so far, one row per key; a key without one starts at 0. No column has nulls.
    """
    counts = counted["count"].to_numpy().astype(np.int64, copy=False)
    if not keys:
        return np.arange(rows.num_rows) + (counts[0] if counted.num_rows else 0)
    new = rows.select(keys)
    (known, owner), count = shared_ranks([counted.select(keys).cast(new.schema), new])
    before = np.zeros(count, np.int64)
    before[known] = counts
    return message_number(owner, before)


def message_number(owner: Numbers, before: Numbers) -> Numbers:
    """`number` by the index of each row's key (``owner``) and the messages that each key had ``before``."""
    by_owner = sorting(owner)
    sizes = np.bincount(owner, minlength=len(before))
    numbers = np.empty(len(owner), np.int64)
    numbers[by_owner] = np.arange(len(owner)) + np.repeat(before - (np.cumsum(sizes) - sizes), sizes)
    return numbers


def windows_of_numbers(numbers: Numbers, n: int, step: int) -> tuple[Numbers, Numbers]:
    """Every (message, window) pair: indices into ``numbers``, and the number each window starts at.

    Both int64 of shape ``(pairs,)``, by message, then window. Windows are ``[k * step, k * step + n)`` for k >= 0;
    with steps longer than windows some messages are in none. ``numbers`` is int64, none negative; ``n`` and ``step``
    are > 0.
    """
    first = np.maximum((numbers - n) // step + 1, 0)
    held = numbers // step - first + 1
    rows = np.repeat(np.arange(len(numbers)), held)
    skipped = np.cumsum(held) - held
    windows = np.arange(len(rows)) + np.repeat(first - skipped, held)
    return rows, windows * step
