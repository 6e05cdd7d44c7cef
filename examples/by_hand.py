"""A window operator inside a program of one's own: messages in, results out, in one process and without a job.

Each message is known by its origin and offset, so one that is given again counts once: after a restart the program
goes on from wherever it is sure to miss none. A result is durable when it is given, and is given again until it is
acknowledged.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import pyarrow as pa

import tidestate as ts
from runner import TIME, Pane, at, clock, rows
from tidestate import agg

trades = ts.stream("trades", event_time="at", watermark_delay="10 seconds", offset="offset", origin="partition")
candles = trades.group_by("symbol").window(ts.tumbling("1 minute"))
job = candles.aggregate(trades=agg.count(), opened=agg.earliest("price"), closed=agg.latest("price"))

SCHEMA = pa.schema(
    [
        ("partition", pa.string()),
        ("offset", pa.int64()),
        ("at", TIME),
        ("symbol", pa.string()),
        ("price", pa.int64()),
    ]
)


def batches() -> list[pa.Table]:
    """The second one begins with the last message of the first."""
    first = rows(SCHEMA, ("p0", 1, at("09:00:05"), "x", 10), ("p0", 2, at("09:00:50"), "x", 14))
    second = rows(
        SCHEMA,
        ("p0", 2, at("09:00:50"), "x", 14),
        ("p0", 3, at("09:00:20"), "x", 8),
        ("p0", 4, at("09:00:30"), "y", 5),
        ("p0", 5, at("09:01:30"), "x", 13),
    )
    return [first, second]


def results(folder: str) -> Iterator[Pane]:
    """What the operator gives. It begins again with each batch, as after a restart, from its files alone."""
    for batch in batches():
        with job.by_hand(SCHEMA, checkpoint=folder) as operator:
            operator.add_messages(batch)
            for result in operator.get_result():
                yield from result.panes.to_pylist()
                operator.acknowledge(result.id)
            operator.flush()


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    prices = f"from {pane['opened']} to {pane['closed']}"
    return f"{pane['symbol']}, {clock(pane['window_start'])}: {pane['trades']} trades, {prices}"


def main() -> None:
    """``python examples/by_hand.py [FOLDER]``: run it."""
    with tempfile.TemporaryDirectory() as temporary:
        for pane in results(sys.argv[1] if len(sys.argv) > 1 else temporary):
            print(words(pane))


if __name__ == "__main__":
    main()
