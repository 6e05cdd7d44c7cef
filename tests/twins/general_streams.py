"""Settings and histories for the general window operator, small and nasty, and a player of them on the real thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from tests.helpers import old_grammar as api
from tests.twins.general import Twin
from tests.twins.naive import Event, Values, values_of
from tests.twins.streams import KEYS, SCHEMA, arrow
from tests.twins.words import (
    EACH_BATCH,
    FOREVER,
    Kind,
    Rejected,
    Row,
    Setting,
    Trigger,
    count_window,
    global_window,
    session,
    sliding,
    tumbling,
)
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreConfig

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = [
    tumbling(5),
    tumbling(4, 1),
    sliding(6, 2),
    sliding(6, 4, 1),
    sliding(3, 5),
    session(3),
    session(3),
    session(6),
    global_window(),
    count_window(2),
    count_window(3, 1),
    count_window(2, 3),
]
LATE = [
    EACH_BATCH,
    EACH_BATCH,
    None,
    Trigger("after_count", 2),
    Trigger("after_count", 3),
    Trigger("every_processing_time", 4),
    Trigger("every_processing_time", 2),
    Trigger("after_processing_time", 3),
]
EARLY = [*LATE, Trigger("every_event_time", 2), Trigger("every_event_time", 3)]


class Step(NamedTuple):
    """``feed`` of events, or ``watermark`` or ``clock`` moved to a time."""

    kind: str
    events: tuple[Event, ...] = ()
    time: int = 0


class History(NamedTuple):
    """Steps, and by how much a generated watermark stays behind (None: it is moved by steps alone)."""

    steps: tuple[Step, ...]
    delay: int | None = None


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    windows = draw(st.sampled_from(KINDS))
    early = draw(st.sampled_from(LATE if windows.name in ("count", "global") else EARLY))
    drawn = Setting(
        windows,
        allowed=draw(st.sampled_from([0, 0, 2, 5, 9, 30])),
        rule=draw(st.sampled_from(["event", "window"])),
        early=early,
        on_time=draw(st.sampled_from(["always", "always", "non_empty", "never"])),
        late=draw(st.sampled_from(LATE)),
        closing=draw(st.sampled_from(["never", "if_new", "if_new", "always"])),
        only_updated=draw(st.sampled_from([False, False, True])),
        mode=draw(st.sampled_from(["accumulating", "discarding", "retracting"])),
        key=draw(st.sampled_from([*KEYS, ("k",)])),
    )
    return sensible(drawn)


def sensible(setting: Setting) -> Setting:
    """What is not refused: some pane can come, and two where one takes the other back."""
    never_late = setting.late is None or setting.windows.name in ("count", "global")
    if setting.early is None and never_late and setting.closing == "never":
        twice = setting.windows.name == "session"
        mode = setting.mode if twice or setting.mode != "retracting" else "accumulating"
        return replace(setting, on_time="always", mode=mode)
    return setting


def events(base: int) -> st.SearchStrategy[Event]:
    """An event around ``base``, mostly before it; quarters add up exactly in any order."""
    return st.builds(
        Event,
        time=st.sampled_from([*range(-14, 7), *range(-5, 4), *range(-3, 2), None]).map(
            lambda ahead: None if ahead is None else base + ahead
        ),
        k=st.sampled_from(["a"] * 12 + ["b", "b", "é", "", None]),
        j=st.sampled_from([0] * 15 + [1, 2**40, None]),
        v=st.none() | st.integers(-3, 3),
        x=st.none() | st.integers(-9, 9).map(lambda n: n / 4),
    )


@st.composite
def histories(draw: st.DrawFn, *, generated: bool = True) -> History:
    """Feeds, watermarks and clocks that drift forward in time, from before 1970 on."""
    base, clock, steps = -12, 0, []
    marks, clocks = draw(st.sampled_from([(3, 2), (1, 5), (5, 0)]))
    kinds = st.sampled_from(["feed"] * 5 + ["watermark"] * marks + ["clock"] * clocks)
    for kind in draw(st.lists(kinds, min_size=draw(st.sampled_from([0, 6, 10])), max_size=14)):
        if kind == "feed":
            batch = st.lists(events(base), min_size=draw(st.sampled_from([0, 1, 2, 4])), max_size=6)
            steps.append(Step(kind, tuple(draw(batch))))
            base += draw(st.sampled_from([0, 1, 2, 5]))
        elif kind == "watermark":
            steps.append(Step(kind, time=base + draw(st.integers(-4, 3))))
        else:
            clock += draw(st.sampled_from([0, 1, 2, 3, 4, 9]))
            steps.append(Step(kind, time=clock))
    delay = draw(st.sampled_from([None, None, None, 0, 1, 6])) if generated else None
    return History(tuple(steps), delay)


@st.composite
def recut(draw: st.DrawFn, setting: Setting, history: History) -> History:
    """The same events between the same watermarks, in other batches and (but for counts) in another order."""
    steps: list[Step] = []
    segment: list[Step] = []
    for step in [*history.steps, Step("watermark")]:
        if step.kind != "watermark":
            segment.append(step)
            continue
        reported = [event for each in segment for event in each.events]
        if setting.windows.name != "count":
            reported = draw(st.permutations(reported))
        cuts = sorted(draw(st.lists(st.integers(0, len(reported)), max_size=3)))
        bounds = zip([0, *cuts], [*cuts, len(reported)], strict=True)
        made = [Step("feed", tuple(reported[first:last])) for first, last in bounds]
        for clock in reversed([each for each in segment if each.kind == "clock"]):
            made.insert(draw(st.integers(0, len(made))), clock)
        steps += [*in_order(made), step]
        segment = []
    return History(tuple(steps[:-1]), history.delay)


def in_order(steps: list[Step]) -> list[Step]:
    """The clock does not go back: its steps sorted among themselves."""
    times = iter(sorted(step.time for step in steps if step.kind == "clock"))
    return [step._replace(time=next(times)) if step.kind == "clock" else step for step in steps]


def largest(found: list[Event]) -> Values:
    """Few values, so that a pane often equals the one before."""
    return (max((event.v for event in found if event.v is not None), default=None),)


class TwinPlayer:
    """A history on the twin."""

    def __init__(self, setting: Setting, history: History, few: bool) -> None:
        self.twin, self.delay = Twin(setting, largest if few else values_of), history.delay

    def play(self, step: Step) -> list[Row]:
        if step.kind == "clock":
            return self.twin.batch([], now=step.time)
        if step.kind == "watermark":
            return self.twin.batch([], step.time)
        times = [event.time for event in step.events if self.twin.unusable(event) is None]
        reached = max((time for time in times if time is not None), default=None)
        generated = None if reached is None or self.delay is None else reached - self.delay
        return self.twin.batch(step.events, generated)

    def finish(self) -> list[Row]:
        return self.twin.finish()


class HarnessPlayer:
    """A history on the real thing."""

    def __init__(
        self, setting: Setting, history: History, few: bool, store: StoreConfig, folder: Path, partitions: int
    ) -> None:
        self.setting, self.few = setting, few
        self.harness = Harness(
            description(setting, history, few),
            SCHEMA,
            store=store,
            folder=folder,
            partitions=partitions,
            generate=history.delay is not None,
        )

    def play(self, step: Step) -> list[Row]:
        if step.kind == "feed":
            return self.rows(self.harness.feed(arrow(step.events)))
        if step.kind == "watermark":
            return self.rows(self.harness.advance_watermark(step.time))
        return self.rows(self.harness.advance_processing_time(step.time))

    def finish(self) -> list[Row]:
        return self.rows(self.harness.finish())

    def rows(self, panes: pa.Table) -> list[Row]:
        return pane_rows(self.setting, panes)

    def windows(self) -> list[tuple[int, int, tuple, Values]] | None:
        """Live windows, None where the operator keeps slices instead."""
        keys = len(self.setting.key)
        try:
            found = plain(self.harness.windows())
        except UsageError:
            return None
        return [(*bounds(self.setting, row), tuple(row[2 : 2 + keys]), tuple(row[2 + keys :])) for row in found]

    def ledger(self) -> list[tuple]:
        return late_rows(self.harness.ledger())


def pane_rows(setting: Setting, panes: pa.Table) -> list[Row]:
    """Panes as the twin has them."""
    keys = 2 + len(setting.key)
    return [Row(*bounds(setting, row), row[2:keys], row[keys:-4], *row[-4:]) for row in plain(panes)]


def bounds(setting: Setting, row: Sequence) -> tuple[int, int]:
    return (-FOREVER, FOREVER) if setting.windows.name == "global" else (row[0], row[1])


def late_rows(ledger: pa.Table) -> list[tuple]:
    """Events, reasons, watermarks, and the bounds of a window that alone refused the event (else None)."""
    found = plain(ledger.select([*SCHEMA.names, "reason", "watermark"]))
    names = [name for name in ("window_start", "window_end") if name in ledger.schema.names]
    of_windows = plain(ledger.select(names)) or [(None, None)] * len(found)
    return [(*row, *of) for row, of in zip(found, of_windows, strict=True)]


def plain(table: pa.Table) -> list[tuple]:
    """Rows with times as microseconds."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return list(zip(*[column.to_pylist() for column in columns], strict=True)) if columns else []


def ledger_rows(row: Rejected) -> list[tuple]:
    """As the project's ledger has it: a row per window that refused, where others did not."""
    return [(*row.event, row.reason, row.watermark, *of) for of in (row.windows if row.taken else [(None, None)])]


def description(setting: Setting, history: History, few: bool) -> Windowed:
    """The computation of the twin in the project's own words."""
    if few:
        aggregates = {"high": api.max_("v")}
    else:
        aggregates = {
            "n": api.count(),
            "counted": api.count("v"),
            "total": api.sum_("v"),
            "high": api.max_("v"),
            "low": api.min_("x"),
            "weight": api.sum_("x"),
            "average": api.mean("x"),
        }
    return (
        api.windowed(event_time="time", key=setting.key, watermark_delay=span(history.delay or 0))
        .window(windows(setting.windows))
        .aggregate(**aggregates)
        .late(span(setting.allowed), rule=setting.rule, keep=tuple(SCHEMA.names))  # type: ignore[arg-type]
        .trigger(
            early=trigger(setting.early),
            on_time=setting.on_time,  # type: ignore[arg-type]
            late=trigger(setting.late),
            closing=setting.closing,  # type: ignore[arg-type]
            only_updated=setting.only_updated,
        )
        .accumulation(setting.mode)  # type: ignore[arg-type]
    )


def span(us: int) -> timedelta:
    return timedelta(microseconds=us)


def windows(kind: Kind):
    sizes = kind.sizes
    if kind.name == "session":
        return api.session(span(sizes[0]))
    if kind.name == "count":
        return api.count_window(*sizes)
    if kind.name == "global":
        return api.global_window()
    return api.sliding(span(sizes[0]), span(sizes[1]), offset=span(sizes[2]), strict=False)


def trigger(wish: Trigger | None):
    if wish is None:
        return None
    kind, amount = wish
    if kind == "each_batch":
        return api.each_batch()
    return getattr(api, kind)(amount if kind == "after_count" else span(amount))
