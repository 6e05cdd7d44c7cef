"""Which rows of a block fail where the block as a whole does. Pure.

Arrow's kernels take a block or raise. So a block is tried whole, and only one that fails is halved until single rows
are left: a block without a bad row costs one call, and a bad row costs as many calls as its block can be halved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidestate.statestore.arrays import Flags


def failing_rows(count: int, fails: Callable[[int, int], bool]) -> Flags:
    """Which of ``count`` rows make ``fails(start, end)`` true of each block that holds them. Shape ``(rows,)``."""
    bad = np.zeros(count, bool)
    spans = [(0, count)] if count else []
    while spans:
        start, end = spans.pop()
        if not fails(start, end):
            continue
        if end - start == 1:
            bad[start] = True
            continue
        middle = (start + end) // 2
        spans += [(start, middle), (middle, end)]
    return bad
