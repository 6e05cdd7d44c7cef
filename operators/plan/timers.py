"""A timer: rows of the state that wait for a time. Operators declare theirs; `dues` looks them up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Grid(Protocol):
    """Ends of windows that are made of slices."""

    @property
    def slide(self) -> int:
        """From one window end to the next."""

    def first_end_at_or_after(self, time_us: int) -> int:
        """The first window end at or after a time."""

    def oldest_slice_after(self, time_us: int) -> int:
        """Slices that end at or before this are in no window that ends after a time."""


@dataclass(frozen=True)
class Timer:
    """Rows of a state table wait for a time.

    ``column`` holds a time (or an offset), and the table's key begins with it. A row is due each of ``delays`` after
    that, in ascending order: by the watermark, or with ``clock`` by processing time. With a ``grid`` its rows are
    slices, by their end: one is due with each window that has it.
    """

    table: str
    column: str
    delays: tuple[int, ...] = (0,)
    clock: bool = False
    grid: Grid | None = None
