"""Deduplication row by row in a dictionary, on a watermark that goes back by a lateness."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    t: int
    k: str
    v: int


class Twin:
    """``within`` None: an id is remembered for the time of its row. The bound, the watermark less the lateness, never
    goes back, whatever the lateness becomes: rows behind it are late, and ids up to it are forgotten.
    """

    def __init__(self, within: int | None, delay: int, lateness: int, *, in_order: bool) -> None:
        self.within, self.delay, self.lateness, self.in_order = within, delay, lateness, in_order
        self.watermark: int | None = None
        self.bound: int | None = None
        self.until: dict[str, int] = {}
        self.ahead: list[Row] = []
        self.ledger: list[Row] = []

    def take(self, batch: list[Row]) -> list[int]:
        """What passes of a batch."""
        late = [row for row in batch if self.bound is not None and row.t < self.bound]
        self.ledger += late
        rows = [row for row in batch if row not in late]
        marks = [row.t - self.delay for row in rows] + ([] if self.watermark is None else [self.watermark])
        self.watermark = max(marks, default=None)
        return self._step(rows)

    def reprocess(self, rows: list[Row]) -> list[int]:
        """What passes of late rows that are given again."""
        return self._step(rows, again=True)

    def change(self, lateness: int) -> None:
        """Go on with another lateness."""
        self.lateness = lateness
        self._move()

    def _move(self) -> None:
        if self.watermark is not None:
            moved = self.watermark - self.lateness
            self.bound = moved if self.bound is None else max(self.bound, moved)

    def _step(self, rows: list[Row], *, again: bool = False) -> list[int]:
        if self.in_order:
            waiting = self.ahead + rows
            rows = sorted((row for row in waiting if self._due(row)), key=lambda row: row.t)
            self.ahead = [row for row in waiting if not self._due(row)]
        passed: list[Row] = []
        self._move()
        for row in rows:
            if self._is_known(row):
                continue
            passed.append(row)
            self.until[row.k] = row.t + (self.within or 0)
        if again and self.bound is not None:
            self.until |= {row.k: max(row.t, self.bound) + (self.within or 0) for row in passed}
        if self.bound is not None:
            self.until = {k: until for k, until in self.until.items() if not self._is_over(until, self.bound)}
        return [row.v for row in passed]

    def _due(self, row: Row) -> bool:
        return self.watermark is not None and row.t < self.watermark

    def _is_known(self, row: Row) -> bool:
        until = self.until.get(row.k)
        return until is not None and not (self.in_order and self._is_over(until, row.t))

    def _is_over(self, until: int, at: int) -> bool:
        """Whether an id is forgotten at a time; without a span its own time is still known."""
        return until < at if self.within is None else until <= at
