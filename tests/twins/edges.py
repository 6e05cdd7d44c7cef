"""Windows by lifetime of points, intervals and edges as a twin: every event against every window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.helpers.advance_time import Row
from tests.twins.cti import CtiTwin
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.cti_settings import AdvanceTime

Window = tuple[str, int, int]
"""Key, start and end."""


class Message(NamedTuple):
    """A row with its key, value, origin, and offset."""

    key: str
    value: int
    row: Row
    origin: str
    offset: int


@dataclass
class Life:
    """An event that counts; ``end`` is None for an edge that has none so far."""

    message: Message
    start: int
    end: int | None


@dataclass
class EdgeTwin:
    """Takes batches of messages, and says what is in each window."""

    kind: Sliding
    settings: AdvanceTime
    origins: tuple[str, ...]
    lives: list[Life] = field(default_factory=list)
    unmatched: int = 0

    def __post_init__(self) -> None:
        self.ctis = {origin: CtiTwin(self.settings) for origin in self.origins}

    @property
    def watermark(self) -> int:
        return min(twin.cti for twin in self.ctis.values())

    def take(self, messages: Iterable[Message]) -> None:
        """A batch, in the order of each origin; an end and a start of two origins have no order, so it is last."""
        identities: defaultdict[tuple[str, int, int], list[tuple[Message, int]]] = defaultdict(list)
        for message in sorted(messages, key=lambda one: (one.origin, one.offset)):
            row = message.row
            taken = self.ctis[message.origin].take(0, row)
            if not taken or not taken[0]:
                continue
            start = taken[1]
            if row.shape in ("edge_start", "edge_end"):
                identities[(message.key, row.start or 0, message.value)].append((message, start))
            else:
                end = start + 1 if row.shape == "point" else row.end
                self.lives.append(Life(message, start, end))
        for identity, parts in identities.items():
            if len({message.origin for message, _ in parts}) > 1:
                parts.sort(key=lambda part: part[0].row.shape == "edge_end")
            for message, start in parts:
                if message.row.shape == "edge_start":
                    self.lives.append(Life(message, start, None))
                elif (life := self._open(identity)) is not None:
                    life.end = message.row.end
                else:
                    self.unmatched += 1

    def _open(self, identity: tuple[str, int, int]) -> Life | None:
        """The first open edge of an identity."""
        return next(
            (
                life
                for life in self.lives
                if life.end is None and (life.message.key, life.message.row.start, life.message.value) == identity
            ),
            None,
        )

    def windows(self, upto: int) -> dict[Window, list[Life]]:
        """What is in each window that ends at or before ``upto``; edges without an end last."""
        found: defaultdict[Window, list[Life]] = defaultdict(list)
        for number in range(-400 // self.kind.slide, 600 // self.kind.slide):
            start = self.kind.shift + number * self.kind.slide
            end = start + self.kind.size
            for life in self.lives if end <= upto else ():
                lasts = life.end is None or (life.end > start and life.end > life.start)
                if life.start < end and lasts:
                    found[(life.message.key, start, end)].append(life)
        return dict(found)

    def finished(self) -> dict[Window, list[Life]]:
        """What is in all windows at the end of the input: those of a key end with the last one that holds anything
        but edges without end, or the start of one.
        """
        every = self.windows(10**6)
        last: defaultdict[str, int] = defaultdict(lambda: -(10**6))
        for (key, start, end), lives in every.items():
            if end <= self.watermark or any(life.end is not None or life.start >= start for life in lives):
                last[key] = max(last[key], end)
        return {window: lives for window, lives in every.items() if window[2] <= last[window[0]]}
