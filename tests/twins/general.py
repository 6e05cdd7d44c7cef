"""A deliberately naive twin of the general window operator: any window, trigger, lateness rule and mode.

One event at a time, every event kept forever, every value computed again from a list of events, every window
looked at in every batch. Times are integers (microseconds). Where the rules leave a choice, the comment that makes
it begins with "Choice".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.twins.naive import Event, Key, Values, values_of
from tests.twins.words import FOREVER, Reason, Rejected, Row, Setting, Trigger


@dataclass
class Element:
    """An event in a window: when it came (processing time), whether a pane has observed it, and whether its window
    closed meanwhile, so that no trigger waits with it."""

    event: Event
    came: int
    observed: bool = False
    closed: bool = False


@dataclass(eq=False)
class Window:
    """A window of one key. ``standing`` is the last pane it fired, ``replaced`` those of the sessions it replaces."""

    start: int
    end: int
    key: Key
    elements: list[Element] = field(default_factory=list)
    standing: Row | None = None
    replaced: list[Row] = field(default_factory=list)
    touched: bool = True

    @property
    def new(self) -> list[Element]:
        return [element for element in self.elements if not element.observed]

    @property
    def waiting(self) -> list[Element]:
        """What a trigger may wait with."""
        return [element for element in self.new if not element.closed]


@dataclass
class Twin:
    """Feed it steps; it returns the rows of each."""

    setting: Setting
    values: Callable[[list[Event]], Values] = values_of
    watermark: int | None = None
    # Choice: processing time begins at 0, so the first multiple of a span is the span.
    now: int = 0
    live: list[Window] = field(default_factory=list)
    gone: list[Window] = field(default_factory=list)
    accepted: dict[Key, int] = field(default_factory=dict)
    ledger: list[Rejected] = field(default_factory=list)

    def batch(self, events: Iterable[Event], watermark: int | None = None, now: int | None = None) -> list[Row]:
        """One step: the events, then the new watermark and the new processing time."""
        for window in self.live:
            window.touched = False
        for event in events:
            self.take(event)
        return self.step(watermark, now)

    def step(self, watermark: int | None, now: int | None) -> list[Row]:
        """The end of a batch: what it shows, and what is forgotten."""
        before, clock = self.watermark, self.now
        # Choice: neither the watermark nor processing time goes back; a lower one is ignored.
        if watermark is not None and (before is None or watermark > before):
            self.watermark = watermark
        self.now = max(clock, now) if now is not None else clock
        rows = self.fire_all(before, clock)
        forgotten = [window for window in self.live if self.forgotten(window)]
        self.live = [window for window in self.live if not self.forgotten(window)]
        self.gone += forgotten
        return rows

    def finish(self) -> list[Row]:
        """The watermark reaches the end of time."""
        return self.batch([], FOREVER)

    def live_windows(self) -> list[tuple[int, int, Key, Values]]:
        """Windows not yet forgotten, with what a pane fired now would show."""
        found = [(w.start, w.end, w.key, self.observed_by(w)) for w in self.live]
        return sorted(found, key=lambda row: (row[:2], str(row[2])))

    # Which events, and into which windows

    def take(self, event: Event) -> None:
        reason = self.unusable(event)
        if reason is not None:
            self.ledger.append(Rejected(event, reason, self.watermark))
            return
        if self.setting.windows.name == "count":
            self.take_counted(event)
            return
        found = self.asked(event)
        late = [window for window in found if self.window_too_late(window)]
        if self.event_too_late(self.place(event)):
            # Choice: also if (slide > size) no window would have held it.
            late = found
        if late or self.event_too_late(self.place(event)):
            # Choice: an event too late for some of its windows only is in the ledger for those, and in the others.
            self.ledger.append(Rejected(event, "very_late", self.watermark, tuple(late), len(late) < len(found)))
        if not found and self.setting.rule == "window" and self.behind(self.place(event)):
            self.ledger.append(Rejected(event, "no_window", self.watermark))
        for window in found:
            if window not in late:
                self.put(event, window)

    def unusable(self, event: Event) -> Reason | None:
        # Choice: a null time is found before a null key, and both before lateness.
        if event.time is None:
            return "null_event_time"
        if None in self.setting.key_of(event):
            return "null_key"
        return None

    def place(self, event: Event) -> int:
        """Where the event lies on the axis of the watermark."""
        assert event.time is not None
        return event.time

    def asked(self, event: Event) -> list[tuple[int, int]]:
        """Bounds of the windows the event asks for."""
        return self.windows_of(self.place(event))

    def windows_of(self, time: int) -> list[tuple[int, int]]:
        """Bounds of the windows an event of this time asks for (a session: its own)."""
        name, sizes = self.setting.windows
        if name == "global":
            return [(-FOREVER, FOREVER)]
        if name == "session":
            return [(time, time + sizes[0])]
        size, slide, offset = sizes
        start = offset + (time - offset) // slide * slide
        found = []
        while start + size > time:
            found.append((start, start + size))
            start -= slide
        return found

    def event_too_late(self, time: int) -> bool:
        """By rule `event`, and the watermark at the start of the batch."""
        return self.setting.rule == "event" and self.behind(time)

    def behind(self, time: int) -> bool:
        """Whether a time is further behind the watermark at the start of the batch than is allowed."""
        return self.watermark is not None and time < self.watermark - self.setting.allowed

    def window_too_late(self, window: tuple[int, int]) -> bool:
        """By rule `window`, and the watermark at the start of the batch."""
        # Choice: the global window never ends, so by this rule nothing is too late for it.
        if self.setting.rule != "window" or self.watermark is None or window[1] == FOREVER:
            return False
        return window[1] + self.setting.allowed <= self.watermark

    def take_counted(self, event: Event) -> None:
        """The n-th accepted message of the key is in every window [k step, k step + count) that holds n."""
        # Choice: count windows have no end in event time, so only rule `event` rejects from them.
        if self.event_too_late(self.place(event)):
            self.ledger.append(Rejected(event, "very_late", self.watermark))
        else:
            self.put_counted(event)

    def put_counted(self, event: Event) -> None:
        count, step = self.setting.windows.sizes
        key = self.setting.key_of(event)
        number = self.accepted.get(key, 0)
        # Choice: a message between two windows (step > count) is in none, and counts all the same.
        self.accepted[key] = number + 1
        start = 0
        while start <= number:
            if number < start + count:
                self.put(event, (start, start + count))
            start += step

    def put(self, event: Event, bounds: tuple[int, int]) -> None:
        key = self.setting.key_of(event)
        start, end = bounds
        if self.setting.windows.name == "session":
            met = [w for w in self.takers() if w.key == key and w.start < end and start < w.end]
        else:
            met = [w for w in self.live if w.key == key and (w.start, w.end) == bounds]
        window = self.merged(met, start, end, key)
        window.elements.append(Element(event, self.now))
        window.touched = True

    def takers(self) -> list[Window]:
        """Windows that an event may come to."""
        return self.live

    def merged(self, met: list[Window], start: int, end: int, key: Key) -> Window:
        """The window of these bounds and of all it meets: an old one if that is as large, else a new one instead."""
        start = min([start, *(window.start for window in met)])
        end = max([end, *(window.end for window in met)])
        if len(met) == 1 and (met[0].start, met[0].end) == (start, end):
            return met[0]
        # Choice: a grown session is another window: panes count from 0, no value has been fired for it. What its
        # parts have observed stays observed (for the triggers, and for what discarding shows next).
        window = Window(start, end, key)
        for part in met:
            window.elements += part.elements
            window.replaced += part.replaced
            window.replaced += [part.standing] if part.standing else []
        self.live = [w for w in self.live if w not in met] + [window]
        return window

    # When a window has passed, and when it is forgotten

    def passed(self, window: Window, watermark: int | None) -> bool:
        """Whether its end has passed; a count window's when it is full."""
        if watermark == FOREVER:
            return True  # Choice: the end of the input passes every window, so also counts not full, and global ones.
        if self.setting.windows.name == "count":
            return len(window.elements) == self.setting.windows.sizes[0]
        return watermark is not None and window.end <= watermark

    def expired(self, window: Window) -> bool:
        """Forgotten at the end of the batch; a full count window takes nothing more, so it goes at once."""
        if self.watermark == FOREVER or not self.passed(window, self.watermark):
            return self.watermark == FOREVER
        if self.setting.windows.name == "count":
            return True
        return self.watermark is not None and window.end + self.setting.allowed <= self.watermark

    def forgotten(self, window: Window) -> bool:
        """Whether nothing is kept of it after the batch."""
        return self.expired(window)

    # Firing

    def silent(self, window: Window, before: int | None) -> bool:
        """Whether it shows nothing in this batch, whatever the triggers say."""
        return False

    def fire_all(self, before: int | None, clock: int) -> list[Row]:
        """Late panes, on-time panes, early panes, closing panes."""
        rows: dict[str, list[Row]] = {"late": [], "on_time": [], "early": [], "closing": []}
        for window in self.live:
            if self.silent(window, before):
                continue
            timing = self.timing(window, before)
            taken_back = self.take_back(window, timing)
            place, panes = self.panes_of(window, timing, before, clock)
            rows[place] += taken_back + panes
            # Choice: a pane of the batch in which the window expires is its last; there is no closing pane too.
            if not panes and self.expired(window) and self.closes(window):
                # Choice: a closing pane is on time if the end passes in the same batch, else late.
                rows["closing"] += self.fire(window, timing)
        return rows["late"] + rows["on_time"] + rows["early"] + rows["closing"]

    def panes_of(self, window: Window, timing: str, before: int | None, clock: int) -> tuple[str, list[Row]]:
        """Where it belongs, and what the triggers show of the window at the end of the batch."""
        if timing == "on_time" and self.setting.on_time != "never":
            # Choice: it replaces an early pane that is due in the same batch (also if, with nothing new and
            # ``non_empty`` or ``only_updated``, it is not observed).
            wanted = self.setting.on_time == "always" or bool(window.new)
            return timing, self.fire(window, "on_time") if wanted else []
        # Choice: without an on-time pane, an early one that is due as the watermark passes still fires
        # (otherwise an element that comes in the batch of the passage would be in no pane).
        place = "late" if timing == "late" else "early"
        wish = self.setting.late if timing == "late" else self.setting.early
        return place, self.fire(window, place) if self.due(wish, window, before, clock) else []

    def timing(self, window: Window, before: int | None) -> str:
        """Where the window is: passed by the watermark before this batch, by the new one, or by neither."""
        # A count window that is full has not been so before, as it went in the batch that filled it.
        if self.setting.windows.name != "count" and self.passed(window, before):
            return "late"
        return "on_time" if self.passed(window, self.watermark) else "early"

    def closes(self, window: Window) -> bool:
        wish = self.setting.closing
        return wish == "always" or (wish == "if_new" and bool(window.waiting))

    def due(self, trigger: Trigger | None, window: Window, before: int | None, clock: int) -> bool:
        """Whether a trigger fires at the end of this batch."""
        if trigger is None:
            return False
        kind, amount = trigger
        if kind == "each_batch":
            return window.touched
        if kind == "after_count":
            # Choice: counted are elements in no pane yet (also those from before the passage, if nothing fired then),
            # and it takes an element in this batch to fire.
            return window.touched and len(window.waiting) >= amount
        if kind == "after_processing_time":
            # Choice: an element comes at the processing time before its batch; due at exactly the span.
            return bool(window.waiting) and self.now >= min(element.came for element in window.waiting) + amount
        # Choice: periodic triggers fire unchanged windows again, but in discarding mode (an empty pane says nothing).
        if self.setting.mode == "discarding" and not window.waiting:
            return False
        if kind == "every_processing_time":
            # Choice: several multiples passed at once give one pane, elements of the same batch in it.
            return self.now // amount > clock // amount
        return self.passes_a_span(window, before, amount)

    def passes_a_span(self, window: Window, before: int | None, span: int) -> bool:
        """Whether the watermark passes start + n span, n > 0, before the end of the window, in this batch."""
        if self.watermark is None:
            return False
        # Choice: the global window has no start; spans count from 0.
        start = window.start if window.start > -FOREVER else 0
        # Choice: the end of the window is none of them, also if the span divides the window.
        upto = min(self.watermark, window.end - 1)
        reached = (upto - start) // span
        was = (before - start) // span if before is not None else reached - 1
        least = 1 if window.start > -FOREVER else -FOREVER
        return reached > was and reached >= least

    def take_back(self, window: Window, timing: str) -> list[Row]:
        """In retracting mode, at the merge, what the replaced sessions had fired (even if no pane follows yet)."""
        replaced, window.replaced = window.replaced, []
        return [retraction(row, timing) for row in replaced if self.setting.mode == "retracting"]

    def observed_by(self, window: Window) -> Values:
        elements = window.new if self.setting.mode == "discarding" else window.elements
        return self.values([element.event for element in elements])

    def fire(self, window: Window, timing: str) -> list[Row]:
        """A pane, and before it the retraction of the last one."""
        values, old, something_new = self.observed_by(window), window.standing, bool(window.waiting)
        # Choice: with a pane left out as nothing has changed, its elements count as observed.
        for element in window.elements:
            element.observed = True
        only_changes = self.setting.only_updated or self.setting.mode == "retracting"
        if only_changes and self.unchanged(values, old, something_new):
            return []
        number = 0 if old is None else old.pane + 1
        new = Row(window.start, window.end, window.key, values, number, timing, "emit", self.expired(window))
        window.standing = new
        if self.setting.mode == "retracting" and old is not None:
            return [retraction(old, timing), new]
        return [new]

    def unchanged(self, values: Values, old: Row | None, something_new: bool) -> bool:
        # Choice: in discarding mode two equal parts are not one value twice; only a pane of nothing is left out.
        if self.setting.mode == "discarding":
            return not something_new
        return old is not None and old.values == values


def retraction(row: Row, timing: str) -> Row:
    """The row that takes a pane back: its number and values, the timing of the pane that comes instead."""
    return row._replace(timing=timing, kind="retract", last=False)
