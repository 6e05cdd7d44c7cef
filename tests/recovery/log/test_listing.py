"""What counts of the manifests that a folder has: those above the boundary, without a gap."""

from __future__ import annotations

import pytest

from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.listing import Listing


@pytest.mark.parametrize(
    ("stored", "boundary", "begins", "ids", "missing"),
    [
        ([1, 2, 3], 0, 1, [1, 2, 3], []),
        ([2, 3, 4, 5], 3, 1, [4, 5], []),
        ([3, 5, 8], 3, 1, [5, 8], [(4, 4), (6, 7)]),
        ([5, 6], 0, 5, [5, 6], []),
        ([6], 0, 5, [6], [(5, 5)]),
        ([], 3, 1, [], []),
    ],
)
def test_what_counts_and_what_is_missing(
    stored: list[int], boundary: int, begins: int, ids: list[int], missing: list[tuple[int, int]]
) -> None:
    found = Listing(stored, Boundary(int(boundary > 0), boundary, 0, "w"), begins)
    assert found.ids == ids
    assert found.missing == missing
    assert found.least_head == (max(boundary + 1, begins) if boundary or begins > 1 else 0)
