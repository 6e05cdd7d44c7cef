"""A run of a job as requests in its root see it: each is done by an ordinary method of its runner."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from tidestate.operators.engine.exposition import exposition_text
from tidestate.operators.engine.job import Job, Runner
from tidestate.operators.progress.metrics import Family
from tidestate.recovery.control.watch import AskedRun, RequestOutcome
from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.lease import this_process
from tidestate.recovery.log.manifest import AnsweredRequest, Manifest
from tidestate.recovery.log.requests import (
    EndReason,
    ErrorRecord,
    RebuildRequest,
    ReprocessRequest,
    RequestAction,
    RunBegun,
    RunEnd,
    StopRequest,
)
from tidestate.statestore.distribution import version


class RequestedDriver(Protocol):
    """What requests need of the driver of a run."""

    job: Job

    @property
    def head(self) -> Manifest:
        """The manifest of the newest checkpoint."""

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served; None if they are not."""

    def families(self) -> list[Family]:
        """The metrics as they are now."""

    def answering(self, number: int) -> AbstractContextManager[None]:
        """The checkpoint that is published meanwhile records the request."""


class RequestedRun(AskedRun):
    """The requests to a run with this ``driver``; runners say how each is done."""

    def __init__(self, driver: RequestedDriver, runner: Runner) -> None:
        self._driver, self._runner = driver, runner

    @abstractmethod
    def stop(self, *, drain: bool, timeout_s: float | None) -> None:
        """End the run between two batches, drained or not."""

    @abstractmethod
    def reprocess(self, rows: pa.Table | None, operator: str | None, reason: str | None) -> int:
        """Reprocess late events, and return how many."""

    @abstractmethod
    def rebuild(self, plans: Mapping[str, bytes]) -> int:
        """Put back lost messages, and return how many rows; ``plans`` as in `RebuildRequest`."""

    @abstractmethod
    def query_facts(self) -> dict[str, str]:
        """What identifies the query, for a handle elsewhere."""

    @abstractmethod
    def failure(self) -> BaseException | None:
        """The error that ended the run."""

    @abstractmethod
    def was_stopped(self) -> bool:
        """Whether it was asked to stop."""

    def begun(self) -> RunBegun:
        """What others may know of the run."""
        driver = self._driver
        head, name = driver.head, driver.job.plan.name
        return RunBegun(
            uuid.uuid4().hex,
            this_process(),
            head.epoch,
            driver.job.checkpoint.writer,
            now_us(),
            self._runner,
            name,
            version(),
            self.query_facts(),
            driver.metrics_url,
        )

    def execute(self, number: int, action: RequestAction, rows: pa.Table | None) -> RequestOutcome:
        """Do a request, so that the checkpoint that it makes records it."""
        with self._driver.answering(number):
            if isinstance(action, StopRequest):
                self.stop(drain=action.drain, timeout_s=action.timeout_s)
                return RequestOutcome()
            if isinstance(action, ReprocessRequest):
                return RequestOutcome(self.reprocess(rows, action.operator, action.reason))
            if isinstance(action, RebuildRequest):
                return RequestOutcome(self.rebuild(action.replay))
        return RequestOutcome(text=exposition_text(self._driver.families()))

    @abstractmethod
    def give_way(self) -> None:
        """End a run that a newer one has overtaken."""

    def answered(self) -> AnsweredRequest | None:
        """The newest request that has made a checkpoint."""
        return self._driver.head.answered

    def ended(self) -> RunEnd:
        """Why the run has ended."""
        failure, head = self.failure(), self._driver.head
        why: EndReason = "finished"
        if failure is not None:
            why = "failed"
        elif head.drained:
            why = "drained"
        elif self.was_stopped():
            why = "stopped"
        error = None if failure is None else ErrorRecord.of(failure)
        return RunEnd(uuid.uuid4().hex, now_us(), why, head.id, error)
