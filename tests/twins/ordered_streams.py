"""Histories of the ordered twin on the twin and on the real thing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.helpers import old_grammar as api
from tests.twins.general_streams import plain, span, trigger, windows
from tests.twins.naive import Values
from tests.twins.ordered import Message, OrderedSetting, OrderedTwin
from tests.twins.ordered_strategies import Step
from tests.twins.transcripts.script import Script, answered, kept
from tests.twins.transcripts.script import Step as Line
from tests.twins.words import FOREVER, Rejected, Row, Trigger
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.store import Memory, StoreConfig

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

    def reprocess_late(self, events: Sequence[Message] | None = None) -> list[Row]:
        panes = self.harness.reprocess_late(*([] if events is None else [arrow(self.setting, events)]))
        return self.rows(panes)

    def move(self, what: str, time: int) -> list[Row]:
        if what == "end":
            return self.rows(self.harness.finish())
        if what == "P":
            return self.rows(self.harness.advance_processing_time(time))
        return self.rows(self.harness.advance_watermark(time))

    def play(self, step: Script) -> list[Row]:
        if step.feeds:
            return self.reprocess_late(step.events if step.feeds == "feed:" else None)
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
        kept = [name for name in reported(self.setting) if name in table.schema.names]
        found = plain(table.select([*kept, "reason", "watermark"]))
        if self.setting.inherited or not {"window_start", "window_end"} <= set(table.schema.names):
            return [(*row, None, None) for row in found]
        bounds = plain(table.select(["window_start", "window_end"]))
        return [(*row, *of) for row, of in zip(found, bounds, strict=True)]


def seen(row: Sequence) -> Values:
    """Values; a list alone stands for its elements."""
    return tuple(row[0]) if len(row) == 1 and isinstance(row[0], list) else tuple(row)


def reported(setting: OrderedSetting) -> list[str]:
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
    event = tuple(getattr(entry.event, name) for name in reported(setting))
    named: Iterable[tuple] = entry.windows if entry.taken and not setting.inherited else [(None, None)]
    return [(*event, entry.reason, entry.watermark, *of) for of in named]


class TwinPlayer:
    """A history on the twin."""

    def __init__(self, setting: OrderedSetting, aggregates: str = "values", generate: bool | None = None) -> None:
        self.twin = OrderedTwin(setting, COMPUTED[aggregates])
        self.generate = setting.axis != "event" if generate is None else generate

    def play(self, step: Step) -> list[Row]:
        if step.kind == "feed":
            return self.twin.batch(step.events, self.twin.reached(step.events) if self.generate else None)
        if step.kind == "back":
            return self.twin.reprocess_late(step.events if step.given else None)
        return self.twin.batch([], now=step.time) if step.kind == "P" else self.twin.batch([], step.time)

    def finish(self) -> list[Row]:
        return self.twin.finish()


class RealPlayer(OrderedHarness):
    """A history on the real thing."""

    def play(self, step: Step) -> list[Row]:  # type: ignore[override]
        if step.kind == "feed":
            return self.feed(step.events)
        if step.kind == "back":
            return self.reprocess_late(step.events if step.given else None)
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


def played_by(real: OrderedHarness, steps: list[Line], restarts: bool) -> list[Line]:
    """What the operator shows, in the words of the scenario."""
    number, seen_before, found = 0, Counter[str](), []
    for text, *expected in steps:
        step = Script(text, number)
        number += len(step.events)
        lines = [*map(answered, real.play(step))]
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
