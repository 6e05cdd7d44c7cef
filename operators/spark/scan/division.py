"""Files divided into the ranges that tasks read. Pure.

The division depends on paths and sizes alone: not on the number of cores, and not on what else runs. So a batch that
is repeated after a crash arrives in the same order, and its sums have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIB = 1 << 20
OPENING_BYTES = 4 * MIB
"""A file costs as much as reading so many bytes, as in Spark's ``openCostInBytes``."""
LEAST_BYTES, MOST_BYTES, TASKS = 16 * MIB, 128 * MIB, 32
"""A batch makes about so many tasks, as long as a task has no less and no more than this."""
RANGE_BYTES = 64 * MIB
"""A larger file is divided."""


@dataclass(frozen=True, order=True)
class FileRange:
    """Bytes ``[start, end)`` of a file of ``size`` bytes, which one branch of the plan reads. ``path`` is local."""

    branch: int
    path: str
    start: int
    end: int
    size: int


def divide(files: Iterable[tuple[int, str, int]]) -> tuple[tuple[FileRange, ...], ...]:
    """The ranges of each task, in order; ``files``: the branch, path and size of each."""
    ranges = [one for file in sorted(files) for one in _ranges(*file)]
    weight = sum(_weight(one) for one in ranges)
    most = min(max(weight // TASKS, LEAST_BYTES), MOST_BYTES)
    tasks: list[list[FileRange]] = []
    full = 0
    for one in ranges:
        if not tasks or full + _weight(one) > most:
            tasks.append([])
            full = 0
        tasks[-1].append(one)
        full += _weight(one)
    return tuple(map(tuple, tasks))


def row_groups(middles: Sequence[int], one: FileRange) -> list[int]:
    """The numbers of the row groups whose middle is in the range. Each is in exactly one range of a file."""
    within = (min(max(middle, 0), one.size - 1) for middle in middles)
    return [number for number, middle in enumerate(within) if one.start <= middle < one.end]


def _ranges(branch: int, path: str, size: int) -> list[FileRange]:
    starts = range(0, size, RANGE_BYTES) or [0]
    return [FileRange(branch, path, start, min(start + RANGE_BYTES, size), size) for start in starts]


def _weight(one: FileRange) -> int:
    return one.end - one.start + OPENING_BYTES
