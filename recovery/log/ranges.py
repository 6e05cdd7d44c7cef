"""Ranges of checkpoint ids, from the first to the last, both inclusive. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tidestate.recovery.log.manifest import Ids


def merged_ranges(ranges: Iterable[Ids], gap: int = 1) -> tuple[Ids, ...]:
    """Ranges of ids in order, merged where they overlap or one begins at most ``gap`` after the end of another: by
    default where they are adjacent.
    """
    merged: list[Ids] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def missing_ranges(ids: Sequence[int], first: int) -> list[Ids]:
    """Ranges of ids from ``first`` on that are missing in ascending ``ids``."""
    return [(before + 1, after - 1) for before, after in pairwise([first - 1, *ids]) if after > before + 1]


def outside(ranges: Sequence[Ids], taken: Sequence[Ids]) -> list[Ids]:
    """The parts of ``ranges`` that are in none of ``taken``."""
    left = list(ranges)
    for first, last in taken:
        cut = [part for a, b in left for part in ((a, min(b, first - 1)), (max(a, last + 1), b))]
        left = [(a, b) for a, b in cut if a <= b]
    return left


def ids_text(ranges: Sequence[Ids]) -> str:
    """Ids for people: ``4-6, 9``."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or "none"
