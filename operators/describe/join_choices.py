"""What the user may choose of a join: how much sides keep, and how often pairs are emitted."""

from __future__ import annotations

import msgspec


class JoinRetention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a side keeps: a span of time, so many offsets, so many windows that are past. The shorter counts."""

    span_us: int | None = None
    messages: int | None = None
    windows: int | None = None


class Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Multiples of ``period_us`` of processing time, shifted by ``offset_us``."""

    period_us: int
    offset_us: int = 0

    def next(self, now_us: int) -> int:
        """The first of them at or after ``now_us``."""
        return now_us + (self.offset_us - now_us) % self.period_us
