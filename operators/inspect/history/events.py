"""The history of one window, as data: the records in files, and the events made from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tidestate.operators.inspect.history.bounds import WindowBounds
from tidestate.operators.inspect.history.changes import StateChange
from tidestate.operators.inspect.history.emitted import Pane, Rejected
from tidestate.recovery.log.manifest import Ids
from tidestate.recovery.log.ranges import ids_text
from tidestate.recovery.log.summary import aligned, pluralize

EventKind = Literal[
    "folded", "fork", "reset", "edit", "added", "became", "row", "gone", "pane", "hidden", "rejected", "expired"
]
ORDER: tuple[EventKind, ...] = (
    "folded", "fork", "reset", "edit", "added", "gone", "became", "row", "pane", "hidden", "rejected", "expired",
)  # fmt: skip
"""The order of events within a checkpoint."""
HISTORY_COLUMNS = ("id", "created", "event", "values", "input", "watermark")
"""Of a history that is printed."""
LONG = 60
"""Longer values are cut there."""


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


@dataclass(frozen=True, repr=False)
class WindowHistory:
    """The history of a window, oldest first. Changes are known from the checkpoint ``known_from`` on; earlier ones
    are folded. ``result``: rows that were emitted and not retracted; of successive panes the newest. ``unread``:
    abandoned checkpoints that cannot be read, so their events are missing. It prints itself.
    """

    operator: str
    key: dict[str, str]
    start: str | None
    end: str | None
    known_from: int
    result: list[dict[str, Any]]
    events: list[Event]
    unread: tuple[Ids, ...] = ()

    @property
    def heading(self) -> str:
        """Which window it is of."""
        key = ", ".join(f"{name}={value}" for name, value in self.key.items())
        end = _short(self.end, self._day)
        return f"window {self.start} to {end}{' of ' + key if key else ''}, operator {self.operator}"

    @property
    def notes(self) -> list[str]:
        """How far it goes back."""
        gaps = [f"abandoned and not readable: {ids_text(self.unread)}"] if self.unread else []
        return [f"changes are known from checkpoint {self.known_from} on", *gaps]

    @property
    def outcome(self) -> str:
        """The current result of the window."""
        rows = self.result
        return f"result: {values_text(rows[0]) if len(rows) == 1 else f'{len(rows):,} rows' if rows else 'none'}"

    def cells(self, limit: int | None = None) -> Iterator[tuple[str, ...]]:
        """The first events as rows of a table with `HISTORY_COLUMNS`."""
        day, last = self._day, None
        for event in self.events[:limit]:
            repeats, last = event.checkpoint == last, event.checkpoint
            yield (
                "" if repeats else str(event.checkpoint),
                "" if repeats else event.created[5:] if event.created else "-",
                _short(event.what, day) + (" (abandoned)" if event.abandoned else ""),
                _short(values_text(event.values), day) + _count(event.events),
                "" if repeats else event.input_text or "-",
                _watermark(event, day, repeats=repeats),
            )

    @property
    def _day(self) -> str:
        """The day on which the window starts, which times of that day are printed without."""
        return (self.start or "")[:11] if " " in (self.start or "") else ""

    def __str__(self) -> str:
        return "\n".join([self.heading, *self.notes, *aligned([HISTORY_COLUMNS, *self.cells()]), self.outcome])

    __repr__ = __str__


@dataclass
class WindowRecords:
    """All records of a key, of windows that touch some bounds."""

    folded_changes: list[StateChange] = field(default_factory=list)
    folded_up_to: int = 0
    changes: list[StateChange] = field(default_factory=list)
    panes: list[Pane] = field(default_factory=list)
    rejections: list[Rejected] = field(default_factory=list)

    def add(self, records: WindowRecords) -> None:
        """Add the records of another checkpoint."""
        self.changes += records.changes
        self.panes += records.panes
        self.rejections += records.rejections

    def holds(self, window: WindowBounds) -> bool:
        """Whether there is any record of a window."""
        records: list[StateChange | Rejected] = [*self.folded_changes, *self.changes, *self.rejections]
        return any(record.of(window) for record in records) or any(pane.window == window for pane in self.panes)

    def windows(self) -> dict[WindowBounds, int]:
        """All windows with records, each with the newest checkpoint that has one."""
        dated_windows = [(pane.window, pane.checkpoint) for pane in self.panes if pane.facts.get("kind") != "retract"]
        dated_windows += [
            (WindowBounds(change.start, change.end), change.checkpoint)
            for change in (*self.folded_changes, *self.changes)
            if change.form.shape == "windows" and change.start is not None and change.end is not None
        ]
        dated_windows += self._of_parts()
        newest: dict[WindowBounds, int] = {}
        for window, number in dated_windows:
            newest[window] = max(number, newest.get(window, 0))
        return newest

    def _of_parts(self) -> list[tuple[WindowBounds, int]]:
        """The sessions that parts form, each with the newest checkpoint of its parts."""
        parts = [
            (change.start, change.end, change.checkpoint)
            for change in (*self.folded_changes, *self.changes)
            if change.form.shape == "parts" and change.start is not None and change.end is not None
        ]
        sessions: list[tuple[WindowBounds, int]] = []
        for start, end, number in sorted(parts):
            if sessions and start < sessions[-1][0].end:
                window, newest = sessions.pop()
                start, end, number = window.start, max(end, window.end), max(number, newest)
            sessions.append((WindowBounds(start, end), number))
        return sessions


def values_text(values: dict[str, Any] | None = None) -> str:
    """Values for people; long ones are cut."""
    texts = (
        (name, f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value))
        for name, value in (values or {}).items()
    )
    return " ".join(f"{name}={text if len(text) <= LONG else text[:LONG] + '…'}" for name, text in texts)


def _count(events: int | None) -> str:
    return "" if events is None else f" ({pluralize(events, 'event')})"


def _short(words: str | None, day: str) -> str:
    """Without the date, for times on the day on which the window starts."""
    words = "-" if words is None else words
    return words.replace(day, "") if day else words


def _watermark(event: Event, day: str, *, repeats: bool) -> str:
    if event.kind == "rejected":
        return f"at {_short(event.watermark, day)}"
    if repeats or event.watermark is None:
        return ""
    arrow = "→ " if event.watermark != event.watermark_before else ""
    return arrow + _short(event.watermark, day)
