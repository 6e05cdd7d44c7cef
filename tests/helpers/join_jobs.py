"""Joins as the twin describes them, on the real operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from tests.twins.join import Asked, Pane, Row, Window
from tidestate.operators import sliding, tumbling
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.join_choices import keep
from tidestate.operators.describe.windows import count_window
from tidestate.statestore.spec.store import StoreConfig
from tidestate.stores import Memory, Parquet, RocksDB

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


def described(asked: Asked, unit: str = "s") -> Join:
    chosen: dict[str, Any] = {
        "event_time": "t",
        "on": "key" if asked.on else (),
        "how": asked.how,
        "late": f"{asked.late} {unit}",
        "watermark_delay": tuple(f"{delay} {unit}" for delay in asked.delays),
        "large_windows": asked.large,
        "in_order": asked.in_order,
        "unmatched": "close" if asked.close else "final",
        "update": tuple(None if period is None else f"{period} {unit}" for period in asked.updates),
        "late_update": tuple(None if period is None else f"{period} {unit}" for period in asked.late_updates),
        "retain": tuple(_kept(*each, unit) for each in zip(asked.spans, asked.counts, asked.past, strict=True)),
    }
    if asked.named:
        chosen["offset"] = "off"
    if asked.window is not None:
        return join(**chosen, window=_window(asked.window, unit), occurrence="first" if asked.first else "each")
    if asked.own is not None:
        chosen["window"] = tuple(None if window is None else _window(window, unit) for window in asked.own)
    if asked.own is None or (asked.low, asked.high) != (None, None):
        chosen["within"] = tuple(None if bound is None else f"{bound} {unit}" for bound in (asked.low, asked.high))
    return join(**chosen)


def _kept(span: int | None, count: int | None, past: int | None, unit: str) -> Any:
    if (span, count, past) == (None, None, None):
        return None
    return keep(None if span is None else f"{span} {unit}", messages=count, windows=past)


def _window(window: Window, unit: str) -> Any:
    if window.by_offset:
        return count_window(window.size, window.slide, by="offset")
    if window.size == window.slide:
        return tumbling(f"{window.size} {unit}")
    return sliding(f"{window.size} {unit}", f"{window.slide} {unit}")


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
