"""A job that stops dead at a manifest, for a SIGKILL."""

from __future__ import annotations

import time
from collections.abc import Callable

from tools.demo.job import say


def paused_before(death: int) -> Callable[[str, int], None]:
    """A hook that says ``paused`` and waits there once all files of manifest ``death`` are written."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if moment == "before-manifest" and checkpoint_id == death:
            say("paused", checkpoint=checkpoint_id)
            time.sleep(3600)

    return hook
