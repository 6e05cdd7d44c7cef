"""The naive twin, with the rest of the rules: declared order, other axes than event time, retention and feeding back.

As `tests.twins.general`: one event at a time, nothing clever, and where the rules leave a choice a comment "Choice".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.twins.general import Element, Twin, Window
from tests.twins.words import FOREVER, Kind, Reason, Rejected, Row, Setting, Trigger, session, sliding


class Message(NamedTuple):
    """An event with a place in an input that has an order, or (a pane of another operator) in a window."""

    time: int | None
    k: str | None
    v: int | None
    origin: int | None = None
    offset: int | None = None
    window_start: int | None = None
    window_end: int | None = None


@dataclass(frozen=True)
class OrderedSetting(Setting):
    """``axis`` is what the watermark moves on: ``event`` times, ``offset``\\ s, ``processing`` time.

    ``offset`` and ``origin``: whether these columns are declared. ``inherited``: windows are those of the input, and
    with ``timeless`` so is the event time. ``when`` is a condition that closes its window (see `Finishing`).
    """

    axis: str = "event"
    offset: bool = False
    origin: bool = False
    inherited: bool = False
    timeless: bool = False
    per_element: bool = False
    retain: int | None = None
    newest: int | None = None
    when: Trigger | None = None


def offset_window(size: int, step: int | None = None, behind: int | None = None, **more: Any) -> OrderedSetting:
    """Windows of offsets, which are on time, late and too late by the largest offset seen."""
    kind = sliding(size, step or size)
    allowed = size if behind is None else behind
    return OrderedSetting(kind, allowed=allowed, rule="window", axis="offset", offset=True, **more)


def offset_session(gap: int, behind: int | None = None, **more: Any) -> OrderedSetting:
    allowed = gap if behind is None else behind
    return OrderedSetting(session(gap), allowed=allowed, rule="window", axis="offset", offset=True, **more)


def inherited(allowed: int = 0, **more: Any) -> OrderedSetting:
    """Windows that the input brings."""
    return OrderedSetting(Kind("inherited"), allowed=allowed, inherited=True, **more)


class Finishing(NamedTuple):
    """What a closing condition says at the end of a batch: whether there is a pane, and whether it was the last."""

    fires: bool
    finished: bool


@dataclass
class Fate:
    """What becomes of a window whose trigger can finish."""

    held: bool = False
    finished: bool = False


@dataclass
class OrderedTwin(Twin):
    """Feed it steps; it returns the rows of each."""

    setting: OrderedSetting
    fed: int = 0
    """How many entries of the ledger a feeding has looked at."""
    reprocessing: bool = False
    fresh: list[Element] = field(default_factory=list)
    """Elements of this batch, in order."""
    fates: dict[int, Fate] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=lambda: {"fed": 0, "fed_accepted": 0, "window_closed": 0})

    def batch(self, events: Iterable[Message], watermark: int | None = None, now: int | None = None) -> list[Row]:  # type: ignore[override]
        self.fresh = []
        if self.setting.axis == "processing" and watermark != FOREVER:
            watermark = self.now if now is None else max(now, self.now)
        return super().batch(self.in_order(events), watermark, now)  # type: ignore[arg-type]

    def in_order(self, events: Iterable[Message]) -> list[Message]:
        """As declared; else as they come."""
        if not self.setting.offset:
            return list(events)
        return sorted(events, key=self.rank)

    def rank(self, event: Message) -> tuple[int, int]:
        """By origin, where one is declared, then by offset."""
        # Choice: of those without a place in the order nothing is taken, so it does not matter where they stand.
        return (event.origin or 0) if self.setting.origin else 0, event.offset or 0

    def reached(self, events: Iterable[Message]) -> int | None:
        """The watermark that these events alone would make: exclusive for offsets."""
        # Choice: an event that is unusable says nothing about progress; one that is late cannot.
        usable = [event for event in events if self.unusable(event) is None]  # type: ignore[arg-type]
        if self.setting.axis == "processing":
            return None
        if self.setting.timeless:  # rows of a window may come for as long as none of a later one has
            return max((event.window_start for event in usable if event.window_start is not None), default=None)
        behind = 1 if self.setting.axis == "offset" else 0
        return max((self.place(event) + behind for event in usable), default=None)  # type: ignore[arg-type]

    # Where an event lies

    def unusable(self, event: Message) -> Reason | None:  # type: ignore[override]
        # Choice: time before key before offset, and all before lateness; no time is needed where none is asked for.
        if event.time is None and self.setting.axis == "event" and not self.setting.timeless:
            return "null_event_time"
        if None in self.setting.key_of(event):  # type: ignore[arg-type]
            return "null_key"
        nowhere = event.offset is None or event.offset < 0 or (self.setting.origin and event.origin is None)
        return "bad_offset" if self.setting.offset and nowhere else None

    def place(self, event: Message) -> int:  # type: ignore[override]
        if self.setting.axis == "processing":
            return self.now
        if self.setting.axis == "offset":
            assert event.offset is not None
            return event.offset
        if self.setting.timeless:
            assert event.window_end is not None
            return event.window_end - 1
        assert event.time is not None
        return event.time

    def asked(self, event: Message) -> list[tuple[int, int]]:  # type: ignore[override]
        if self.setting.inherited:
            assert event.window_start is not None
            assert event.window_end is not None
            return [(event.window_start, event.window_end)]
        found = super().asked(event)  # type: ignore[arg-type]
        return found if self.setting.axis != "offset" or self.gap else [each for each in found if each[0] >= 0]

    @property
    def gap(self) -> bool:
        return self.setting.windows.name == "session"

    def put(self, event: Message, bounds: tuple[int, int]) -> None:  # type: ignore[override]
        if self.setting.when is not None:
            key = self.setting.key_of(event)  # type: ignore[arg-type]
            closed = [w for w in self.live if (w.start, w.end) == bounds and w.key == key and self.fate(w).finished]
            if closed:
                self.ledger.append(Rejected(event, "window_closed", self.watermark, (bounds,), True))  # type: ignore[arg-type]
                self.counters["window_closed"] += 1
                return
        known = {id(element) for window in self.live for element in window.elements}
        super().put(event, bounds)  # type: ignore[arg-type]
        self.fresh += [e for window in self.live for e in window.elements if id(e) not in known]

    def takers(self) -> list[Window]:
        # Choice: an ordinary session event does not wake a session that is only retained, as if it were not there.
        return [w for w in self.live if self.reprocessing or not self.over((w.start, w.end), self.watermark)]

    # Retention

    def over(self, bounds: tuple[int, int], watermark: int | None) -> bool:
        """Whether the window takes no ordinary events any more."""
        if watermark == FOREVER:
            return True
        if watermark is None or self.setting.windows.name in ("global", "count"):
            return False
        return bounds[1] + self.setting.allowed <= watermark

    def purged(self, bounds: tuple[int, int]) -> bool:
        """Whether it is not even retained."""
        end, watermark, retain, newest = bounds[1], self.watermark, self.setting.retain, self.setting.newest
        if not self.over(bounds, watermark) or watermark is None:
            return False
        if watermark == FOREVER or (retain is None and newest is None):
            return True
        if newest is not None:
            size, slide, offset = self.setting.windows.sizes
            last = offset + size + (watermark - offset - size) // slide * slide
            if end <= last - newest * slide:
                return True
        return retain is not None and end + retain <= watermark

    def forgotten(self, window: Window) -> bool:
        if self.setting.windows.name == "count":
            return self.expired(window)
        return self.purged((window.start, window.end))

    def silent(self, window: Window, before: int | None) -> bool:
        """A window that is only retained shows something when it is fed, and then only."""
        if not self.over((window.start, window.end), before):
            return False
        return not (self.reprocessing and window.touched)

    # Feeding back

    def reprocess_late(self, rows: Iterable[Message] | None = None) -> list[Row]:
        """What was too late comes after all; the watermark stays."""
        self.fresh, self.reprocessing = [], True
        for window in self.live:
            window.touched = False
        if rows is None:
            reported = self.ledger[self.fed :]
            self.fed = len(self.ledger)
            lines = [line for entry in reported if entry.reason == "very_late" for line in self.lines(entry)]
        else:
            lines = [(row, None) for row in rows]
        if self.setting.offset:
            lines.sort(key=lambda line: self.rank(line[0]))
        for event, only in lines:
            self.feed(event, only)
        panes = self.step(None, None)
        self.reprocessing = False
        return panes

    def lines(self, entry: Rejected) -> list[tuple[Any, tuple[int, int] | None]]:
        """The rows of a ledger entry: each event, or the window that alone refused it."""
        if not entry.taken:
            return [(entry.event, None)]
        return [(entry.event, bounds) for bounds in entry.windows]

    def feed(self, event: Any, only: tuple[int, int] | None) -> None:
        self.counters["fed"] += 1
        reason = self.unusable(event)
        if reason is not None:
            self.ledger.append(Rejected(event, reason, self.watermark))
            return
        if self.setting.windows.name == "count":
            # Choice: it takes the next number of its key, as if it came just now.
            self.counters["fed_accepted"] += 1
            self.put_counted(event)
            return
        found = [only] if only is not None else self.asked(event)
        # Choice: a session event by its own interval, not by that of the session it would join.
        purged = [bounds for bounds in found if self.purged(bounds)]
        if only is not None and purged:
            # Choice: other windows have taken this event, so the row names the window.
            self.ledger.append(Rejected(event, "purged", self.watermark, (only,), True))
        elif purged:
            self.ledger.append(Rejected(event, "purged", self.watermark, tuple(purged), len(purged) < len(found)))
        if len(purged) < len(found):
            self.counters["fed_accepted"] += 1
        for bounds in found:
            if bounds not in purged:
                self.put(event, bounds)

    # Firing

    def fire_all(self, before: int | None, clock: int) -> list[Row]:
        found = super().fire_all(before, clock)
        for window in self.live:
            bounds = (window.start, window.end)
            if self.over(bounds, self.watermark) and not self.over(bounds, before):
                for element in window.elements:
                    element.closed = True
        # Choice: of several panes of a window in one step, `last` is on the last one.
        final = {row[:3]: number for number, row in enumerate(found) if row.kind == "emit"}
        return [row._replace(last=row.last and final[row[:3]] == number) for number, row in enumerate(found)]

    def panes_of(self, window: Window, timing: str, before: int | None, clock: int) -> tuple[str, list[Row]]:
        if self.setting.when is not None:
            return timing, self.by_condition(window, timing)
        if not self.setting.per_element:
            return super().panes_of(window, timing, before, clock)
        place = "late" if timing == "late" else "early"
        wish = self.setting.late if timing == "late" else self.setting.early
        everything, found = window.elements, []
        new = {id(element) for element in self.fresh}
        window.elements = [element for element in everything if id(element) not in new]
        for element in [element for element in everything if id(element) in new]:
            window.elements.append(element)
            if wish is not None and len(window.waiting) >= wish.amount:
                found += self.fire(window, place)
        if timing == "on_time" and (
            self.setting.on_time == "always" or (self.setting.on_time == "non_empty" and window.new)
        ):
            found += self.fire(window, "on_time")
        # Choice: what is left over when the window is forgotten is observed, although there were panes in this batch.
        elif found and window.waiting and self.expired(window) and self.setting.closing != "never":
            found += self.fire(window, timing)
        if timing == "on_time":
            # The window as a whole has its last pane in this step, also those observed when it was not full yet.
            found = [row._replace(last=row.kind == "emit" and self.expired(window)) for row in found]
        return place, found

    def closes(self, window: Window) -> bool:
        return super().closes(window) and not (self.setting.when is not None and self.fate(window).finished)

    def fate(self, window: Window) -> Fate:
        return self.fates.setdefault(id(window), Fate())

    def by_condition(self, window: Window, timing: str) -> list[Row]:
        fate = self.fate(window)
        if fate.finished:
            return []
        fires, fate.finished = self.condition(window, timing, fate)
        found = self.fire(window, timing) if fires else []
        # What is finished emits no more: its window is closed.
        return [row._replace(last=row.last or (fate.finished and row.kind == "emit")) for row in found]

    def condition(self, window: Window, timing: str, fate: Fate) -> Finishing:
        """``after_count``: once. ``count_or_end``: with the first of count and watermark. ``count_and_end``: when
        both have been. ``counts_until_end``: with each count, until the watermark.
        """
        wish = self.setting.when
        assert wish is not None
        counted = window.touched and len(window.new) >= wish.amount
        passed = timing != "early"
        fate.held = fate.held or counted
        if wish.kind == "after_count":
            return Finishing(counted, counted)
        if wish.kind == "count_or_end":
            return Finishing(counted or passed, counted or passed)
        if wish.kind == "count_and_end":
            return Finishing(fate.held and passed, fate.held and passed)
        return Finishing(counted or passed, passed)
