"""Requests to a query on Spark: what each does there, by the methods of the query that its own user calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import SparkSession

from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.engine.requests import RequestedDriver, RequestedRun
from tidestate.operators.spark.connect.relations import unpacked
from tidestate.operators.spark.platform import is_connect
from tidestate.recovery.control.past import run_ended
from tidestate.statestore.errors import UsageError


class RequestedQuery(RequestedRun):
    """The requests to a query that runs: ``is_over`` says whether it has ended, ``is_stopping`` whether it was
    stopped; ``give_way`` ends it where a newer run has taken over.
    """

    def __init__(
        self,
        query: DurableQuery,
        driver: RequestedDriver,
        session: SparkSession,
        *,
        is_over: Callable[[], bool],
        is_stopping: Callable[[], bool],
        give_way: Callable[[], None],
    ) -> None:
        super().__init__(driver, "spark")
        self._query, self._session = query, session
        self._give_way = give_way
        self._is_over, self._is_stopping = is_over, is_stopping

    def is_going_on(self) -> bool:
        """Whether the query has not ended."""
        return not self._is_over()

    def give_way(self) -> None:
        self._give_way()

    def was_stopped(self) -> bool:
        return self._is_stopping()

    def failure(self) -> BaseException | None:
        try:
            return self._query.exception()
        except Exception:  # Java has ended
            return None

    def query_facts(self) -> dict[str, str]:
        return {"id": self._query.id, "run_id": self._query.runId, "name": self._query.name}

    def stop(self, *, drain: bool, timeout_s: float | None) -> None:
        self._query.stop(drain=drain, timeout_s=timeout_s)

    def reprocess(self, rows: pa.Table | None, operator: str | None, reason: str | None) -> int:
        count = self._query.reprocess_late(rows, operator=operator, reason=reason)
        if not count and self._is_stopping():  # stopped while a sink held it, or with nothing to do: not told apart
            raise run_ended(self._driver.head.epoch)
        return count

    def rebuild(self, plans: Mapping[str, bytes]) -> int:
        if not is_connect(self._session):
            raise UsageError(
                "a query on classic Spark cannot read what a client of Spark Connect describes: call rebuild(…) of "
                "the query where it was started",
                code="request-refused",
            )
        frames = {stream: unpacked(self._session, plan) for stream, plan in plans.items()}
        head = self._driver.head.id
        count = self._query.rebuild(frames[""] if set(frames) == {""} else frames)
        if self._driver.head.id == head and self._is_stopping():
            raise run_ended(self._driver.head.epoch)
        return count
