"""Divides a checkpoint again and waits, to be killed, before or after its manifest."""

from __future__ import annotations

import json
import sys
import time

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Head, Manifest
from tidestate.recovery.moves.rescale import rescale


def main(root: str, partitions: str, moment: str) -> None:
    publish = Checkpoint.publish

    def paused(checkpoint: Checkpoint, manifest: Manifest) -> Head:
        found = publish(checkpoint, manifest) if moment == "after" else None
        print(json.dumps({"event": "paused", "checkpoint": manifest.id}), flush=True)
        time.sleep(3600)
        assert found is not None
        return found

    Checkpoint.publish = paused  # type: ignore[method-assign]
    rescale(root, int(partitions))


if __name__ == "__main__":
    main(*sys.argv[1:])
