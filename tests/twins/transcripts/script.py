"""How a transcript is written, and how it is played.

As in `general_scenarios` a step is text and the panes after it: ``0..10 a early0 1+2``, ``-`` for a retraction, ``!``
for last. Words of a step: ``a7`` an event of key a at 7, ``a@5`` one at offset 5 (``a@2/5``: of origin 2, ``a7@5``:
at time 7; ``a@-`` without an offset), ``a[0..10]`` one that brings its window (``a[0..10]7``: and a time), ``?7`` one
without a key; ``W10`` and ``P5`` then move the watermark and the clock, ``feed`` feeds back the ledger, ``feed:`` the
events after it, ``end`` ends the input. ``x3 very_late 20 0..10`` is a row of the ledger: event 3, the reason, the
watermark it met, and the window that refused it if that is named. ``= 0..10 a 1+2`` lists the windows that are kept
then (in each step that has such a line, all of them; ``=`` alone: none).
"""

from __future__ import annotations

import re
from typing import Any

from tests.twins.ordered import Message, OrderedSetting, OrderedTwin
from tests.twins.words import FOREVER, Kind, Rejected, Row, Trigger, tumbling

Step = tuple[str, ...]
TEN = tumbling(10)
COUNT_2, COUNT_3 = Trigger("after_count", 2), Trigger("after_count", 3)
AFTER_5, EVERY_5 = Trigger("after_processing_time", 5), Trigger("every_processing_time", 5)


def event_time(windows: Kind, **more: Any) -> OrderedSetting:
    return OrderedSetting(windows, **more)


def by_clock(windows: Kind, **more: Any) -> OrderedSetting:
    return OrderedSetting(windows, axis="processing", **more)


def ordered(windows: Kind, **more: Any) -> OrderedSetting:
    return OrderedSetting(windows, offset=True, **more)


def each(windows: Kind = TEN, early: Trigger | None = COUNT_2, **more: Any) -> OrderedSetting:
    return ordered(windows, early=early, per_element=True, **more)


_WORD = re.compile(r"([a-z?])(?:\[(-?\d+)\.\.(-?\d+)\])?(-?\d+)?(?:@(?:(-|\d+)/)?(-\d+|-|\d+))?")


class Script:
    """A step's text, read. ``moves`` are the watermark and the clock, in order; ``feeds``: events are fed back."""

    def __init__(self, text: str, reported: int) -> None:
        self.events: list[Message] = []
        self.moves: list[tuple[str, int]] = []
        self.feeds: str = ""
        for word in text.split():
            if word in ("feed", "feed:"):
                self.feeds = word
            elif word == "end":
                self.moves.append(("end", FOREVER))
            elif word[0] in "WP":
                self.moves.append((word[0], int(word[1:])))
            else:
                self.events.append(message(word, reported + len(self.events) + 1))


def message(word: str, number: int) -> Message:
    found = _WORD.fullmatch(word)
    assert found is not None, word
    key, start, end, time, origin, offset = found.groups()

    def of(text: str | None) -> int | None:
        return None if text in (None, "-") else int(text or "")

    placed = of(time) if time is not None or offset is None else 0
    return Message(placed, None if key == "?" else key, number, of(origin), of(offset), of(start), of(end))


def numbers(events: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(event.v for event in events))


def played(setting: OrderedSetting, steps: list[Step]) -> list[Step]:
    """What the twin shows, in the words of the scenario."""
    twin = OrderedTwin(setting, numbers)
    reported, found = 0, []
    for text, *expected in steps:
        step = Script(text, reported)
        reported += len(step.events)
        before = len(twin.ledger)
        rows = play(twin, step)
        lines = [*map(answered, rows), *(line for entry in twin.ledger[before:] for line in refused(entry))]
        if any(line.startswith("=") for line in expected):
            lines += kept(twin.live_windows())
        found.append((text, *lines))
    return found


def play(twin: OrderedTwin, step: Script) -> list[Row]:
    """Each of its words that moves something, and its events before them, is a batch of its own."""
    if step.feeds:
        assert not step.moves
        return twin.reprocess_late(step.events if step.feeds == "feed:" else None)
    rows: list[Row] = []
    if step.events:
        rows = twin.batch(step.events, twin.reached(step.events) if twin.setting.axis == "offset" else None)
    for what, time in step.moves:
        rows += twin.batch([], now=time) if what == "P" else twin.batch([], time)
    return rows


def answered(row: Row) -> str:
    bounds = [str(time).replace(str(FOREVER), "inf") for time in row[:2]]
    values = "+".join(map(str, row.values))
    sign = "-" if row.kind == "retract" else ""
    key = row.key[0] if row.key else ""
    return f"{sign}{'..'.join(bounds)} {key} {row.timing}{row.pane} {values}{'!' * row.last}"


def refused(entry: Rejected) -> list[str]:
    start = f"x{entry.event.v} {entry.reason} {'-' if entry.watermark is None else entry.watermark}"
    return [f"{start} {low}..{high}" for low, high in entry.windows] if entry.taken else [start]


def kept(windows: list[tuple]) -> list[str]:
    rows = sorted(f"= {start}..{end} {key[0]} {'+'.join(map(str, values))}" for start, end, key, values in windows)
    return rows or ["="]


def sorted_steps(steps: list[Step]) -> list[Step]:
    """Panes of one window in their order, everything else in any."""
    return [(text, *sorted(lines, key=_of_window)) for text, *lines in steps]


def _of_window(line: str) -> tuple[str, ...]:
    return tuple(line.removeprefix("-").split()[:2]) if ".." in line.split()[0] else (line,)
