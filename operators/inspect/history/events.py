"""The history of one window, as data: the records in files, and the events made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tidestate.operators.inspect.history.bounds import WindowBounds
from tidestate.operators.inspect.history.changes import StateChange
from tidestate.operators.inspect.history.emitted import Pane, Rejected
from tidestate.recovery.log.manifest import Ids

EventKind = Literal["folded", "fork", "reset", "added", "became", "row", "gone", "pane", "rejected", "expired"]
ORDER: tuple[EventKind, ...] = (
    "folded", "fork", "reset", "added", "gone", "became", "row", "pane", "rejected", "expired",
)  # fmt: skip
"""The order of events within a checkpoint."""


@dataclass(frozen=True)
class Event:
    """One event in the history of a window. Times and bounds are text, in UTC, or integers as text.

    ``input`` is the input of the checkpoint; ``watermark`` is the one after it, for a rejected event the one at which
    it was rejected. ``abandoned``: a later reset has abandoned this checkpoint, so it no longer counts.
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
    """The history of a window, oldest first. Changes are known from the checkpoint ``known_from`` on; earlier ones
    are folded. ``result``: rows that were emitted and not retracted; of successive panes the newest. ``unread``:
    abandoned checkpoints that cannot be read, so their events are missing.
    """

    operator: str
    key: dict[str, str]
    start: str | None
    end: str | None
    known_from: int
    result: list[dict[str, Any]]
    events: list[Event]
    unread: tuple[Ids, ...] = ()


@dataclass
class WindowRecords:
    """All records of a key, of windows that touch some bounds."""

    folded: list[StateChange] = field(default_factory=list)
    folded_up_to: int = 0
    changes: list[StateChange] = field(default_factory=list)
    panes: list[Pane] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def add(self, other: WindowRecords) -> None:
        """Add the records of another checkpoint."""
        self.changes += other.changes
        self.panes += other.panes
        self.rejected += other.rejected

    def holds(self, window: WindowBounds) -> bool:
        """Whether there is any record of a window."""
        records: list[StateChange | Rejected] = [*self.folded, *self.changes, *self.rejected]
        return any(one.of(window) for one in records) or any(pane.window == window for pane in self.panes)

    def windows(self) -> dict[WindowBounds, int]:
        """All windows with records, each with the newest checkpoint that has one."""
        named = [(one.window, one.checkpoint) for one in self.panes if one.facts.get("kind") != "retract"]
        named += [
            (WindowBounds(one.start, one.end), one.checkpoint)
            for one in (*self.folded, *self.changes)
            if one.form.shape == "windows" and one.start is not None and one.end is not None
        ]
        named += self._of_parts()
        newest: dict[WindowBounds, int] = {}
        for window, number in named:
            newest[window] = max(number, newest.get(window, 0))
        return newest

    def _of_parts(self) -> list[tuple[WindowBounds, int]]:
        """The sessions that parts form, each with the newest checkpoint of its parts."""
        parts = [
            (one.start, one.end, one.checkpoint)
            for one in (*self.folded, *self.changes)
            if one.form.shape == "parts" and one.start is not None and one.end is not None
        ]
        found: list[tuple[WindowBounds, int]] = []
        for start, end, number in sorted(parts):
            if found and start < found[-1][0].end:
                window, newest = found.pop()
                start, end, number = window.start, max(end, window.end), max(number, newest)
            found.append((WindowBounds(start, end), number))
        return found
