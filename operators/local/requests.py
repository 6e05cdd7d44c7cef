"""Requests to a loop over batches: what each does there. It is done between two batches, by another thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.reprocess import late_rows
from tidestate.operators.engine.requests import RequestedRun
from tidestate.statestore.errors import UnavailableError, UsageError


class RequestedLoop(RequestedRun):
    """The requests to a loop of a standalone run, which looks at `is_stopped` before each batch, and calls `end`."""

    def __init__(self, driver: Driver[Any, pa.Table]) -> None:
        super().__init__(driver, "standalone")
        self._lock, self._drain = driver.lock, driver.drain
        self._reprocess = driver.reprocess_late
        self.is_stopped = False
        self._end = threading.Event()
        self._failure: BaseException | None = None

    def end(self, failure: BaseException | None = None) -> None:
        """The loop has ended, by this ``failure`` if there is one."""
        self._failure = failure if isinstance(failure, Exception) else None
        self._end.set()

    def is_going_on(self) -> bool:
        """Whether the loop has not ended."""
        return not self._end.is_set()

    def was_stopped(self) -> bool:
        return self.is_stopped

    def failure(self) -> BaseException | None:
        return self._failure

    def query_facts(self) -> dict[str, str]:
        return {}

    def give_way(self) -> None:
        """Nothing: its input cannot be interrupted, and the next batch is refused as it is published."""

    def stop(self, *, drain: bool, timeout_s: float | None) -> None:
        self.is_stopped = True
        if drain:
            with self._lock:
                self._drain(timeout_s)
        if not self._end.wait(timeout_s):
            raise UnavailableError(
                "the run stops before its next batch, which has not come so far: its input waits, or the program "
                "that takes its panes does",
                code="loop-waits",
                seconds=timeout_s,
            )

    def reprocess(self, rows: pa.Table | None, operator: str | None, reason: str | None) -> int:
        with self._lock:
            events = late_rows(self._driver.job, rows, operator, reason)
            if events.tables:
                self._reprocess(events)
        return events.count

    def rebuild(self, plans: Mapping[str, bytes]) -> int:
        raise UsageError(
            "a standalone run puts back lost messages from tables of its own program: call rebuild(…) there",
            code="request-refused",
        )
