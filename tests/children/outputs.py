"""A standalone job with three outputs, each with a sink that is included, one of which may be three checkpoints
behind and refuses at times: ``python -m tests.children.outputs ROOT BY_KEY BY_MINUTE OF_ALL``, to be killed at any
moment.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from tests.helpers.outputs import OUTPUT_NAMES, several
from tests.helpers.spark_inputs import sample
from tests.helpers.targets import target_of
from tidestate.operators import DeliveryId
from tidestate.operators.engine import driver
from tools.demo.job import say


class AtTimes:
    """A sink that refuses two offers of three, as its own chance has it, and may be behind."""

    behind = 3

    def __init__(self, target: str) -> None:
        self._sink, self._chance = target_of(target).sink(), random.Random()

    def __call__(self, rows: Any, delivery: DeliveryId) -> bool:
        if self._chance.random() < 2 / 3:
            return False
        self._sink(rows, delivery)
        return True


def main(root: str, *targets: str) -> None:
    """Run to the end, or until the kill."""
    driver.LEFT_ALONE = 0  # it is asked again at once
    sinks: dict[str, Any] = {
        name: target_of(target).sink() for name, target in zip(OUTPUT_NAMES, targets, strict=True)
    }
    sinks["by_minute"] = AtTimes(targets[1])
    running = several().standalone(checkpoint=root, sink=sinks, checkpoints=None)
    for _ in running.stream(sample(20, 40)):
        say("batch", at=time.time())
    running.drain()
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
