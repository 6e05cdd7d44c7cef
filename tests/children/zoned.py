"""A standalone job by local days, on a host with other rules of zones, that dies by its own hand:
``python -m tests.children.zoned ROOT DEATH``.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.helpers.zoned import DAY_S, SPRING, changed_rules, installation, local_days, zoned_rows
from tidestate.operators.engine.driver import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Head, Manifest
from tidestate.statestore.spec.store import Parquet


def main(root: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    def publish(checkpoint: Checkpoint, manifest: Manifest) -> Head:
        if manifest.kind == "fence":
            hook("before-fence", manifest.id)
        published = really_publish(checkpoint, manifest)
        if manifest.kind == "fence":
            hook("after-fence", manifest.id)
        return published

    really_publish = Checkpoint.publish
    Checkpoint.publish = publish  # type: ignore[method-assign]
    rows = [[(SPRING, 1)], [(SPRING + 13 * 3_600, 1), (SPRING, 1)], [(SPRING + 40 * DAY_S, 1)]]
    with installation(lambda name: changed_rules(name, SPRING + 30 * DAY_S)):
        description = local_days("Europe/Berlin").graph.description
        runner = StandaloneRunner(description, root, Parquet(), Sinks(), 1, hook)
        runner.run([zoned_rows(each) for each in rows], drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
