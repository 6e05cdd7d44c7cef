"""Readings per ten minutes from three sensors, which send numbered buffers in any order.

A buffer carries its number and how far its sensor was when it sent it. The watermark is as far as the slowest
sensor is without a gap: buffer 2 of a sensor does not count before its buffer 1 has come. A buffer that comes again
is in the late ledger, and counts once.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, clock, rows, run
from tidestate import agg, watermark

buffers = watermark.buffers(origin="sensor", sequence="buffer", watermark="complete_until")
readings = ts.stream("readings", event_time="at").watermark(buffers, sources=["1", "2", "3"])
ten_minutes = readings.group_by().window(ts.tumbling("10 minutes"))
job = ten_minutes.aggregate(readings=agg.count(), warmest=agg.max("degrees"))

SCHEMA = pa.schema(
    [("sensor", pa.int64()), ("buffer", pa.int64()), ("complete_until", TIME), ("at", TIME), ("degrees", pa.int64())]
)


def batches() -> list[Batch]:
    """Buffer 1 of sensor 2 comes after its buffer 2; that of sensor 1 comes twice."""
    again = ((1, 1, at("09:10"), at("09:01"), 20), (1, 1, at("09:10"), at("09:05"), 21))
    first = rows(SCHEMA, *again, (2, 2, at("09:20"), at("09:12"), 25), (3, 1, at("09:15"), at("09:03"), 19))
    second = rows(SCHEMA, (2, 1, at("09:10"), at("09:04"), 24), *again)
    return [{"readings": first}, {"readings": second}]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    when = f"from {clock(pane['window_start'])} to {clock(pane['window_end'])}"
    return f"{when}: {pane['readings']} readings, {pane['warmest']} degrees at most"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
