"""Flights per hour and airport, corrected when one is reported late.

A flight counts in the hour in which it was scheduled. An hour is printed once the watermark has passed its end; a
flight that is reported up to six hours later takes that result back and corrects it. Later ones are in the late
ledger, with the reason: ``tidestate late FOLDER/checkpoint``.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, clock, rows, run
from tidestate import agg

flights = ts.stream("flights", event_time="scheduled", watermark_delay="30 minutes")
per_hour = flights.group_by("airport").window(ts.tumbling("1 hour"))
results = per_hour.aggregate(flights=agg.count(), mean_delay=agg.mean("delay"), worst=agg.max("delay"))
job = results.allowed_lateness("6 hours").accumulation("retracting")

SCHEMA = pa.schema([("scheduled", TIME), ("airport", pa.string()), ("delay", pa.int64())])


def batches() -> list[Batch]:
    """The first batch has 12:00, so the hour of 10:00 is over: 10:55 is late, and 05:00 too late."""
    first = rows(SCHEMA, (at("10:15"), "EWR", 2), (at("10:40"), "EWR", 4), (at("12:00"), "EWR", 0))
    second = rows(SCHEMA, (at("10:55"), "EWR", 9), (at("05:00"), "EWR", 1), (at("12:50"), "JFK", 7))
    return [{"flights": first}, {"flights": second}]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    what = f"{pane['airport']}, {clock(pane['window_start'])}: {pane['flights']} flights, {pane['mean_delay']} late"
    return f"{what} on average, {pane['worst']} at worst ({pane['kind']}, {pane['timing']})"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
