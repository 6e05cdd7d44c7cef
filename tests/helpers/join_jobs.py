"""Joins as the twin describes them, on the real operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.twins.join import Asked, Pane, Row, Window
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
