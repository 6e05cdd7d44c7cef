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
from tidestate.recovery.moves.reset_plan import ResetPlan
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import TidestateError

RETENTION = CheckpointRetention(newest=3, grace="0 seconds")
"""What a collection leaves."""


def collect_meanwhile(root: Path, child: Running) -> tuple[int, int]:
    """Collect again and again until the process ends: how often, and how many files are gone."""
    runs = file_count = 0
    while not child.reached("done", 0.05) and child.alive:
        try:
            file_count += len(collect(Checkpoint.open(root), RETENTION).files)
        except TidestateError:  # the root is not there yet, or it has moved on meanwhile
            continue
        runs += 1
    return runs, file_count


@contextmanager
def damaged_meanwhile(root: Path, fault: Injected, chance: random.Random) -> Iterator[str]:
    """A file of the root is damaged within the block, and put back after it if nobody has replaced it."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    newest = max((path for path in paths if path.parent.name == MANIFESTS), default=None)
    # Without its newest manifest a root looks as one whose last commit never happened: docs/internals/protocol.md.
    is_removal = fault.detail == "gone"
    path = chance.choice([path for path in paths if not (is_removal and path == newest)])
    before = path.read_bytes()
    after = _changed(before, fault.detail, chance)
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
    yield f"{fault.detail} {path.relative_to(root)}"
    current = path.read_bytes() if path.exists() else None
    if current == after and path.parent.exists():
        path.write_bytes(before)


def _changed(data: bytes, damage: str, chance: random.Random) -> bytes | None:
    if damage == "gone":
        return None
    if damage == "empty":
        return b""
    if damage == "zeros":
        return bytes(len(data))
    index = chance.randrange(len(data))
    if damage == "cut":
        return data[:index]
    return data[:index] + bytes([data[index] ^ (1 << chance.randrange(8))]) + data[index + 1 :]


def rewound(root: Path, fault: Injected) -> str:
    """Go back to a checkpoint that has one after it."""
    checkpoint = Checkpoint.open(root)
    ids = [manifest.id for manifest in checkpoint.history()][:-1]
    target = ids[int(fault.share * len(ids))]
    ResetPlan.of_rewind(checkpoint, target).execute()
    return f"to checkpoint {target}"


def rescaled(root: Path, fault: Injected) -> str:
    """Change the number of state partitions."""
    before = Checkpoint.open(root).head()
    partitions = before.manifest.partitions if before is not None else 0
    target = fault.number + (fault.number >= partitions)
    rescale(root, target)
    return f"from {partitions} to {target} partitions"
