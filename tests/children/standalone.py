"""The standalone runner in a process of its own, to be killed.

``python -m tests.children.standalone ROOT STORE CACHE``. It prints a line at each moment before and after a
manifest, and dies of its own hand at ``MOMENT:ID`` if that is a further argument.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from tests.twins import streams
from tests.twins.naive import Event, Setting
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig, StoreName

SETTING = Setting(size=6, slide=2, delay=3, allowed=18, mode="retracting", key=("k", "j"))
PARTITIONS = 2


def store_config(name: StoreName, cache: Path) -> StoreConfig:
    """Small limits, so that files are folded while the process dies."""
    if name == "rocksdb":
        return RocksDB(cache_dir=str(cache), max_levels=3, snapshot_bytes=1)
    return {"memory": Memory, "parquet": Parquet}[name](max_levels=3, snapshot_bytes=1)


def stream() -> list[streams.Batch]:
    """The same input in every process."""
    chance = random.Random(11)
    made = []
    for base in range(0, 72, 8):
        times = [None, *(base - chance.randint(0, 34) for _ in range(29))]
        made.append(
            [Event(t, chance.choice("abc"), chance.randint(0, 2), chance.randint(-9, 9), 0.25) for t in times]
        )
    return made


def main(root: str, name: StoreName, cache: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        print(moment, checkpoint_id, flush=True)
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    streams.run(SETTING, stream(), root, store_config(name, Path(cache)), PARTITIONS, hook)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
