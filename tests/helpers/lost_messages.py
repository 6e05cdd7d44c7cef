"""Files of stored messages that go missing, or are damaged."""

from __future__ import annotations

import random
from collections.abc import Container
from pathlib import Path

from tests.helpers.process import forget
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Rebuilding
from tidestate.recovery.start.policy import Policy

REBUILD, FORGET = Policy(messages="rebuild"), Policy(messages="forget")


def noted(rebuilding: Rebuilding | None) -> tuple[int, int | None] | None:
    """Since when messages are put back, and how many windows or rows lack some."""
    return None if rebuilding is None else (rebuilding.since, rebuilding.lacking)


def lose(folder: Path, chance: random.Random | None = None, tables: Container[str] = ("messages",)) -> int:
    """Delete or damage message files of the newest checkpoint, all or by ``chance`` some; how many. Caches forget."""
    head = Checkpoint.open(folder).newest()
    assert head is not None
    refs = [ref for one in head.manifest.operators.values() for ref in one.files if ref.table in tables]
    lost = [ref for ref in refs if chance is None or chance.random() < 0.5]
    for ref in lost:
        if chance is not None and chance.random() < 0.5:
            (folder / ref.path).write_bytes(b"other bytes")
        else:
            (folder / ref.path).unlink()
    forget()
    return len(lost)
