"""A standalone job with two sinks that are included, one of which may be three checkpoints behind, and refuses while
there is no file ``UP``: ``python -m tests.children.lagging_sink FIRST LAGGING ROOT UP``, to be killed while
it is held.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import target_of
from tidestate.operators import DeliveryId
from tools.demo.job import say


class Lagging:
    """The second sink, while it is up."""

    behind = 3

    def __init__(self, target: str, up: Path) -> None:
        self._sink, self._up = target_of(target).sink(), up

    def __call__(self, rows: Any, delivery: DeliveryId) -> bool:
        if not self._up.exists():
            say("refused", checkpoint=delivery.checkpoint)
            return False
        self._sink(rows, delivery)
        return True


def main(first: str, lagging: str, root: str, up: str) -> None:
    """Run to the end, or until the kill."""
    sinks = [target_of(first).sink(), Lagging(lagging, Path(up))]
    job().standalone(checkpoint=root, sink=sinks).run(sample(9, 60), drain=True)
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
