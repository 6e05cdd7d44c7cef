"""Requests to a query on Spark: what each does there, by the methods of the query that its own user calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.engine.requests import RequestedDriver, RequestedRun
from tidestate.operators.spark.connect.relations import unpacked
from tidestate.recovery.control.past import run_ended
from tidestate.recovery.log.requests import ReplayReading


class RequestedQuery(RequestedRun):
    """The requests to a query that runs: ``is_over`` says whether it has ended, ``is_stopping`` whether it was
    stopped.
    """

    def __init__(
        self,
        query: DurableQuery,
        driver: RequestedDriver,
        session: SparkSession,
        *,
        is_over: Callable[[], bool],
        is_stopping: Callable[[], bool],
    ) -> None:
        super().__init__(driver, "spark")
        self._query, self._session = query, session
        self._is_over, self._is_stopping = is_over, is_stopping

    def is_going_on(self) -> bool:
        """Whether the query has not ended."""
        return not self._is_over()

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

    def reprocess(self, rows: pa.Table | None, operator: str | None) -> int:
        count = self._query.reprocess_late(rows, operator=operator)
        if not count and self._is_stopping():  # stopped while a sink held it, or with nothing to do: not told apart
            raise run_ended(self._driver.head.epoch)
        return count

    def rebuild(self, replay: Mapping[str, ReplayReading]) -> int:
        frames = {stream: self._frame(reading) for stream, reading in replay.items()}
        head = self._driver.head.id
        count = self._query.rebuild(frames[""] if set(frames) == {""} else frames)
        if self._driver.head.id == head and self._is_stopping():
            raise run_ended(self._driver.head.epoch)
        return count

    def _frame(self, reading: ReplayReading) -> DataFrame:
        """What a description reads, as a DataFrame of this session."""
        if reading.plan:
            return unpacked(self._session, reading.plan)
        reader = self._session.read.format(reading.format).options(**reading.options)
        if reading.columns:
            reader = reader.schema(reading.columns)
        return reader.load(list(reading.paths)) if reading.paths else reader.load()
