"""A standalone job with a sink that is included, to be killed when its target has taken a delivery and before the job
knows: ``python -m tests.children.included_sink TARGET FORM ROOT DELIVERY`` says ``paused`` there, after that many.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import target_of
from tidestate.operators import DeliveryId
from tools.demo.job import say

DELIVERED_BATCHES = sample(4, 40)


def main(target: str, form: str, root: str, pause: str) -> None:
    """Run until it is killed, between the two commits."""
    sink, number = target_of(target).sink(form), 0  # type: ignore[arg-type]

    def taken(rows: Any, delivery: DeliveryId) -> None:
        nonlocal number
        sink(rows, delivery)
        number += 1
        if number == int(pause):
            say("paused", checkpoint=delivery.checkpoint)
            time.sleep(600)

    job().standalone(checkpoint=root, sink=taken).run(DELIVERED_BATCHES, drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
