"""Advance-time settings as a twin that takes one row after the other."""

from __future__ import annotations

from tests.helpers.advance_time import Row
from tidestate.operators.progress.cti_settings import AdvanceTime
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, LAST_US


class CtiTwin:
    """One row after the other."""

    def __init__(self, settings: AdvanceTime) -> None:
        self.settings, self.cti, self.count, self.reference = settings, BEGINNING_US, 0, None
        self.ctis: list[tuple[int, int]] = []

    def advance(self, number: int, to: int) -> None:
        if to > self.cti:
            self.cti = to
            self.ctis.append((number, to))

    def sound(self, row: Row) -> bool:
        ends = row.shape in ("interval", "edge_end")
        if row.start is None or row.start > LAST_US or (ends and row.end is None):
            return False
        return not ends or row.end >= row.start + (row.shape == "interval")

    def take(self, number: int, row: Row) -> tuple[bool, int] | None:
        """Whether the row goes on, and where it starts; None for one that is no event."""
        if not self.sound(row):
            return None
        if row.shape == "cti":
            self.advance(number, row.start)
            return None
        kept, start = True, row.start
        if (row.end if row.shape == "edge_end" else row.start) < self.cti:
            end = {"point": row.start + 1, "interval": row.end, "edge_start": END_US, "edge_end": row.end}[row.shape]
            kept = self.settings.policy == "adjust" and end > self.cti
            start = self.cti if kept else start
        if row.shape != "edge_end":
            self.generate(number, row.start)
        return kept, start

    def generate(self, number: int, start: int) -> None:
        how = self.settings.generation
        if how is None:
            return
        if how.every is not None:
            self.count += 1
            due = self.count == how.every
            self.count = 0 if due else self.count
        else:
            self.reference = start if self.reference is None else self.reference
            due = start >= self.reference + how.span_us
            self.reference = start if due else self.reference
        if due:
            self.advance(number, start - how.delay_us)
