"""A changed job that is killed as it publishes the fence with its new configuration: root, store, cache, moment."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.children.standalone import store_config
from tests.helpers.changed_jobs import added, events, first, tables, without
from tidestate import Aggregation, agg, trigger
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Head, Manifest
from tidestate.statestore.spec.store import StoreName

ROWS = tables(events(5))


def changed() -> Aggregation:
    """An aggregate more, one by another name, early panes, more patience."""
    described = added(without(first("sliding", "retracting"), "total"), amount=agg.sum("v"), high=agg.max("v"))
    described = described.trigger(early=trigger.each_batch()).allowed_lateness("110 seconds")
    return described.renamed(aggregates={"total": "amount"})


def main(root: str, name: StoreName, cache: str, moment: str) -> None:
    """Start it, and die before or after the manifest of the fence."""
    publish = Checkpoint.publish

    def dies(checkpoint: Checkpoint, manifest: Manifest) -> Head:
        assert manifest.kind == "fence"
        if moment == "after":
            publish(checkpoint, manifest)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    Checkpoint.publish = dies  # type: ignore[method-assign]
    changed().standalone(checkpoint=root, store=store_config(name, Path(cache))).run(ROWS, drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
