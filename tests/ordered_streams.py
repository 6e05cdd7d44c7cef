"""Settings and histories for the ordered twin, small and nasty, and a player of them on the real thing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

import operators as api
from operators.description import Windowed
from operators.harness import Harness
from statestore.store import Memory, StoreConfig
from tests.general_streams import plain, sensible, span, trigger, windows
from tests.general_twin import EACH_BATCH, FOREVER, Rejected, Row, Trigger, global_window, session, sliding, tumbling
from tests.general_twin import count_window as counted
from tests.naive_twin import Values
from tests.ordered_scenarios import Step as Line
from tests.ordered_scenarios import Told, kept, said
from tests.ordered_twin import Message, OrderedSetting, OrderedTwin, inherited, offset_session, offset_window

TIME = pa.timestamp("us", tz="UTC")
TYPES = {
    "time": TIME,
    "k": pa.string(),
    "v": pa.int64(),
    "origin": pa.int64(),
    "offset": pa.int64(),
    "window_start": TIME,
    "window_end": TIME,
}
AGGREGATES: dict[str, dict[str, Any]] = {
    "numbers": {"all": api.sorted_list("v")},
    "values": {"n": api.count(), "counted": api.count("v"), "total": api.sum_("v"), "high": api.max_("v")},
    "largest": {"high": api.max_("v")},
}


def values(events: list[Any]) -> Values:
    """Count of events; count, sum and largest of v."""
    v = [event.v for event in events if event.v is not None]
    return len(events), len(v), sum(v) if v else None, max(v, default=None)


def largest(events: list[Any]) -> Values:
    """Few values, so that a pane often equals the one before."""
    return (max((event.v for event in events if event.v is not None), default=None),)


COMPUTED = {"values": values, "largest": largest}


# The description


def description(setting: OrderedSetting, aggregates: str = "values", **more: Any) -> Windowed:
    """The computation of the twin in the project's own words."""
    options: dict[str, Any] = {"key": setting.key, **more}
    if setting.axis == "processing":
        options["processing_time"] = True
    elif not setting.timeless:
        options["event_time"] = "time"
    if setting.offset:
        options["offset"] = "offset"
    if setting.origin:
        options["origin"] = "origin"
    found = api.windowed(**options).aggregate(**AGGREGATES[aggregates])
    if not setting.inherited:
        found = found.window(windows_of(setting))
    if setting.axis != "offset":
        columns = [name for name in names(setting) if name != "time" or not setting.timeless]
        found = found.late(span(setting.allowed), rule=setting.rule, keep=tuple(columns))  # type: ignore[arg-type]
    found = retained(found, setting)
    return triggered(found, setting).accumulation(setting.mode)  # type: ignore[arg-type]


def windows_of(setting: OrderedSetting) -> Any:
    sizes = setting.windows.sizes
    if setting.axis != "offset":
        return windows(setting.windows)
    if setting.windows.name == "session":
        return api.session(offsets=sizes[0], late=setting.allowed)
    return api.count_window(sizes[0], sizes[1], by="offset", late=setting.allowed)


def retained(found: Windowed, setting: OrderedSetting) -> Windowed:
    if setting.retain is None and setting.newest is None:
        return found
    # No span of time says anything of offsets, so there the number is alone.
    return found.retain(span(setting.retain) if setting.retain is not None else None, windows=setting.newest)


def triggered(found: Windowed, setting: OrderedSetting) -> Windowed:
    if setting.when is not None:
        return found.trigger(when=condition(setting.when), closing=setting.closing)  # type: ignore[arg-type]
    options: dict[str, Any] = {"per_element": True} if setting.per_element else {}
    return found.trigger(
        early=trigger(setting.early),
        on_time=setting.on_time,  # type: ignore[arg-type]
        late=trigger(setting.late),
        closing=setting.closing,  # type: ignore[arg-type]
        only_updated=setting.only_updated,
        **options,
    )


def condition(wish: Trigger) -> Any:
    count, end = api.after_count(wish.amount), api.after_watermark()
    return {
        "after_count": lambda: count,
        "count_or_end": lambda: api.any_of(count, end),
        "count_and_end": lambda: api.all_of(count, end),
        "counts_until_end": lambda: api.or_finally(api.repeatedly(count), end),
    }[wish.kind]()


def names(setting: OrderedSetting) -> list[str]:
    """Columns of the input. The times of events are there, too, where they say nothing."""
    return ["time", "k", "v", "origin", "offset", *(["window_start", "window_end"] if setting.inherited else [])]


def schema(setting: OrderedSetting) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in names(setting)])


def arrow(setting: OrderedSetting, events: Sequence[Message]) -> pa.Table:
    found = schema(setting)
    columns = [pa.array([getattr(event, field.name) for event in events], field.type) for field in found]
    return pa.table(columns, schema=found)


# Players


class OrderedHarness:
    """A setting on the real thing."""

    def __init__(
        self,
        setting: OrderedSetting,
        aggregates: str = "values",
        *,
        store: StoreConfig | None = None,
        folder: str | os.PathLike[str] | None = None,
        partitions: int = 1,
        generate: bool | None = None,
    ) -> None:
        self.setting = setting
        self.harness = Harness(
            description(setting, aggregates),
            schema(setting),
            store=store or Memory(),
            folder=folder,
            partitions=partitions,
            generate=setting.axis != "event" if generate is None else generate,
        )

    def feed(self, events: Sequence[Message]) -> list[Row]:
        return self.rows(self.harness.feed(arrow(self.setting, events)))

    def feed_back(self, events: Sequence[Message] | None = None) -> list[Row]:
        panes = self.harness.feed_back(*([] if events is None else [arrow(self.setting, events)]))
        return self.rows(panes)

    def move(self, what: str, time: int) -> list[Row]:
        if what == "end":
            return self.rows(self.harness.finish())
        if what == "P":
            return self.rows(self.harness.advance_processing_time(time))
        return self.rows(self.harness.advance_watermark(time))

    def play(self, step: Told) -> list[Row]:
        if step.feeds:
            return self.feed_back(step.events if step.feeds == "feed:" else None)
        found = self.feed(step.events) if step.events else []
        for what, time in step.moves:
            found += self.move(what, time)
        return found

    def rows(self, panes: pa.Table) -> list[Row]:
        """Panes as the twin has them."""
        keys = 2 + len(self.setting.key)
        return [Row(*self.bounds(row), row[2:keys], seen(row[keys:-4]), *row[-4:]) for row in plain(panes)]

    def bounds(self, row: Sequence) -> tuple[int, int]:
        return (-FOREVER, FOREVER) if self.setting.windows.name == "global" else (row[0], row[1])

    def windows(self) -> list[tuple[int, int, tuple, Values]]:
        keys = 2 + len(self.setting.key)
        found = plain(self.harness.windows())
        return [(*self.bounds(row), tuple(row[2:keys]), seen(row[keys:])) for row in found]

    def ledger(self) -> list[tuple]:
        """Events (columns the ledger has), reasons, watermarks, and the window that alone refused the event."""
        table = self.harness.ledger()
        kept = [name for name in told(self.setting) if name in table.schema.names]
        found = plain(table.select([*kept, "reason", "watermark"]))
        if self.setting.inherited or not {"window_start", "window_end"} <= set(table.schema.names):
            return [(*row, None, None) for row in found]
        bounds = plain(table.select(["window_start", "window_end"]))
        return [(*row, *of) for row, of in zip(found, bounds, strict=True)]


def seen(row: Sequence) -> Values:
    """Values; a list alone stands for its elements."""
    return tuple(row[0]) if len(row) == 1 and isinstance(row[0], list) else tuple(row)


def told(setting: OrderedSetting) -> list[str]:
    """Columns of the input that a ledger has to have, in the order of the twin's events."""
    kept = names(setting)
    if setting.axis == "offset":
        read = {"time", "k", "v", "offset"} if "k" in setting.key else {"time", "v", "offset"}
        kept = [name for name in kept if name in read or (name == "origin" and setting.origin)]
    if setting.timeless or setting.axis == "processing":
        kept = [name for name in kept if name != "time"]
    return [name for name in kept if not name.startswith("window_")]


def ledger_rows(setting: OrderedSetting, entry: Rejected) -> list[tuple]:
    """As the project's ledger has it: a row per window that refused, where others did not."""
    event = tuple(getattr(entry.event, name) for name in told(setting))
    named: Iterable[tuple] = entry.windows if entry.taken and not setting.inherited else [(None, None)]
    return [(*event, entry.reason, entry.watermark, *of) for of in named]


# Settings


COUNTS = [EACH_BATCH, Trigger("after_count", 2), Trigger("after_count", 3)]
EARLY = [None, None, *COUNTS, Trigger("every_processing_time", 4), Trigger("after_processing_time", 3)]
ON_AN_AXIS = [tumbling(5), tumbling(4, 1), sliding(6, 2), sliding(6, 4, 1), session(3), session(6)]
KEYS: list[tuple[str, ...]] = [("k",), ("k",), ("k",), ()]


@st.composite
def triggers(draw: st.DrawFn, per_element: bool = False) -> dict[str, Any]:
    """Choices that are allowed: something can be shown."""
    some = [None, *COUNTS] if per_element else EARLY
    found = {
        "early": draw(st.sampled_from(some)),
        "on_time": draw(st.sampled_from(["always", "always", "non_empty", "never"])),
        "late": draw(st.sampled_from([EACH_BATCH, EACH_BATCH, *some])),
        "closing": draw(st.sampled_from(["never", "if_new", "if_new", "always"])),
        "only_updated": draw(st.sampled_from([False, False, True])),
        "mode": draw(st.sampled_from(["accumulating", "discarding", "retracting"])),
        "key": draw(st.sampled_from(KEYS)),
    }
    return found


@st.composite
def ordered_settings(draw: st.DrawFn) -> OrderedSetting:
    """Windows of offsets, of counts with a declared order, of processing time, and panes per element."""
    kind = draw(st.sampled_from(["offsets", "offsets", "offset sessions", "counts", "clock", "each", "each"]))
    each = kind == "each" or (kind in ("offsets", "counts") and draw(st.booleans()))
    choices = draw(triggers(each)) | {"per_element": each}
    if kind in ("offsets", "offset sessions"):
        choices |= {"late_by": draw(st.sampled_from([None, 0, 1, 5])), "origin": draw(st.booleans())}
    else:
        choices |= {
            "allowed": draw(st.sampled_from([0, 0, 2, 5, 30])),
            "rule": draw(st.sampled_from(["event", "window"])),
        }
    late_by = choices.pop("late_by", None)
    if kind == "offsets":
        size, step = draw(st.sampled_from([(3, 3), (4, 2), (5, 3), (2, 3), (1, 1)]))
        return offset_window(size, step, late_by, **choices)
    if kind == "offset sessions":
        return offset_session(draw(st.sampled_from([1, 3, 5])), late_by, **choices | {"per_element": False})
    if kind == "counts":
        made = draw(st.sampled_from([counted(2), counted(3, 1), counted(2, 3)]))
        return OrderedSetting(made, offset=True, origin=draw(st.booleans()), **choices)
    if kind == "clock":
        made = draw(st.sampled_from([*ON_AN_AXIS, global_window(), counted(2)]))
        return OrderedSetting(made, axis="processing", **choices | {"rule": "event"})
    made = draw(st.sampled_from([tumbling(5), sliding(6, 2), global_window(), counted(3, 2)]))
    return OrderedSetting(made, offset=True, origin=draw(st.booleans()), **choices)


@st.composite
def feeding_settings(draw: st.DrawFn) -> OrderedSetting:
    """Windows that are kept for longer than they take events."""
    kind = draw(st.sampled_from(["event"] * 6 + ["offsets", "each", "inherited", "closing"]))
    choices = draw(triggers(kind == "each"))
    allowed = draw(st.sampled_from([0, 0, 2, 5]))
    if choices["late"] is not None and "processing" in choices["late"].kind and choices["closing"] == "never":
        # When what is fed would be shown of a window that is over, after a while or never, is not asked here.
        choices["closing"] = "if_new"
    if kind == "offsets":
        size, step = draw(st.sampled_from([(3, 3), (4, 2), (5, 3)]))
        return offset_window(size, step, allowed, newest=draw(st.sampled_from([1, 2, 5])), **choices)
    choices |= {"allowed": allowed, "retain": draw(st.sampled_from([None, allowed, allowed + 4, allowed + 12, 1000]))}
    choices["rule"] = draw(st.sampled_from(["event", "window"]))
    if kind == "inherited":
        return inherited(timeless=draw(st.booleans()), **choices)
    made = draw(st.sampled_from([*ON_AN_AXIS, global_window()]))
    if kind in ("each", "closing"):
        made = draw(st.sampled_from([tumbling(5), sliding(6, 2)]))
    if made.name == "global":
        choices["retain"] = None
    if made.name == "sliding" and choices["retain"] is not None:
        choices["newest"] = draw(st.sampled_from([None, None, 1, 2]))
    if kind == "closing":
        choices |= {"early": None, "late": EACH_BATCH, "on_time": "always", "only_updated": False}
        choices["when"] = draw(
            st.sampled_from(
                [Trigger(name, n) for name in ("after_count", "count_or_end", "count_and_end") for n in (2, 3)]
            )
        )
        choices["closing"] = draw(st.sampled_from(["if_new", "always"]))
    return OrderedSetting(made, offset=kind == "each", per_element=kind == "each", **choices)


@st.composite
def inherited_settings(draw: st.DrawFn) -> OrderedSetting:
    """Windows of input panes."""
    choices = draw(triggers()) | {"allowed": draw(st.sampled_from([0, 0, 2, 5]))}
    choices["rule"] = draw(st.sampled_from(["event", "window"]))
    return inherited(timeless=draw(st.booleans()), **choices)


# Histories


class Step(NamedTuple):
    """``feed`` of events; ``W`` or ``P`` moved to a time; ``back``: the ledger, or ``events`` that are ``given``."""

    kind: str
    events: tuple[Message, ...] = ()
    time: int = 0
    given: bool = False


History = tuple[Step, ...]
NUMBER = st.integers(-3, 3) | st.none()


@st.composite
def message(draw: st.DrawFn, setting: OrderedSetting, base: int, taken: set[tuple]) -> Message:
    """An event around ``base`` on whatever axis; of each place in the order there is one (in ``taken``)."""
    broken = draw(st.sampled_from(["nothing"] * 20 + ["time", "k", "offset", "origin"]))
    behind = draw(st.sampled_from([*range(-14, 7), *range(-5, 4), *range(-3, 2)]))
    time: int | None = base + behind
    origin: int | None = 7 if setting.axis == "offset" else draw(st.integers(0, 2))
    offset: int | None = max(0, base + 12 + behind) if setting.axis == "offset" else draw(st.integers(0, 99))
    while (place := (origin if setting.origin else 0, offset)) in taken and offset is not None:
        offset += 1
    taken.add(place)
    bounds: tuple[int | None, int | None] = (None, None)
    if setting.inherited:
        assert time is not None
        start = time - draw(st.sampled_from([0, 1, 3]))
        bounds = (start, time + draw(st.sampled_from([1, 1, 2, 4])))
    key: str | None = draw(st.sampled_from(["a"] * 8 + ["b", "b", "é"]))
    if broken == "time":
        time = None
    elif broken == "k":
        key = None
    elif broken == "offset":
        offset = draw(st.sampled_from([None, -1, -(2**63)]))
    elif broken == "origin":
        origin = None
    return Message(time, key, draw(NUMBER), origin, offset, *bounds)


@st.composite
def histories(draw: st.DrawFn, setting: OrderedSetting, *, back: bool = False) -> History:
    """Feeds, watermarks, clocks, and feedings, drifting forward, from before 1970 on."""
    base, clock, steps = -12, 0, []
    taken: set[tuple] = set()
    kinds = ["feed"] * 5 + ["P"] * (5 if setting.axis == "processing" else 2)
    kinds += ["W"] * 4 if setting.axis == "event" else []
    kinds += ["back"] * 4 if back else []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=draw(st.sampled_from([0, 6, 10])), max_size=14)):
        if kind == "feed":
            if setting.axis == "offset" and not setting.per_element:
                taken.clear()  # The same offset again, in another batch: nothing here asks for the order.
            steps.append(Step(kind, draw(batch(setting, base, taken))))
            base += draw(st.sampled_from([0, 1, 2, 5]))
        elif kind == "W":
            steps.append(Step(kind, time=base + draw(st.integers(-4, 3))))
        elif kind == "P":
            clock += draw(st.sampled_from([0, 1, 2, 3, 4, 9]))
            steps.append(Step(kind, time=clock))
        else:
            given = draw(st.sampled_from([False] * 4 + [True]))
            steps.append(Step(kind, draw(usable_batch(setting, base, taken)) if given else (), given=given))
    return tuple(steps)


@st.composite
def batch(draw: st.DrawFn, setting: OrderedSetting, base: int, taken: set[tuple]) -> tuple[Message, ...]:
    size = draw(st.integers(draw(st.sampled_from([0, 1, 2, 4])), 6))
    return tuple(draw(message(setting, base, taken)) for _ in range(size))


@st.composite
def usable_batch(draw: st.DrawFn, setting: OrderedSetting, base: int, taken: set[tuple]) -> tuple[Message, ...]:
    twin = OrderedTwin(setting)
    return tuple(event for event in draw(batch(setting, base, taken)) if twin.unusable(event) is None)


@st.composite
def with_history(draw: st.DrawFn, of: st.SearchStrategy[OrderedSetting], *, back: bool = False) -> Any:
    drawn = draw(of)
    # Nothing is late by the clock, so there a late trigger shows as little as none.
    clock = drawn.axis == "processing"
    setting = sensible(replace(drawn, late=None) if clock and draw(st.booleans()) else drawn)
    if clock and setting.early is None and setting.closing == "never":
        setting = replace(sensible(replace(setting, late=None)), late=setting.late)
    if setting.early is None and setting.late is None:
        setting = replace(setting, per_element=False)
    return setting, draw(histories(setting, back=back))


@st.composite
def retold(draw: st.DrawFn, setting: OrderedSetting, history: History) -> History:
    """The same events between the same watermarks and feedings, in other batches and another order."""
    steps: list[Step] = []
    segment: list[Step] = []
    for step in [*history, Step("W")]:
        if step.kind == "feed" or (step.kind == "P" and setting.axis != "processing"):
            segment.append(step)
            continue
        events = draw(st.permutations([event for each in segment for event in each.events]))
        cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=3)))
        bounds = zip([0, *cuts], [*cuts, len(events)], strict=True)
        made = [Step("feed", tuple(events[first:last])) for first, last in bounds]
        steps += [*made, *(each for each in segment if each.kind == "P"), step]
        segment = []
    return tuple(steps[:-1])


@st.composite
def shuffled(draw: st.DrawFn, history: History) -> History:
    """The same batches, their rows in another order."""
    return tuple(step._replace(events=tuple(draw(st.permutations(step.events)))) for step in history)


class TwinPlayer:
    """A history on the twin."""

    def __init__(self, setting: OrderedSetting, aggregates: str = "values", generate: bool | None = None) -> None:
        self.twin = OrderedTwin(setting, COMPUTED[aggregates])
        self.generate = setting.axis != "event" if generate is None else generate

    def play(self, step: Step) -> list[Row]:
        if step.kind == "feed":
            return self.twin.batch(step.events, self.twin.reached(step.events) if self.generate else None)
        if step.kind == "back":
            return self.twin.feed_back(step.events if step.given else None)
        return self.twin.batch([], now=step.time) if step.kind == "P" else self.twin.batch([], step.time)

    def finish(self) -> list[Row]:
        return self.twin.finish()


class RealPlayer(OrderedHarness):
    """A history on the real thing."""

    def play(self, step: Step) -> list[Row]:  # type: ignore[override]
        if step.kind == "feed":
            return self.feed(step.events)
        if step.kind == "back":
            return self.feed_back(step.events if step.given else None)
        return self.move(step.kind, step.time)

    def finish(self) -> list[Row]:
        return self.move("end", FOREVER)


def real(
    setting: OrderedSetting,
    aggregates: str,
    store: StoreConfig,
    folder: Path,
    partitions: int,
    generate: bool | None = None,
) -> RealPlayer:
    return RealPlayer(setting, aggregates, store=store, folder=folder, partitions=partitions, generate=generate)


# Scenarios


def told_by(real: OrderedHarness, steps: list[Line], restarts: bool) -> list[Line]:
    """What the operator shows, in the words of the scenario."""
    number, seen_before, found = 0, Counter[str](), []
    for text, *expected in steps:
        step = Told(text, number)
        number += len(step.events)
        lines = [*map(said, real.play(step))]
        ledger = Counter(refusals(real))
        lines += (ledger - seen_before).elements()
        assert not seen_before - ledger
        seen_before = ledger
        if any(line.startswith("=") for line in expected):
            lines += kept(real.windows())
        found.append((text, *lines))
        if restarts:
            real.harness.restart()
    return found


def refusals(real: OrderedHarness) -> list[str]:
    table = real.harness.ledger()
    bounds = [name for name in ("window_start", "window_end") if name in table.schema.names]
    named = plain(table.select(bounds)) if bounds and not real.setting.inherited else [(None, None)] * table.num_rows
    return [
        f"x{v} {reason} {'-' if watermark is None else watermark}" + ("" if low is None else f" {low}..{high}")
        for (v, reason, watermark), (low, high) in zip(
            plain(table.select(["v", "reason", "watermark"])), named, strict=True
        )
    ]
