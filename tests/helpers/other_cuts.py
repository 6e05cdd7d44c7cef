"""Where each event of an input is, in a job whose input came in one cut and later in another.

Event number ``id`` brings the bit ``1 << id``: a sum with as many bits as events were counted says which they are.
``judged`` and ``grouped`` are the naive twin: event by event, over the batches that count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

import tidestate as ts
from tests.helpers.changed_jobs import added
from tidestate import Aggregation, GroupedStream, Stream, agg, trigger
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
LATEST = 60
"""Events of an input at most: their bits fit an int64."""
DELAY, ALLOWED, GAP, COUNTED, CHAINED = 5, 20, 4, 3, 30
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("id", pa.int64()), ("bit", pa.int64())])
Row = dict[str, Any]
Window = tuple[Any, ...]
"""Start, end, key."""


class Event(NamedTuple):
    """Second and key, either of them missing in a few; the side of a join or merge it comes from."""

    id: int
    at: int | None
    key: str | None
    left: bool


def table(events: Sequence[Event]) -> pa.Table:
    """These events as a table of `SCHEMA`, a row each, in their order; times in whole seconds."""
    columns = [
        pa.array([None if one.at is None else one.at * SECOND for one in events], pa.int64()).cast(TIME),
        pa.array([one.key for one in events], pa.string()),
        pa.array([one.id for one in events], pa.int64()),
        pa.array([1 << one.id for one in events], pa.int64()),
    ]
    return pa.table(columns, schema=SCHEMA)


def times(size: int, slide: int) -> Callable[[int], list[tuple[int, int]]]:
    """The windows that hold a second."""

    def found(at: int) -> list[tuple[int, int]]:
        newest = at // slide * slide
        return [(start, start + size) for start in range(newest, at - size, -slide)]

    return found


@dataclass(frozen=True)
class Kind:
    """A job of one kind. ``windows`` are those of a second; without them each event is in one that `grouped` says.

    ``by_window``: each window refuses for itself. ``replacing``: a pane stands for those before it;
    ``discarding``: panes are what is new, and the state what is in none.
    ``bits``: the columns that sum them up. ``change`` makes the job another that its state can follow.
    """

    make: Callable[[], Any]
    windows: Callable[[int], list[tuple[int, int]]] | None = None
    by_window: bool = False
    sided: bool = False
    discarding: bool = False
    replacing: bool = False
    feeds: bool = False
    chained: bool = False
    bits: tuple[str, ...] = ("bits",)
    change: Callable[[Any], Any] = lambda described: added(described, highest=agg.max("id"))

    def batch(self, events: Sequence[Event]) -> Any:
        if not self.sided:
            return table(events)
        left, right = (table([one for one in events if one.left is side]) for side in (True, False))
        return {"left": left, "right": right}


def _events() -> Stream:
    return ts.stream(event_time="t", watermark_delay=f"{DELAY} seconds")


def _windows() -> GroupedStream:
    return _events().group_by("k")


def _counted(grouped: GroupedStream, rule: Any = "event", **more: Aggregate) -> Aggregation:
    counted = grouped.aggregate(n=agg.count(), bits=agg.sum("bit"), **more).named("job")
    return counted.allowed_lateness(f"{ALLOWED} seconds", rule=rule, ledger_columns=["id"])


def _chain(**more: Aggregate) -> Aggregation:
    first = _counted(_windows().window(ts.tumbling("10 seconds")), **more).accumulation("retracting")
    second = first.group_by().window(ts.tumbling(f"{CHAINED} seconds"))
    counted = second.aggregate(n=agg.sum("n"), bits=agg.sum("bits")).named("second")
    return counted.allowed_lateness("1 hour").accumulation("retracting")


def _changed_chain(_described: Any) -> Any:
    return _chain(highest=agg.max("id"))


def _merged() -> Any:
    grouped = ts.merge(left=_events(), right=_events()).group_by("k").window(ts.tumbling("10 seconds"))
    counted = grouped.aggregate(n=agg.count(), left=agg.sum("left_bit"), right=agg.sum("right_bit"))
    return counted.allowed_lateness(f"{ALLOWED} seconds", ledger_columns=["left_id", "right_id"]).accumulation(
        "retracting"
    )


def joined(late: str) -> Any:
    """All pairs of a key within some seconds of each other, and rows without a partner."""
    return ts.stream(event_time="t", watermark_delay=f"{DELAY} seconds").join(
        ts.stream(event_time="t", watermark_delay=f"{DELAY} seconds"),
        on="k",
        within=("-5 s", "10 s"),
        how="full",
        allowed_lateness=late,
    )


KINDS: dict[str, Kind] = {
    "tumbling": Kind(
        lambda: (
            _counted(_windows().window(ts.tumbling("10 seconds")))
            .accumulation("retracting")
            .retain_windows("40 seconds")
        ),
        times(10, 10),
        feeds=True,
    ),
    "sliding": Kind(
        lambda: _counted(_windows().window(ts.sliding("15 seconds", "5 seconds")), "window"),
        times(15, 5),
        by_window=True,
        replacing=True,
    ),
    "triggered": Kind(
        lambda: (
            _counted(_windows().window(ts.sliding("20 seconds", "10 seconds")))
            .trigger(early=trigger.after_count(2), late=trigger.after_count(2), closing="if_new")
            .accumulation("retracting")
        ),
        times(20, 10),
    ),
    "discarding": Kind(
        lambda: (
            _counted(_windows().window(ts.tumbling("10 seconds")))
            .trigger(early=trigger.after_count(2), late=trigger.after_count(2), closing="if_new")
            .accumulation("discarding")
        ),
        times(10, 10),
        discarding=True,
    ),
    "sessions": Kind(lambda: _counted(_windows().window(ts.sessions(f"{GAP} seconds"))).accumulation("retracting")),
    "counted": Kind(lambda: _counted(_windows().window(ts.count_windows(COUNTED))), replacing=True),
    "chain": Kind(_chain, times(10, 10), chained=True, change=_changed_chain),
    "merge": Kind(
        _merged,
        times(10, 10),
        sided=True,
        bits=("left", "right"),
        change=lambda one: added(one, highest=agg.max("left_id")),
    ),
}


JOINS = {
    "nothing late": Kind(lambda: joined("1 hour"), sided=True, change=lambda one: one),
    "some late": Kind(lambda: joined(f"{ALLOWED} seconds"), sided=True, change=lambda one: one),
}


def pairs(events: Sequence[Event]) -> set[tuple[int, int]]:
    """All pairs of rows that meet, whenever they come."""
    own = [one for one in events if one.at is not None and one.key is not None]
    return {
        (left.id, right.id)
        for left in own
        for right in own
        if left.left and not right.left and left.key == right.key and -5 <= (right.at or 0) - (left.at or 0) <= 10
    }


def numbers(bits: int, n: int) -> list[int]:
    """The events that a sum of bits is of; as many as were counted, so none is in it twice."""
    found = [place for place in range(64) if bits >> place & 1]
    assert len(found) == n, (bits, n)
    return found


def bits_of(row: Row, kind: Kind) -> int:
    """The bits of the events of a pane or window."""
    return sum(row[name] or 0 for name in kind.bits)


def window_of(row: Row) -> Window:
    """Which window and key it is of."""
    return row["window_start"], row["window_end"], row.get("k")


def standing(parts: Iterable[Iterable[Row]], kind: Kind) -> dict[Window, set[int]]:
    """What panes come to: by window and key, the events it has. What is taken back must stand as it is taken back."""
    stands: dict[Window, list[int]] = {}
    for row in (row for part in parts for row in part):
        window, found = window_of(row), numbers(bits_of(row, kind), row["n"] or 0)
        if row["kind"] == "retract":
            assert stands.pop(window) == found
        elif kind.discarding:
            stands[window] = [*stands.get(window, []), *found]
        else:
            assert kind.replacing or window not in stands
            stands[window] = found
    for found in stands.values():
        assert len(set(found)) == len(found)
    return {window: set(found) for window, found in stands.items()}


def judged(kind: Kind, batches: Sequence[Sequence[Event]]) -> tuple[dict[int, list[Any]], Counter[Any]]:
    """The windows that take each accepted event, and the ledger: number, reason and the window that refuses it."""
    taken: dict[int, list[Any]] = {}
    ledger: Counter[Any] = Counter()
    reached: dict[bool, int] = {}
    for batch in batches:
        marks = list(reached.values())
        mark = min(marks) - DELAY if len(marks) == 1 + kind.sided else None
        for one in batch:
            reason = "null_event_time" if one.at is None else "null_key" if one.key is None else None
            if one.at is None or reason is not None:
                ledger[one.id, reason, None] += 1
                continue
            windows = kind.windows(one.at) if kind.windows else [()]
            if mark is not None and kind.by_window:
                late = [window for window in windows if window[1] + ALLOWED <= mark]
                windows = [window for window in windows if window not in late]
                ledger.update((one.id, "very_late", window) for window in (late if windows else [None]))
            elif mark is not None and one.at < mark - ALLOWED:
                ledger[one.id, "very_late", None] += 1
                continue
            if windows:
                taken[one.id] = windows
                reached[one.left and kind.sided] = max(reached.get(one.left and kind.sided, one.at), one.at)
    return taken, ledger


def grouped(name: str, events: Sequence[Event], taken: Mapping[int, list[Any]]) -> set[tuple[Any, ...]]:
    """Key and events of each window, of all that were taken."""
    found: dict[tuple[Any, ...], list[int]] = {}
    own = [one for one in events if one.id in taken]
    if name == "counted":
        arrived: Counter[str | None] = Counter()
        for one in own:
            found.setdefault((one.key, arrived[one.key] // COUNTED), []).append(one.id)
            arrived[one.key] += 1
    elif name == "sessions":
        newest: dict[str | None, tuple[int, int]] = {}
        for one in sorted(own, key=lambda one: (one.at or 0, one.id)):
            before, number = newest.get(one.key, (-1_000_000, 0))
            number += (one.at or 0) - before >= GAP
            newest[one.key] = (one.at or 0, number)
            found.setdefault((one.key, number), []).append(one.id)
    else:
        for one in own:
            for window in taken[one.id]:
                key = (None, window[0] // CHAINED) if name == "chain" else (one.key, window)
                found.setdefault(key, []).append(one.id)
    return {(key[0], *sorted(ids)) for key, ids in found.items()}
