"""The look-up of *Advancing Application Time*: a fast stream of points joined with a slow one of edges, which imports
the CTIs of the fast one.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import OperatorStream, watermark

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
READINGS = pa.schema([("sensor", "string"), ("at", TIME), ("value", "int64"), ("number", "int64")])
LIMITS = pa.schema(
    [
        ("sensor", "string"),
        ("since", TIME),
        ("until", TIME),
        ("shape", "string"),
        ("limit", "int64"),
        ("row", "int64"),
    ]
)


def joined(readings: str | None = None, limits: str | None = None) -> OperatorStream:
    """Readings and their limits, of streams with these names."""
    at_once = watermark.cti_settings("drop", generate=watermark.generate_ctis(1, delay="-1 microseconds"))
    fast = ts.stream(readings, event_time="at", offset="number").watermark(watermark.ctis(at_once))
    imported = watermark.cti_settings("adjust", import_from=fast)
    lives = ts.lifetime("until", shape="point", shape_column="shape")
    slow = ts.stream(limits, event_time="since", offset="row", lifetime=lives).watermark(watermark.ctis(imported))
    return fast.join_lifetimes(slow, on="sensor", name="checked")


JOINED = joined()

_READINGS = [("a", 10, 1), ("b", 20, 2), ("a", 30, 3), ("a", 70, 4), ("b", 80, 5), ("a", 90, 6), ("b", 130, 7)]
_LIMITS = [
    ("a", 0, None, "edge_start", 100),
    ("b", 5, None, "edge_start", 200),
    ("a", 0, 30, "edge_end", 100),
    ("a", 30, None, "edge_start", 110),
    ("b", 5, 75, "edge_end", 200),
    ("a", 30, 90, "edge_end", 110),
    ("b", 100, None, "edge_start", 220),
]
EXPECTED = [
    ("a", 10, 1, 100),
    ("a", 30, 3, 110),
    ("a", 70, 4, 110),
    ("b", 20, 2, 200),
    ("b", 130, 7, 220),
]
"""Sensor, second, value and limit of each reading that had a limit, sorted."""


def readings(first: int = 0, last: int | None = None) -> pa.Table:
    """The readings from place ``first`` to before ``last`` (None: to the end), as a table of `READINGS`."""
    rows = [
        {"sensor": sensor, "at": at * SECOND, "value": value, "number": place}
        for place, (sensor, at, value) in enumerate(_READINGS)
    ]
    return pa.Table.from_pylist(rows[first:last], READINGS)


def limits(first: int = 0, last: int | None = None) -> pa.Table:
    """Some starts and ends of limits, by place."""
    rows = [
        {
            "sensor": sensor,
            "since": since * SECOND,
            "until": None if until is None else until * SECOND,
            "shape": shape,
            "limit": limit,
            "row": place,
        }
        for place, (sensor, since, until, shape, limit) in enumerate(_LIMITS)
    ]
    return pa.Table.from_pylist(rows[first:last], LIMITS)


def batches(cuts: tuple[int, ...]) -> list[dict[str, pa.Table]]:
    """The readings, cut at these places; a limit is in the batch in which it has to be known."""
    found = []
    for first, last in zip([0, *cuts], [*cuts, len(_READINGS)], strict=True):
        begins = -1 if not first else _READINGS[first - 1][1]
        ends = _READINGS[last - 1][1]
        places = [place for place, row in enumerate(_LIMITS) if begins < _moment(row) <= ends]
        own: dict[str, Any] = {"left": readings(first, last)}
        if places:
            own["right"] = limits(places[0], places[-1] + 1)
        found.append(own)
    return found


def observed(panes: pa.Table) -> list[tuple[str, int, int, int]]:
    """What `EXPECTED` has, of panes."""
    assert set(panes["kind"].to_pylist()) <= {"emit"}
    seconds = [time.timestamp() for time in panes["time"].to_pylist()]
    columns = [panes[name].to_pylist() for name in ("sensor", "left_value", "right_limit")]
    return sorted((sensor, int(at), value, limit) for at, sensor, value, limit in zip(seconds, *columns, strict=True))


def _moment(row: tuple[Any, ...]) -> int:
    return int(row[2] if row[3] == "edge_end" else row[1])
