"""A Spark job that loses its message files, in a process of its own: it serves on, and dies in the replay.

``python -m tests.children.lost_orders FOLDER``; with a further argument N it stops dead before manifest N, its files
written, and waits there for the SIGKILL.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from tests.children.pausing import paused_before
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.spark_inputs import write
from tidestate.agg import list as list_
from tidestate.agg import max as max_
from tidestate.operators import tumbling
from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tools.demo.job import say
from tools.java import local_session

SECOND = 1_000_000
COLUMNS = "offset long, time timestamp, item string, price long"
SCHEMA = pa.schema(
    [("offset", pa.int64()), ("time", pa.timestamp("us", tz="UTC")), ("item", pa.string()), ("price", pa.int64())]
)
ORDERS = windowed(event_time="time", key="item", name="orders", watermark_delay="10 seconds")
JOB = ORDERS.window(tumbling("1 minute")).late("1 hour").aggregate(highest=max_("price"), offsets=list_("offset"))
JOB = JOB.messages("offset").accumulation(RETRACTING)
LOST_AFTER, SERVED, ALL = 2, 3, 4
"""The batches before the loss, those before the replay, and all."""

Order = tuple[int, int, str, int]
"""Offset, time in seconds, item, price."""


def orders() -> list[list[Order]]:
    """The batches: out of order, late, and some come again."""
    chance = random.Random(19)
    made: list[list[Order]] = []
    had: list[Order] = []
    for number in range(ALL):
        new = [
            (100 * number + n, 50 * number + chance.randint(-90, 60), chance.choice("abc"), chance.randint(0, 99))
            for n in range(20)
        ]
        made.append([*new, *chance.sample(had, min(5, len(had)))])
        had += new
    return made


def feed(folder: Path, batches: range) -> None:
    """Files of these batches, unless an earlier process has written them."""
    for number in batches:
        if not (folder / f"{number:04d}.parquet").exists():
            columns = list(zip(*orders()[number], strict=True))
            columns[1] = tuple(1_700_000_000 * SECOND + at * SECOND for at in columns[1])
            write(
                folder, number, pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)
            )


def main(given: str, death: str = "0") -> None:
    """Lose the messages, serve, put them back, and go on to the end; or to the death."""
    folder = Path(given)
    session, root = local_session("lost_orders"), folder / "checkpoint"
    feed(folder / "orders", range(LOST_AFTER))
    stream = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / "orders"))

    def started(stream: DataFrame) -> DurableQuery:
        running = JOB.on_spark(stream, checkpoint=root, partitions=2, in_driver=False, policy=REBUILD)
        return running.with_hook(paused_before(int(death))).start()

    if not root.exists():
        running = started(stream)
        running.processAllAvailable()
        running.stop()
        assert lose(root)
    running = started(stream)
    feed(folder / "orders", range(SERVED))
    running.processAllAvailable()
    replay = session.read.schema(COLUMNS).parquet(str(folder / "orders"))
    say("rebuilt", put_back=running.rebuild(replay))
    feed(folder / "orders", range(ALL))
    running.processAllAvailable()
    running.stop(drain=True)
    session.stop()
    say("done", checkpoint=running.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
