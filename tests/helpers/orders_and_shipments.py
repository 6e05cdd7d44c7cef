"""The Orders and Shipments of the Samza design (SAMZA-552, case 2): messages, joins, and exact outputs by moment."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidestate as ts

TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("id", pa.int64()), ("time", TIME), ("offset", pa.int64()), ("value", pa.int64())])
SHIPMENTS = pa.schema([("id", pa.int64()), ("time", TIME), ("offset", pa.int64()), ("cost", pa.int64())])
Event = tuple[str, str, dict[str, Any]]


def at(clock: str) -> int:
    """Microseconds of a time of day."""
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000


def order(clock: str, offset: int, value: int, key: int, time: str) -> Event:
    return clock, "left", {"id": key, "time": at(time), "offset": offset, "value": value}


def shipment(clock: str, offset: int, cost: int, key: int, time: str) -> Event:
    return clock, "right", {"id": key, "time": at(time), "offset": offset, "cost": cost}


EVENTS = [
    order("9:00:00", 1, 0, 1, "8:59:10"),
    shipment("9:00:00", 1000, 0, 3, "9:00:10"),
    shipment("9:00:10", 1001, 2, 1, "9:00:10"),
    order("9:00:59", 2, 5, 3, "9:00:00"),
    shipment("9:01:01", 1002, 3, 1, "9:01:10"),
    shipment("9:01:01", 1003, 1, 9, "9:01:20"),
    order("9:02:01", 3, 9, 9, "8:59:30"),
]
OFFSETS = {"event_time": "time", "on": "id", "offset": "offset"}

TUPLES = ts.stream(event_time="time", offset="offset").join(
    ts.stream(event_time="time", offset="offset"),
    on="id",
    left=ts.side(window=ts.offset_windows(3)),
    sides=ts.side(update="1 minute", late_update="1 minute"),
    identity=True,
)
TIMES = ts.stream(event_time="time", offset="offset").join(
    ts.stream(event_time="time", offset="offset"),
    on="id",
    left=ts.side(
        window=ts.tumbling("2 minutes", offset="1 minute"),
        update=ts.period("2 minutes", offset="59 seconds"),
        late_update=ts.period("2 minutes", offset="59 seconds"),
    ),
    right=ts.side(update=ts.period("1 minute", offset="59 seconds")),
    identity=True,
)
FIRST = [(3, 5, 0), (1, 0, 2)]
EXPECTED = {
    "tuples": (TUPLES, {"9:01:00": FIRST, "9:02:00": [(1, 0, 3)], "9:03:00": [(9, 9, 1)]}),
    "times": (TIMES, {"9:00:59": FIRST, "9:01:59": [(1, 0, 3)], "9:02:59": [(9, 9, 1)]}),
}
QUIET = {"9:00:58", "9:01:00", "9:01:58", "9:01:59", "9:02:00", "9:02:58", "9:02:59", "9:03:00", "9:05:00"}
MOMENTS = sorted({clock for clock, _, _ in EVENTS} | QUIET)


def arriving(moment: str) -> dict[str, pa.Table]:
    """The messages that come at a moment, by side."""
    found = {}
    for side, own in (("left", ORDERS), ("right", SHIPMENTS)):
        rows = [row for clock, of, row in EVENTS if (clock, of) == (moment, side)]
        if rows:
            found[side] = pa.Table.from_pylist(rows, pa.schema([f.with_type(_plain(f.type)) for f in own])).cast(own)
    return found


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind
