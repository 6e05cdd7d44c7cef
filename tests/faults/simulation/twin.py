"""Tumbling windows and sessions one event at a time: what is accepted, and which windows there are in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Event(NamedTuple):
    """Times are seconds."""

    at: int
    key: str | None
    id: int


Window = tuple[int, int, str]
"""Start, end, key."""


@dataclass
class Twin:
    """Windows of ``size`` seconds, or sessions with a ``gap``. Events whose ids are ``left_out`` move time and are no
    more than that; those whose ids are ``missed`` are rejected and move nothing; ``key_of`` makes of a key and a time
    the key.
    """

    delay: int
    allowed: int
    size: int | None
    gap: int
    watermark: int | None = None
    accepted: list[Event] = field(default_factory=list)
    rejected: list[Event] = field(default_factory=list)
    left_out: Callable[[int], bool] = lambda _id: False
    missed: Callable[[int], bool] = lambda _id: False
    key_of: Callable[[str, int], str] = lambda key, _at: key

    def take(self, batch: list[Event]) -> None:
        """A batch: lateness goes by the watermark before it."""
        before = self.watermark
        for event in batch:
            is_late = before is not None and event.at < before - self.allowed
            if not self.left_out(event.id):
                if self.missed(event.id) or event.key is None or is_late:
                    self.rejected.append(event)
                    continue
                self.accepted.append(event)
            if self.watermark is None or event.at - self.delay > self.watermark:
                self.watermark = event.at - self.delay

    def windows(self) -> dict[Window, list[int]]:
        """The windows of all accepted events, with the ids in each."""
        found: dict[Window, list[int]] = {}
        for event in sorted(self.accepted, key=lambda one: (one.key or "", one.at)):
            key = self.key_of(event.key or "", event.at)
            if self.size is not None:
                start, end = event.at // self.size * self.size, event.at // self.size * self.size + self.size
                ids = found.pop((start, end, key), [])
            else:
                start, end, ids = event.at, event.at + self.gap, []
                last = next(reversed(found), None)
                if last is not None and last[2] == key and last[1] > event.at:
                    ids, start, end = found.pop(last), last[0], max(last[1], end)
            found[start, end, key] = sorted([*ids, event.id])
        return found
