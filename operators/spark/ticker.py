"""A thread that lets time go on between batches."""

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
        """Begin, one span from now."""
        self._thread.start()

    def stop(self) -> None:
        """No tick begins any more; one that is under way is waited for."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            if not self._tick():
                return
