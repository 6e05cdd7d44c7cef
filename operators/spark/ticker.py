"""A thread that advances time between batches."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ticker:
    """Calls ``tick`` every ``every_s`` seconds until that returns False, or `stop`."""

    def __init__(self, tick: Callable[[], bool], every_s: float) -> None:
        self._tick, self._every_s = tick, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidestate-ticker", daemon=True)

    def start(self) -> None:
        """Start; the first tick is after one span."""
        self._thread.start()

    def stop(self) -> None:
        """No tick begins after this; waits for a running one."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            if not self._tick():
                return
