"""A case's times as microseconds and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.conformance.case import Case, Unsupported, steps_of

LIMIT_US = 2**60
"""Instants of a case stay within this, so that windows around them stay within what an engine can hold."""
ALL_OF_TIME = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The bounds this project shows for the global window: the years 1 to 9999."""


@dataclass(frozen=True)
class Units:
    """One unit of the case is ``scale`` microseconds; the case's zero is moved by ``shift`` units."""

    scale: int = 1000
    shift: int = 0

    def us(self, instant: int) -> int:
        """An instant of the case in microseconds."""
        return (instant + self.shift) * self.scale

    def span(self, units: int) -> timedelta:
        """A length of the case; what is longer than all of time is all of time."""
        return timedelta(microseconds=max(-LIMIT_US, min(LIMIT_US, units * self.scale)))

    def window(self, start: int | None, end: int | None) -> list[int | str]:
        """A window's bounds as the case writes them."""
        if (start, end) == ALL_OF_TIME:
            return ["-inf", "+inf"]
        return [self.instant(start, "-inf"), self.instant(end, "+inf")]

    def instant(self, us: int | None, absent: str) -> int | str:
        """Microseconds as the case writes them, rounded down; the ends of time are ``-inf`` and ``+inf``."""
        if us is None:
            return absent
        if abs(us) > 2 * LIMIT_US:
            return "+inf" if us > 0 else "-inf"
        return us // self.scale - self.shift


def units_of(case: Case) -> Units:
    """Milliseconds where they fit, else one microsecond a unit, else that moved towards 1970.

    The move is a whole number of window slides, so that windows keep their place. Raises `Unsupported` when the case
    spans more time than int64 microseconds can.
    """
    found = list(_instants(case))
    if not found or max(map(abs, found)) * 1000 <= LIMIT_US:
        return Units()
    if max(map(abs, found)) <= LIMIT_US:
        return Units(1)
    if max(found) - min(found) > LIMIT_US:
        raise Unsupported("times_beyond_int64_microseconds")
    window = case.window or {}
    phase = int(window.get("slide") or window.get("size") or 1)
    return Units(1, -(min(found) // phase * phase))


def _instants(case: Case) -> Iterator[int]:
    for step in steps_of(case):
        yield from (event.ts for event in step.events if event.ts is not None)
        for name in ("processing_time", "wm_excl"):
            if isinstance(step.body.get(name), int):
                yield step.body[name]
        if step.action == "put":
            yield from _bounds([step.body["put"]])
    for expected in case.expect:
        for listed in (expected.emit, expected.windows, expected.state, expected.last):
            yield from _bounds(listed or [])
        yield from (bound for window in expected.assign or [] for bound in window if isinstance(bound, int))


def _bounds(rows: Iterable[dict[str, Any]]) -> Iterator[int]:
    for row in rows:
        yield from (bound for bound in row.get("window") or [] if isinstance(bound, int))
