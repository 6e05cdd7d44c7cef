"""Numbers the messages of each key, and assigns the numbers to count windows. Pure and vectorised.

The number of a message is how many of its key were accepted before it; it never changes. Only the number of messages
so far is stored per key.
"""

from __future__ import annotations

import numpy as np

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.table.sorting import sorting


def message_number(owner: Numbers, before: Numbers) -> Numbers:
    """The number of each row within its key, whose index is its ``owner``; ``before`` has the messages of each key so
    far. Rows are in the order that numbers them. Int64 of shape ``(rows,)``.
    """
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
