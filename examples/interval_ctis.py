"""How many cars are charged in each half hour, at each station.

A charge is an interval: it counts in every window that it touches. Each station says how far it is by CTIs (current
time increments), here one with every second charge. A charge that begins before the CTI of its station violates it:
it counts from there on if it lasts that long, and is dropped otherwise. Only the input decides: not the clock, and
not how the rows are cut into batches.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, clock, rows, run
from tidestate import agg, watermark

ctis = watermark.cti_settings("adjust", generate=watermark.generate_ctis(2))
lives = ts.lifetime(end="unplugged")
charges = ts.stream(
    "charges", event_time="plugged", lifetime=lives, offset="number", origin="station", cti_settings=ctis
)
busy = charges.group_by("station").window(ts.tumbling("30 minutes", of="lifetime"))
job = busy.aggregate(cars=agg.count(), strongest=agg.max("kilowatts"))

SCHEMA = pa.schema(
    [
        ("station", pa.string()),
        ("number", pa.int64()),
        ("plugged", TIME),
        ("unplugged", TIME),
        ("kilowatts", pa.int64()),
    ]
)


def batches() -> list[Batch]:
    """The CTIs are 09:10 and 10:05 of the north, 10:00 of the south: charge 3 counts from 09:10, and 5 does not."""
    first = rows(
        SCHEMA,
        ("north", 1, at("09:00"), at("09:40"), 11),
        ("north", 2, at("09:10"), at("09:20"), 50),
        ("north", 3, at("08:55"), at("09:50"), 22),
    )
    second = rows(
        SCHEMA,
        ("south", 1, at("09:15"), at("10:20"), 11),
        ("south", 2, at("10:00"), at("10:05"), 11),
        ("north", 4, at("10:05"), at("10:10"), 22),
        ("north", 5, at("09:50"), at("10:00"), 50),
    )
    return [{"charges": first}, {"charges": second}]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    when = f"from {clock(pane['window_start'])} to {clock(pane['window_end'])}"
    return f"{pane['station']}, {when}: {pane['cars']} cars, up to {pane['strongest']} kW"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
