"""Whoever waits for something about requests, and the files of a root that they are made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tidestate.recovery.control.asker import Asker
from tidestate.statestore.storage.objects import Objects

TRIES, PAUSE_S = 6000, 0.01


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, a minute at most."""
    for _ in range(TRIES):
        if condition():
            return
        time.sleep(PAUSE_S)
    raise AssertionError("it did not come about")


def asker(root: Path | str) -> Asker:
    """An asker that looks often."""
    return Asker(Objects(root), pause_s=PAUSE_S)


def control_files(root: Path) -> list[str]:
    """The files of requests, below ``control/``."""
    return sorted(str(path.relative_to(root / "control")) for path in (root / "control").glob("*/*"))
