"""An outer join on Spark that loses its rows, in a process of its own: it serves on, and dies in the replay.

``python -m tests.children.lost_pairs FOLDER``; with a further argument N it stops dead before manifest N, its files
written, and waits there for the SIGKILL.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from tests.children.pausing import paused_before
from tests.helpers.join_jobs import described, table
from tests.helpers.lost_joins import TABLES, stream
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.spark_inputs import write
from tests.twins.join import SIDES, Asked, Row
from tidestate.operators.describe.runs import DurableQuery
from tools.demo.job import say
from tools.java import local_session

ASKED = Asked(how="full", low=-3, high=3, late=2, named=True)
COLUMNS = "key string, t timestamp, value long, off int"
LOST_AFTER, SERVED, ALL = 3, 5, 6
"""The batches before the loss, those before the replay, and all."""


def rows() -> list[list[Row]]:
    """The batches: late rows, and some that come again."""
    return stream(random.Random(4))[:ALL]


def feed(folder: Path, batches: range) -> None:
    """Files of these batches, unless an earlier process has written them: both sides at once."""
    for number in batches:
        for side in SIDES:
            if not (folder / side / f"{number:04d}.parquet").exists():
                write(folder / side, number, table([row for row in rows()[number] if row.side == side]))


def main(given: str, death: str = "0") -> None:
    """Lose the rows, serve, put them back, and go on to the end; or to the death."""
    folder = Path(given)
    session, root = local_session("lost_pairs"), folder / "checkpoint"

    def started() -> DurableQuery:
        options = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        sides = {side: options.parquet(str(folder / side)) for side in SIDES}
        running = described(ASKED).on_spark(
            sides, checkpoint=root, partitions=2, policy=REBUILD, paths={"direct_scan"}
        )
        return running.with_hook(paused_before(int(death))).start()

    def replay(side: str) -> DataFrame:
        return session.read.schema(COLUMNS).parquet(str(folder / side))

    feed(folder, range(LOST_AFTER))
    if not root.exists():
        running = started()
        running.processAllAvailable()
        running.stop()
        assert lose(root, tables=TABLES)
    feed(folder, range(SERVED))
    running = started()
    running.processAllAvailable()
    say("rebuilt", put_back=running.rebuild({side: replay(side) for side in SIDES}))
    running.stop()
    feed(folder, range(ALL))  # not under a running query, which may list one side before and the other after this
    running = started()
    running.processAllAvailable()
    running.stop(drain=True)
    session.stop()
    say("done", checkpoint=running.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
