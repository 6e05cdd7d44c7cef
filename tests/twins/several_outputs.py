"""A naive twin of graphs with several outputs: what each operator counts and adds up in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Fact = tuple[int, str, str, int]
"""A row: its time in seconds, two columns that may be keys, and a value."""
Standing = Counter[tuple[int, int, str, str, int, int]]
"""What stands of an operator: start and end of each window, its key (empty where there is none), count and sum."""


@dataclass(frozen=True)
class Counting:
    """An operator: the number of the one that it reads, None for the stream; its keys, and the size of windows."""

    reads: int | None
    keys: tuple[str, ...]
    size: int


def standing(operators: Sequence[Counting], rows: Iterable[Fact]) -> list[Standing]:
    """What stands of each operator in the end, when all windows are closed."""
    every: list[Standing] = []
    for operator in operators:
        read = list(rows) if operator.reads is None else _as_rows(every[operator.reads])
        every.append(_counted(operator, read))
    return every


def _counted(operator: Counting, rows: Iterable[Fact]) -> Standing:
    groups: dict[tuple[int, str, str], tuple[int, int]] = {}
    for time, a, b, value in rows:
        start = time // operator.size * operator.size
        key = (start, a if "a" in operator.keys else "", b if "b" in operator.keys else "")
        count, total = groups.get(key, (0, 0))
        groups[key] = count + 1, total + value
    return Counter(
        (start, start + operator.size, a, b, count, total) for (start, a, b), (count, total) in groups.items()
    )


def _as_rows(panes: Mapping[tuple[int, int, str, str, int, int], int]) -> list[Fact]:
    """A pane as its readers see it: at the last moment of its window, with its sum as the value."""
    return [(end - 1, a, b, total) for _, end, a, b, _, total in panes]
