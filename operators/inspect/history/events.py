"""What is known of one window, as data: what was found in the files, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tidestate.operators.inspect.history.bounds import WindowBounds
from tidestate.operators.inspect.history.changes import StateChange
from tidestate.operators.inspect.history.emitted import Pane, Rejected
from tidestate.recovery.log.manifest import Ids

EventKind = Literal["folded", "fork", "reset", "added", "became", "row", "gone", "pane", "rejected", "forgotten"]
ORDER: tuple[EventKind, ...] = (
    "folded", "fork", "reset", "added", "gone", "became", "row", "pane", "rejected", "forgotten",
)  # fmt: skip
"""What comes first within a checkpoint."""


@dataclass(frozen=True)
class Event:
    """One thing that happened to the window. Times and bounds are text, in UTC, or whole numbers as text.

    ``input`` is what the checkpoint had taken in; ``watermark`` is that after it, of a rejected event the one it met.
    ``abandoned``: a later reset went back behind this checkpoint, so it counts no more.
    """

    checkpoint: int
    kind: EventKind
    what: str
    values: dict[str, Any]
    window: tuple[str | None, str | None] | None = None
    events: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    created: str | None = None
    input: dict[str, Any] | None = None
    input_text: str | None = None
    watermark_before: str | None = None
    watermark: str | None = None
    abandoned: bool = False


@dataclass(frozen=True)
class WindowHistory:
    """What happened to a window, oldest first. Changes are known from the checkpoint ``known_from`` on; what had come
    before is folded. ``shown``: rows that were shown and not taken back; of panes that follow one another the newest.
    ``unread``: abandoned checkpoints that cannot be read, so what they had is not among the events.
    """

    operator: str
    key: dict[str, str]
    start: str | None
    end: str | None
    known_from: int
    shown: list[dict[str, Any]]
    events: list[Event]
    unread: tuple[Ids, ...] = ()


@dataclass
class WindowRecords:
    """All there is of a key, of windows around some place."""

    folded: list[StateChange] = field(default_factory=list)
    folded_up_to: int = 0
    changes: list[StateChange] = field(default_factory=list)
    panes: list[Pane] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def add(self, other: WindowRecords) -> None:
        """What one more checkpoint added."""
        self.changes += other.changes
        self.panes += other.panes
        self.rejected += other.rejected

    def holds(self, window: WindowBounds) -> bool:
        """Whether anything came to a window, or was shown of it, or refused by it."""
        came = any(one.of(window) for one in (*self.folded, *self.changes))
        shown = any(one.window == window for one in self.panes)
        return came or shown or any(one.of(window) for one in self.rejected)

    def windows(self) -> dict[WindowBounds, int]:
        """All windows that rows name, and the newest checkpoint that does."""
        named = [(one.window, one.checkpoint) for one in self.panes if one.facts.get("kind") != "retract"]
        named += [
            (WindowBounds(one.start, one.end), one.checkpoint)
            for one in (*self.folded, *self.changes)
            if one.form.shape == "windows" and one.start is not None and one.end is not None
        ]
        newest: dict[WindowBounds, int] = {}
        for window, number in named:
            newest[window] = max(number, newest.get(window, 0))
        return newest
