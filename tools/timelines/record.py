"""Runs a scenario on the real operator and writes down, step by step, what can be drawn."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from tidestate.operators.streams.stream import Aggregation
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import END_OF_TIME_US
from tools.timelines.scenarios import Scenario

MINUTE_US = 60_000_000
NOON_US = int(datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
FAR = 10**6
"""Minutes that stand for the end of time."""
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("time", TIME), ("offset", pa.int64()), ("value", pa.int64()), ("window_start", TIME), ("window_end", TIME)]
)

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """An event as a story has it: its value, where it lies, and the start of the window that it names, if it does."""

    value: int
    at: int
    start: int | None


@dataclass(frozen=True)
class Dot:
    """An event: where it is drawn, whether behind the watermark, and why it was rejected, if it was."""

    at: float
    value: int
    late: bool
    reason: str | None


@dataclass(frozen=True)
class Pane:
    """A pane, its window in minutes (or message numbers, or offsets)."""

    window: Bounds
    value: int | None
    number: int
    timing: str
    kind: str
    last: bool


@dataclass(frozen=True)
class Row:
    """A step: what came, where the watermark stood before and after, panes, and the windows kept at its end."""

    label: str
    dots: tuple[Dot, ...]
    before: float | None
    after: float | None
    clock: bool
    panes: tuple[Pane, ...]
    kept: frozenset[Bounds]


class Recorder:
    """One run of a description."""

    def __init__(self, description: Aggregation, scenario: Scenario, folder: str) -> None:
        self._scenario, self._folder = scenario, folder
        self._harness = description.harness(SCHEMA, folder=folder, generate=scenario.follows)
        self._harness.advance_processing_time(NOON_US)
        self._watermark = self._reached()
        self._fed = self._accepted = self._rejected = 0
        self._refused: list[Event] = []

    def take(self, step: str) -> Row:
        """One step, as in `tools.timelines.scenarios`."""
        before = self._watermark
        events: list[Event] = []
        if "@" in step:
            events = [_event(word) for word in step.split()]
            panes, label = self._harness.feed([self._row(event) for event in events]), self._label(events)
        elif step == "feed":
            events, self._refused = self._refused, []
            panes, label = self._harness.reprocess_late(), f"reprocess: {_values(events)}"
        elif step == "end":
            panes, label = self._harness.finish(), "end of the input"
        elif step.startswith("W"):
            panes, label = self._harness.advance_watermark(_us(int(step[1:]))), f"watermark {clock_text(step[1:])}"
        else:
            panes, label = self._harness.advance_processing_time(_us(int(step[1:]))), f"clock {clock_text(step[1:])}"
        self._watermark = self._reached()
        drawn = tuple(self._pane(row) for row in panes.to_pylist())
        kept = frozenset(self._bounds(row) for row in self._harness.windows().to_pylist())
        dots = self._dots(events, before)
        return Row(label, dots, before, self._watermark, step.startswith("P"), drawn, kept)

    def _row(self, event: Event) -> dict[str, object]:
        offset = event.at if self._scenario.axis == "offset" else self._fed
        self._fed += 1
        if event.start is not None:
            return {"value": event.value, "window_start": _moment(event.start), "window_end": _moment(event.at)}
        return {"time": _moment(event.at), "offset": offset, "value": event.value}

    def _label(self, events: list[Event]) -> str:
        first = events[0]
        if len(events) > 1:
            return f"one batch: {_values(events)}"
        if first.start is not None:
            return f"{first.value} of {clock_text(first.start)} – {clock_text(first.at)}"
        return f"{first.value} at {f'offset {first.at}' if self._scenario.axis == 'offset' else clock_text(first.at)}"

    def _reached(self) -> float | None:
        """The watermark on the axis that is drawn."""
        head = Checkpoint.open(self._folder).head()
        found = head.manifest.watermark_us if head else None
        if found is None:
            return None
        if found == END_OF_TIME_US:
            return FAR
        return found if self._scenario.axis == "offset" else (found - NOON_US) / MINUTE_US

    def _dots(self, events: list[Event], watermark: float | None) -> tuple[Dot, ...]:
        ledger = self._harness.ledger().to_pylist()
        fresh = {row["value"]: row["reason"] for row in ledger[self._rejected :]}
        self._rejected = len(ledger)
        dots = []
        for event in events:
            reason = fresh.get(event.value)
            late = self._scenario.axis != "number" and watermark is not None and event.at < watermark
            dots.append(Dot(self._place(event), event.value, late, reason))
            self._accepted += reason is None
            self._refused += [event] if reason == "very_late" else []
        return tuple(dots)

    def _place(self, event: Event) -> float:
        """Numbers and offsets are drawn in the middle of their column, a pane at the end of the window it names."""
        if self._scenario.axis == "number":
            return self._accepted + 0.5
        return event.at + 0.5 if self._scenario.axis == "offset" else event.at - 0.5 * (event.start is not None)

    def _bounds(self, row: dict[str, object]) -> Bounds:
        return _minute(row["window_start"]), _minute(row["window_end"])

    def _pane(self, row: dict[str, object]) -> Pane:
        return Pane(
            self._bounds(row),
            row["total"],  # type: ignore[arg-type]
            int(str(row["pane"])),
            str(row["timing"]),
            str(row["kind"]),
            bool(row["last"]),
        )


def record(description: Aggregation, scenario: Scenario) -> list[Row]:
    """Every step of the scenario, with what it led to."""
    with tempfile.TemporaryDirectory(prefix="timeline-") as folder:
        recorder = Recorder(description, scenario, folder)
        return [recorder.take(step) for step in scenario.steps]


def _event(word: str) -> Event:
    value, _, at = word.partition("@")
    start, dash, end = at.partition("-")
    return Event(int(value), int(end if dash else at), int(start) if dash else None)


def _values(events: list[Event]) -> str:
    return ", ".join(str(event.value) for event in events)


def clock_text(minute: int | str) -> str:
    """Minutes after 12:00 as the time of day."""
    hours, minutes = divmod(12 * 60 + int(minute), 60)
    return f"{hours}:{minutes:02}"


def _us(minute: int) -> int:
    return NOON_US + minute * MINUTE_US


def _moment(minute: int) -> datetime:
    return datetime.fromtimestamp(_us(minute) / 1_000_000, UTC)


def _minute(bound: object) -> int:
    """Message numbers as they are; times in minutes, those at the ends of time cut off."""
    if isinstance(bound, datetime):
        return max(-FAR, min(FAR, int((bound.timestamp() * 1_000_000 - NOON_US) // MINUTE_US)))
    return int(str(bound))
