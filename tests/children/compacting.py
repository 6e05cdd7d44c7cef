"""A job whose target is compacted after each delivery, to be killed at any moment, also inside of a compaction:
``python -m tests.children.compacting TARGET FORM ROOT`` says ``delivered`` before each compaction.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.children.included_sink import DELIVERED_BATCHES
from tests.helpers.spark_inputs import job
from tests.helpers.targets import target_of
from tidestate.operators.sinks.compaction import Compaction
from tools.demo.job import say


def main(target: str, form: str, root: str) -> None:
    """Run to the end, then wait to be killed."""
    run_if_due = Compaction.run_if_due

    def run(compaction: Compaction, *given: Any) -> None:
        say("delivered")
        run_if_due(compaction, *given)

    Compaction.run_if_due = run  # type: ignore[method-assign]
    sink = target_of(target).sink(form)  # type: ignore[arg-type]
    job().standalone(checkpoint=root, sink=sink).run(DELIVERED_BATCHES, drain=True)
    say("done")
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
