"""The job of `tests.children.outputs` on Spark, over the files of a folder:
``python -m tests.children.outputs_on_spark ROOT INPUT BY_KEY BY_MINUTE OF_ALL``, to be killed at any moment.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from tests.helpers.outputs import OUTPUT_NAMES, several
from tests.helpers.spark_inputs import SCHEMA
from tests.helpers.targets import target_of
from tidestate.operators import DeliveryId
from tidestate.statestore.errors import UsageError
from tools.demo.job import say
from tools.java import local_session


class Telling:
    """A sink that refuses an offer of three, as its own chance has it, may be behind, and says what it has taken."""

    behind = 3

    def __init__(self, target: str) -> None:
        self._sink, self._chance = target_of(target).sink(), random.Random()

    def __call__(self, rows: Any, delivery: DeliveryId) -> bool:
        if self._chance.random() < 1 / 3:
            return False
        self._sink(rows, delivery)
        say("taken", checkpoint=delivery.checkpoint)
        return True


def main(root: str, folder: str, *targets: str) -> None:
    """Run to the end, or until the kill."""
    session = local_session("outputs")
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    sinks: dict[str, Any] = {
        name: target_of(target).sink() for name, target in zip(OUTPUT_NAMES, targets, strict=True)
    }
    sinks["by_minute"] = Telling(targets[1])
    try:
        query = several().on_spark(stream, checkpoint=root, sink=sinks, partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=True)
    except UsageError as error:  # it died when it was drained, and has now delivered what it owed
        if error.code != "drained":
            raise
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
