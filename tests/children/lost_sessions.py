"""A session join that has lost its rows, in a process of its own: it serves, replays its input, and dies.

``python -m tests.children.lost_sessions ROOT MOMENT:ID``.
"""

from __future__ import annotations

import os
import random
import signal
import sys

import pyarrow as pa

from tests.helpers.join_jobs import SCHEMA, table
from tests.helpers.lost_messages import REBUILD
from tests.twins.join import SIDES, Row
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet

JOB = session_join(event_time="t", on="key", gap="5 s", late="1000 s", offset="off")
LOST_AFTER, SERVED, ALL = 3, 5, 6
"""The batches before the loss, those before the replay, and all."""


def batches() -> list[pa.Table]:
    """Rows that are late, too: they change sessions that have fired."""
    chance, schema, made = random.Random(7), JOB.schema(SCHEMA, SCHEMA), []
    for number in range(ALL):
        rows = [
            Row(SIDES[n % 2], chance.choice("ab"), 10 * number + chance.choice([0, 5, 9, 14]), 100 * number + n, n)
            for n in range(20 * number, 20 * number + 16)
        ]
        rows += [Row(side, "a", chance.randrange(10 * number + 5), 900 + number, 20 * number + 18) for side in SIDES]
        given = {side: table([row for row in rows if row.side == side]) for side in SIDES}
        made.append(JOB.rows(schema, **given))
    return made


def main(root: str, death: str = "") -> None:
    """Go on without the rows, put them back in two pieces, and go on to the end."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    runner, had = StandaloneRunner(JOB, root, Parquet(max_levels=3), Sinks(), 2, hook, REBUILD), batches()
    runner.run(had[:SERVED])
    runner.rebuild(had[1:2])
    runner.rebuild(had[:SERVED])
    runner.run(had, drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
