"""Tumbling windows whose messages are known by their identity, row by row in dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple


class Row(NamedTuple):
    part: int
    at: int
    t: int | None
    k: str | None
    v: int


class Twin:
    """Windows of ``size`` seconds, ``delay`` and ``allowed`` lateness in seconds; with ``keep`` so many messages are
    the allowed lateness, of one state partition, but no window is over before the watermark passes its end.
    """

    def __init__(self, size: int, delay: int, allowed: int, keep: int | None = None) -> None:
        self.size, self.delay, self.allowed, self.keep = size, delay, allowed, keep
        self.horizon: int | None = None
        self.watermark: int | None = None
        self.known: dict[tuple[int, int], int] = {}
        self.windows: dict[tuple[int, str], list[Row]] = defaultdict(list)
        self.ledger: list[tuple[int, int, str]] = []
        self.counters: Counter[str] = Counter()

    def closed(self) -> int | None:
        """Windows that end at or before this are over."""
        if self.keep is not None or self.watermark is None:
            return self.horizon
        return self.watermark - self.allowed

    def forgotten(self) -> int | None:
        """Times before this are in windows that are over."""
        closed = self.closed()
        return None if closed is None else closed // self.size * self.size

    def late(self, row: Row) -> bool:
        closed = self.closed()
        return row.t is not None and closed is not None and row.t < closed

    def take(self, batch: list[Row]) -> None:
        before, new = self.forgotten(), []
        timed = [row for row in batch if row.k is not None and (self.keep is not None or not self.late(row))]
        claims = [row.t - self.delay for row in timed if row.t is not None]
        after = max([*claims, *([] if self.watermark is None else [self.watermark])], default=None)
        for row in batch:
            identity = (row.part, row.at)
            if identity in self.known:
                self.counters["duplicates"] += 1
                continue
            old = row.t is not None and before is not None and row.t < before
            self.known[identity] = row.t if row.t is not None and not old else after or 0
            if old:
                self.reject(row, "out_of_retention")
            else:
                new.append(row)
        for row in new:
            if row.t is None:
                self.reject(row, "null_event_time")
            elif row.k is None:
                self.reject(row, "null_key")
            elif self.late(row):
                self.reject(row, "very_late")
            else:
                self.counters["accepted"] += 1
                self.windows[row.t // self.size * self.size, row.k].append(row)
        self.watermark = after
        gone = self.forgotten()
        if gone is not None:
            self.known = {one: until for one, until in self.known.items() if until >= gone}

        if self.keep is not None:
            kept = [row for rows in self.windows.values() for row in rows if row.t is not None]
            times = sorted((row.t for row in kept if gone is None or row.t >= gone), reverse=True)
            if len(times) >= self.keep and after is not None:
                found = min(times[self.keep - 1], after)
                self.horizon = found if self.horizon is None else max(found, self.horizon)

    def reject(self, row: Row, reason: str) -> None:
        self.counters[reason] += 1
        self.ledger.append((row.part, row.at, reason))

    def values(self) -> dict[tuple[int, str], tuple[int, int, list[int]]]:
        """Count, sum, and the values in order of (time, offset, origin)."""
        found = {}
        for window, rows in self.windows.items():
            rows = sorted(rows, key=lambda row: (row.t, row.at, row.part))
            found[window] = (len(rows), sum(row.v for row in rows), [row.v for row in rows])
        return found


def as_dicts(rows: list[Row]) -> list[dict[str, Any]]:
    return [row._replace(t=None if row.t is None else row.t * 1_000_000)._asdict() for row in rows]
