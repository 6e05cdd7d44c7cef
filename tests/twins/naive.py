"""A deliberately naive twin of the whole windowed computation: one event at a time, every event kept forever.

No slices, no partial aggregates, no expiry, no partitions, no files. A window's value is computed again from the list
of its events. Times are integers (microseconds); a window is its start and end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Key = tuple[Any, ...]
Window = tuple[int, int]
Values = tuple[Any, ...]
Row = tuple[Any, ...]


class Event(NamedTuple):
    """An event as the source has it."""

    time: int | None
    k: str | None
    j: int | None
    v: int | None
    x: float | None


@dataclass(frozen=True)
class Setting:
    """What is computed. ``key`` names fields of `Event`; ``mode`` is as in the description."""

    size: int
    slide: int
    offset: int = 0
    delay: int = 0
    allowed: int = 0
    mode: str = "accumulating"
    key: tuple[str, ...] = ("k",)

    def windows_of(self, time: int) -> list[Window]:
        """Every window that holds ``time``: starts are ``offset`` plus multiples of ``slide``."""
        start = self.offset + (time - self.offset) // self.slide * self.slide
        found = []
        while start + self.size > time:
            found.append((start, start + self.size))
            start -= self.slide
        return found

    def key_of(self, event: Event) -> Key:
        return tuple(getattr(event, name) for name in self.key)


def values_of(events: list[Event]) -> Values:
    """Count of events; of v: count, sum and largest; of x: smallest, sum and mean. Nulls are ignored."""
    v = [event.v for event in events if event.v is not None]
    x = [event.x for event in events if event.x is not None]
    return (
        len(events),
        len(v),
        sum(v) if v else None,
        max(v, default=None),
        min(x, default=None),
        sum(x) if x else None,
        sum(x) / len(x) if x else None,
    )


@dataclass
class Twin:
    """Feed it batches; it collects panes per batch, ledger rows and watermarks."""

    setting: Setting
    watermark: int | None = None
    drained: bool = False
    accepted: dict[tuple[Window, Key], list[Event]] = field(default_factory=dict)
    fired: dict[tuple[Window, Key], tuple[int, Values]] = field(default_factory=dict)
    panes: list[list[Row]] = field(default_factory=list)
    ledger: list[Row] = field(default_factory=list)
    watermarks: list[int | None] = field(default_factory=list)

    def run(self, batches: list[list[Event]], *, drain: bool = True) -> Twin:
        for batch in batches:
            self.batch(batch)
        if drain:
            self.drain()
        return self

    def batch(self, events: list[Event]) -> None:
        before = self.watermark
        touched: dict[tuple[Window, Key], list[Event]] = {}
        for event in events:
            reason = self.rejection(event, before)
            if reason is not None:
                self.ledger.append((*event, reason, before))
                continue
            assert event.time is not None
            for window in self.setting.windows_of(event.time):
                group = (window, self.setting.key_of(event))
                self.accepted.setdefault(group, []).append(event)
                touched.setdefault(group, []).append(event)
            reached = event.time - self.setting.delay
            if self.watermark is None or reached > self.watermark:
                self.watermark = reached
        panes: list[Row] = []
        for group, new in touched.items():
            if before is not None and group[0][1] <= before:
                panes += self.late(group, new)
        self.panes.append(panes + self.on_time(before))
        self.watermarks.append(self.watermark)

    def drain(self) -> None:
        before, self.drained = self.watermark, True
        self.panes.append(self.on_time(before))

    def rejection(self, event: Event, before: int | None) -> str | None:
        if event.time is None:
            return "null_event_time"
        if None in self.setting.key_of(event):
            return "null_key"
        if before is not None and event.time < before - self.setting.allowed:
            return "very_late"
        return None

    def on_time(self, before: int | None) -> list[Row]:
        """Windows that end after the old watermark and not after the new one."""
        panes = []
        for group, events in self.accepted.items():
            end = group[0][1]
            passed = self.drained or (self.watermark is not None and end <= self.watermark)
            if passed and (before is None or end > before):
                values = values_of(events)
                self.fired[group] = (0, values)
                panes.append(row(group, values, 0, "on_time", "emit", self.forgotten(end)))
        return panes

    def forgotten(self, end: int) -> bool:
        """Whether a window takes no event any more."""
        return self.drained or (self.watermark is not None and end <= self.watermark - self.setting.allowed)

    def late(self, group: tuple[Window, Key], new: list[Event]) -> list[Row]:
        """A window that should have fired before, touched once more."""
        number, last = self.fired.get(group, (-1, ()))
        values = values_of(new if self.setting.mode == "discarding" else self.accepted[group])
        if self.setting.mode == "retracting" and values == last:
            return []
        self.fired[group] = (number + 1, values)
        emitted = [row(group, values, number + 1, "late", "emit", self.forgotten(group[0][1]))]
        if self.setting.mode == "retracting" and number >= 0:
            return [row(group, last, number, "late", "retract", False), *emitted]
        return emitted


def row(group: tuple[Window, Key], values: Values, pane: int, timing: str, kind: str, last: bool) -> Row:
    """A pane row, columns in the order of the pane files."""
    (start, end), key = group
    return (start, end, *key, *values, pane, timing, kind, last)
