"""Visits to a site whose clicks are delivered more than once.

The first click with an id passes, a repetition within an hour does not, in the same batch or in a later one. What
passes makes sessions: a verb follows a verb, and what is in front of the windows has state of its own in the same
checkpoint.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, clock, rows, run
from tidestate import agg

clicks = ts.stream("clicks", event_time="at", watermark_delay="10 minutes").deduplicate("click_id", within="1 hour")
visits = clicks.group_by("user").window(ts.sessions("30 minutes"))
job = visits.aggregate(clicks=agg.count()).accumulation("retracting")

SCHEMA = pa.schema([("at", TIME), ("click_id", pa.string()), ("user", pa.string())])


def batches() -> list[Batch]:
    """Click ``a`` comes twice in a batch, ``b`` again in the next one."""
    first = rows(SCHEMA, (at("09:00"), "a", "ada"), (at("09:00"), "a", "ada"), (at("09:10"), "b", "ada"))
    second = rows(SCHEMA, (at("09:10"), "b", "ada"), (at("09:20"), "c", "ada"), (at("12:00"), "d", "bob"))
    return [{"clicks": first}, {"clicks": second}]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    start, end = clock(pane["window_start"]), clock(pane["window_end"])
    return f"{pane['user']} clicked {pane['clicks']} times between {start} and {end}"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
