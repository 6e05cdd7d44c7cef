"""What the naive twins are given and answer: triggers, windows, settings, rows of panes and of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.twins.naive import Event, Key, Values

FOREVER = 10**30
"""The end of time; a watermark that reaches it ends the input."""
Reason = Literal["null_event_time", "null_key", "bad_offset", "very_late", "no_window", "purged", "window_closed"]


class Trigger(NamedTuple):
    """``each_batch`` (of an element), ``after_count`` n, or ``every_processing_time``, ``after_processing_time``,
    ``every_event_time`` of a span."""

    kind: str
    amount: int = 1


EACH_BATCH = Trigger("each_batch")


class Kind(NamedTuple):
    """``sliding`` (size, slide, offset), ``session`` (gap), ``global`` () or ``count`` (n, step)."""

    name: str
    sizes: tuple[int, ...] = ()


def tumbling(size: int, offset: int = 0) -> Kind:
    return Kind("sliding", (size, size, offset))


def sliding(size: int, slide: int, offset: int = 0) -> Kind:
    return Kind("sliding", (size, slide, offset))


def session(gap: int) -> Kind:
    return Kind("session", (gap,))


def global_window() -> Kind:
    return Kind("global")


def count_window(count: int, step: int | None = None) -> Kind:
    return Kind("count", (count, step or count))


@dataclass(frozen=True)
class Setting:
    """What is computed, in the words of the description. ``key`` names fields of `Event`."""

    windows: Kind
    allowed: int = 0
    rule: str = "event"
    early: Trigger | None = None
    on_time: str = "always"
    late: Trigger | None = EACH_BATCH
    closing: str = "never"
    only_updated: bool = False
    mode: str = "accumulating"
    key: tuple[str, ...] = ("k",)

    def key_of(self, event: Event) -> Key:
        return tuple(getattr(event, name) for name in self.key)


class Row(NamedTuple):
    """A row of a pane."""

    window_start: int
    window_end: int
    key: Key
    values: Values
    pane: int
    timing: str
    kind: str
    last: bool


class Rejected(NamedTuple):
    """A row of the late ledger. ``windows`` are those it was too late for; ``taken`` if others have taken it."""

    event: Event
    reason: Reason
    watermark: int | None
    windows: tuple[tuple[int, int], ...] = ()
    taken: bool = False
