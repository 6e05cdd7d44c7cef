"""Runs a scenario on the real operator and writes down, step by step, what can be drawn."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from operators.binding import bind_plan
from operators.description import Windowed
from operators.general.plan import GeneralPlan
from operators.harness import Harness
from tools.timelines.scenarios import Scenario

MINUTE_US = 60_000_000
NOON_US = int(datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
FAR = 10**6
"""Minutes that stand for the end of time."""
SCHEMA = pa.schema([("time", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Dot:
    """An event: where it lies, whether behind the watermark, and why it was rejected, if it was."""

    at: int
    value: int
    late: bool
    reason: str | None


@dataclass(frozen=True)
class Pane:
    """A pane, its window in minutes (or message numbers)."""

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
    before: int | None
    after: int | None
    clock: bool
    panes: tuple[Pane, ...]
    kept: frozenset[Bounds]


class Recorder:
    """One run of a description."""

    def __init__(self, description: Windowed, scenario: Scenario, folder: str) -> None:
        self._description, self._scenario = description, scenario
        self._harness = Harness(description, SCHEMA, folder=folder, generate=False)
        self._harness.advance_processing_time(NOON_US)
        self._whole = isinstance(bind_plan(description, SCHEMA), GeneralPlan)
        self._watermark: int | None = None
        self._accepted: list[Dot] = []
        self._rejected = 0

    def take(self, step: str) -> Row:
        """One step, as in `tools.timelines.scenarios`."""
        before = self._watermark
        dots: tuple[Dot, ...] = ()
        if "@" in step:
            pairs = [(int(value), int(at)) for value, _, at in (part.partition("@") for part in step.split())]
            shown = self._harness.feed([{"time": _moment(at), "value": value} for value, at in pairs])
            dots, label = self._dots(pairs), f"one batch: {', '.join(str(value) for value, _ in pairs)}"
            label = label if len(pairs) > 1 else f"{pairs[0][0]} at {clock_text(pairs[0][1])}"
        elif step == "end":
            shown, self._watermark, label = self._harness.finish(), FAR, "end of the input"
        elif step.startswith("W"):
            self._watermark = int(step[1:])
            shown, label = self._harness.advance_watermark(_us(self._watermark)), f"watermark {clock_text(step[1:])}"
        else:
            shown = self._harness.advance_processing_time(_us(int(step[1:])))
            label = f"clock {clock_text(step[1:])}"
        panes = tuple(self._pane(row) for row in shown.to_pylist())
        return Row(label, dots, before, self._watermark, step.startswith("P"), panes, self._kept())

    def _dots(self, pairs: list[tuple[int, int]]) -> tuple[Dot, ...]:
        ledger = self._harness.ledger().to_pylist()
        fresh = {row["time"]: row["reason"] for row in ledger[self._rejected :]}
        self._rejected = len(ledger)
        behind = -FAR if self._watermark is None or self._scenario.numbered else self._watermark
        dots = []
        for value, at in pairs:
            reason = fresh.get(_moment(at))
            place = len(self._accepted) if self._scenario.numbered else at
            dots.append(Dot(place, value, at < behind, reason))
            self._accepted += [] if reason else [dots[-1]]
        return tuple(dots)

    def _kept(self) -> frozenset[Bounds]:
        """Windows that are kept. Where state is in slices they follow from the events, as the rule says."""
        if self._watermark == FAR:
            return frozenset()
        if self._whole:
            return frozenset(self._bounds(row) for row in self._harness.windows().to_pylist())
        windows, allowed = self._description.windows, self._description.lateness.allowed_us // MINUTE_US
        size, slide = windows.size // MINUTE_US, windows.slide // MINUTE_US  # type: ignore[union-attr]
        found = set()
        for dot in self._accepted:
            starts = range(dot.at // slide * slide, dot.at - size, -slide)
            found |= {(start, start + size) for start in starts}
        return frozenset(w for w in found if self._watermark is None or w[1] + allowed > self._watermark)

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


def record(description: Windowed, scenario: Scenario) -> list[Row]:
    """Every step of the scenario, with what it led to."""
    with tempfile.TemporaryDirectory(prefix="timeline-") as folder:
        recorder = Recorder(description, scenario, folder)
        return [recorder.take(step) for step in scenario.steps]


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
