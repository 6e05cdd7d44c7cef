"""Faults from outside of the process that runs the job: on its files, by the project's own verbs, and on Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidestate.operators.chaos.faults import Injected
from tidestate.operators.chaos.process import Running
from tidestate.recovery.log.checkpoint import MANIFESTS, Checkpoint
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.moves.rewind import rewind
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import TidestateError

RETENTION = CheckpointRetention(newest=3, grace="0 seconds")
"""What a collection leaves."""


def collect_meanwhile(root: Path, child: Running) -> tuple[int, int]:
    """Collect again and again until the process ends: how often, and how many files are gone."""
    runs = deleted = 0
    while not child.reached("done", 0.05) and child.alive:
        try:
            deleted += len(collect(Checkpoint.open(root), RETENTION).files)
        except TidestateError:  # the root is not there yet, or it has moved on meanwhile
            continue
        runs += 1
    return runs, deleted


@contextmanager
def damaged_meanwhile(root: Path, fault: Injected, chance: random.Random) -> Iterator[str]:
    """A file of the root is damaged within the block, and put back after it if nobody has replaced it."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    newest = max((path for path in paths if path.parent.name == MANIFESTS), default=None)
    # Without its newest manifest a root looks as one whose last commit never happened: docs/internals/protocol.md.
    gone = fault.what == "gone"
    path = chance.choice([path for path in paths if not (gone and path == newest)])
    before = path.read_bytes()
    after = _changed(before, fault.what, chance)
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
    yield f"{fault.what} {path.relative_to(root)}"
    there = path.read_bytes() if path.exists() else None
    if there == after and path.parent.exists():
        path.write_bytes(before)


def _changed(data: bytes, what: str, chance: random.Random) -> bytes | None:
    if what == "gone":
        return None
    if what == "empty":
        return b""
    if what == "zeros":
        return bytes(len(data))
    place = chance.randrange(len(data))
    if what == "cut":
        return data[:place]
    return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]


def rewound(root: Path, fault: Injected) -> str:
    """Go back to a checkpoint that has one after it."""
    checkpoint = Checkpoint.open(root)
    ids = [one.id for one in checkpoint.history()][:-1]
    chosen = ids[int(fault.share * len(ids))]
    rewind(checkpoint, chosen)
    return f"to checkpoint {chosen}"


def rescaled(root: Path, fault: Injected) -> str:
    """Change the number of state partitions."""
    before = Checkpoint.open(root).head()
    there = before.manifest.partitions if before is not None else 0
    wanted = fault.number + (fault.number >= there)
    rescale(root, wanted)
    return f"from {there} to {wanted} partitions"
