"""The handle of a job that runs elsewhere, for whoever did not start it: all it knows is in the root."""

from __future__ import annotations

import time
from collections.abc import Mapping
from os import PathLike
from typing import Any

from pyspark.sql import SparkSession

from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.spark.connect.query import QueryOnConnect, of_another_session
from tidestate.operators.spark.connect.root_by_task import objects_of_client
from tidestate.recovery.control.asker import Asker
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.marker import read_marker
from tidestate.recovery.log.requests import RunBegun
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.storage.options import root_with_options

END_LOOK_S = 0.5
"""How often a handle looks whether a run has ended."""


class RunElsewhere:
    """In place of Spark's query, which another session has."""

    lastProgress = None  # noqa: N815  as Spark names it
    recentProgress = ()  # noqa: N815

    def __init__(self, asker: Asker, begun: RunBegun) -> None:
        self._asker, self._begun = asker, begun
        self.id, self.runId = begun.query.get("id", ""), begun.query.get("run_id", "")
        self.name = begun.query.get("name", begun.job)

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether the run can still be asked."""
        try:
            return self._asker.run().epoch == self._begun.epoch
        except (UsageError, NotFoundError):
            return False

    @property
    def status(self) -> dict[str, Any]:
        """Who runs it, in place of what Spark does."""
        process = self._begun.process
        running = f"Runs on {process.host}, process {process.pid}" if self.isActive else "Has ended"
        return {"message": running, "isDataAvailable": False, "isTriggerActive": False}

    def exception(self) -> None:
        """Spark's error, which only its own session has; see `QueryOnConnect.exception`."""

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait until the run has ended; False if the time came first."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while self.isActive:
            if until_s is not None and time.monotonic() >= until_s:
                return False
            time.sleep(END_LOOK_S)
        return True

    def processAllAvailable(self) -> None:  # noqa: N802
        """Only the session that started the query knows what its sources have. Raises `UsageError`."""
        raise of_another_session("processAllAvailable")

    def explain(self, extended: bool = False) -> None:
        """Only the session that started the query has its plan. Raises `UsageError`."""
        raise of_another_session("explain")

    def stop(self) -> None:
        """The run ends its query itself, once it was asked to stop."""


@checked
def attach(
    spark: SparkSession, root: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> DurableQuery:
    """The handle of the job that runs on ``root``, started by any session, on Spark Connect or not: its checkpoint,
    metrics and lag, and `DurableQuery.stop`, `DurableQuery.reprocess_late` and `DurableQuery.rebuild`, which ask it.

    ``spark`` reads a root that this process cannot reach; ``storage_options`` are as for a runner. What only
    Spark's own query knows is not there: its reports are empty, and `DurableQuery.processAllAvailable` and
    `DurableQuery.explain` raise `UsageError` (``attached``).
    Raises `NotFoundError` without a root, and `UsageError` (``not-running``) where no job runs.
    """
    url = root_with_options(root, storage_options)
    objects = objects_of_client(spark, url)
    asker = Asker(objects)
    begun = asker.run()
    handle = QueryOnConnect(spark, url, begun.job, checkpoint=Checkpoint(objects, read_marker(objects)))
    handle.query, handle.epoch = RunElsewhere(asker, begun), begun.epoch
    return handle
