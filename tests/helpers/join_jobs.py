"""Joins as the twin describes them, on the real operator."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.twins.join import SIDES, Asked, Pane, Row, Window
from tidestate.operators.streams.stream import JoinedStream
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

SECOND = 1_000_000
UNITS = {"s": SECOND, "us": 1}
"""What the twin counts in, in microseconds: with the smallest one, bounds that are off by one are seen."""
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("key", pa.string()), ("t", TIME), ("value", pa.int64()), ("off", pa.int32())])
STORES: dict[str, StoreConfig] = {
    "memory": Memory(),
    "parquet": Parquet(max_levels=2, snapshot_bytes=1),
    "rocksdb": RocksDB(max_levels=2),
}


def described(asked: Asked, unit: str = "s") -> JoinedStream:
    left, right = (
        ts.stream(event_time="t", watermark_delay=f"{delay} {unit}", offset="off") for delay in asked.delays
    )
    chosen: dict[str, Any] = {}
    if asked.window is not None:
        chosen |= {"window": _window(asked.window, unit), "occurrence": "first" if asked.first else "each"}
    elif asked.own is None or (asked.low, asked.high) != (None, None):
        chosen["within"] = (_span(asked.low, unit), _span(asked.high, unit))
    return left.join(
        right,
        on="key" if asked.on else (),
        how=asked.how,  # type: ignore[arg-type]
        allowed_lateness=f"{asked.late} {unit}",
        left=_side(asked, 0, unit),
        right=_side(asked, 1, unit),
        unmatched="close" if asked.close else "final",
        in_order=asked.in_order,
        large_windows=asked.large,
        identity=asked.named,
        **chosen,
    )


def _span(units: int | None, unit: str) -> str | None:
    return None if units is None else f"{units} {unit}"


def _side(asked: Asked, place: int, unit: str) -> Any:
    window = None if asked.own is None else asked.own[place]
    span, count, past = asked.spans[place], asked.counts[place], asked.past[place]
    kept = ts.Retention(span=_span(span, unit), offsets=count, windows=past)
    return ts.side(
        window=None if window is None else _window(window, unit),
        update=_span(asked.updates[place], unit),
        late_update=_span(asked.late_updates[place], unit),
        retain=None if (span, count, past) == (None, None, None) else kept,
    )


def _window(window: Window, unit: str) -> Any:
    if window.by_offset:
        return ts.offset_windows(window.size, window.slide, start=window.start)
    if window.size == window.slide:
        return ts.tumbling(f"{window.size} {unit}")
    return ts.sliding(f"{window.size} {unit}", f"{window.slide} {unit}")


def table(rows: list[Row], unit: str = "s") -> pa.Table:
    columns = [[row.key for row in rows], [row.at * UNITS[unit] for row in rows], [row.value for row in rows]]
    arrays = [pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int64()).cast(TIME)]
    return pa.table(
        [*arrays, pa.array(columns[2], pa.int64()), pa.array([row.offset for row in rows], pa.int32())], schema=SCHEMA
    )


def observed(panes: pa.Table, asked: Asked, unit: str = "s") -> Counter[Pane]:
    starts = panes["window_start"].cast(pa.int64()).to_pylist() if asked.window else [None] * panes.num_rows
    keys = panes["key"] if asked.on else panes["left_key"]
    return Counter(
        zip(
            panes["kind"].to_pylist(),
            keys.to_pylist() if asked.on else [None] * panes.num_rows,
            panes["left_value"].to_pylist(),
            panes["right_value"].to_pylist(),
            [None if start is None else start // UNITS[unit] for start in starts],
            strict=True,
        )
    )


def drawn(seed: int) -> tuple[Asked, list[list[Row]]]:
    """A join and its input, with replays and duplicates where messages are known by their offsets."""
    pick = random.Random(seed)
    kind = pick.choice(["bounds", "shared", "own", "own"])
    chosen: dict[str, Any] = {
        "how": pick.choice(["inner", "left", "right", "full"]),
        "late": 0 if kind == "own" else pick.choice([0, 6, 15]),
        "close": pick.random() < 0.6,
        "on": pick.random() < 0.8,
        "named": pick.random() < 0.5,
        "large": pick.random() < 0.5,
        "delays": pick.choice([(0, 0), (0, 3), (5, 5)]),
        "in_order": kind == "own" and pick.random() < 0.5,
    }
    if pick.random() < 0.3 and not chosen["in_order"]:
        chosen["updates"] = pick.choice([(4, 4), (None, 5), (4, 6)])
        chosen["late_updates"] = pick.choice([(None, None), (3, None), (4, 6)])
    if kind == "bounds":
        chosen["low"], chosen["high"] = pick.choice(
            [(-3, 3), (0, 5), (-6, -2), (2, 7), (None, 4), (1, None), (None, None)]
        )
        chosen["spans"] = pick.choice([(None, None), (8, 8), (30, None)])
    elif kind == "shared":
        chosen["window"] = Window(*pick.choice([(5, 5), (10, 10), (6, 2), (9, 3)]))
        chosen["first"] = pick.random() < 0.5
        chosen["spans"] = pick.choice([(None, None), (12, None)])
        chosen["past"] = pick.choice([(None, None), (None, 3)])
    else:
        chosen |= _own(pick, chosen["named"])
    return Asked(**chosen), _batches(pick)


def _own(pick: random.Random, named: bool) -> dict[str, Any]:
    of_offsets = [Window(3, 3, True), Window(4, 1, True), Window(3, 3, True, None), Window(5, 2, True, None)]
    places = [None, Window(6, 6), Window(8, 4), *(of_offsets if named else ())]
    own = (pick.choice(places), pick.choice(places))
    asked = Asked(own=own, named=named)
    chosen: dict[str, Any] = {"own": own, "spans": [None, None], "counts": [None, None], "past": [None, None]}
    for place, side in enumerate(SIDES):
        if pick.random() < 0.5:
            if own[place] is not None and pick.random() < 0.5:
                chosen["past"][place] = pick.choice([0, 1, 2])
            elif asked.by_offset(side):
                chosen["counts"][place] = pick.choice([2, 6])
            else:
                chosen["spans"][place] = pick.choice([5, 20])
    chosen |= {name: tuple(chosen[name]) for name in ("spans", "counts", "past")}
    if pick.random() < 0.3 and own != (None, None):  # without windows it is a join by distance, with other rules
        chosen["low"], chosen["high"] = pick.choice([(-4, 4), (0, None), (None, 3)])
    return chosen


def _batches(pick: random.Random) -> list[list[Row]]:
    """Offsets and times grow, more or less; some messages come again."""
    offsets, answered, batches = {"left": pick.randint(0, 9), "right": 0}, list[Row](), list[list[Row]]()
    for number in range(pick.randint(1, 5)):
        batch = []
        for place in range(pick.randint(0, 8)):
            side = pick.choice(SIDES)
            offsets[side] += 1
            at = max(0, 7 + number * 7 + pick.choice([0, 5, 9, -3, -9, -16]))
            batch.append(Row(side, pick.choice("aab"), at, 100 * number + place, offsets[side]))
        pick.shuffle(batch)
        if pick.random() < 0.3 and batch + answered:
            batch += pick.choices(batch + answered, k=2)
        batches.append(batch)
        answered += batch
    if pick.random() < 0.2:  # in any order, so lower offsets may come later than higher ones
        pick.shuffle(batches)
    return batches
