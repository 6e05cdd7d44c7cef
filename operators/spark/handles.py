"""What handles of a query have in common, whether its driver is in this process or in a Spark Connect server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.progress.figures import Gap, Metrics
from tidestate.operators.progress.metrics import gaps_of_progress, metrics_of
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.compat import as_spark_progress, report_of
from tidestate.operators.spark.monitoring import Report
from tidestate.operators.spark.platform import is_modified_meanwhile
from tidestate.recovery.log.summary import path_text, time_text
from tidestate.statestore.errors import UsageError
from tidestate.statestore.html_tables import facts_html

BEGUN_TRIES, BEGUN_PAUSE_S = 5, 1.0
"""How often a query is begun while another driver does."""


class QueryHandle(DurableQuery):
    """What a handle has of Spark's query, wherever the driver of the job is."""

    _root: str
    """As people may see it."""
    _job_name: str
    """That of the operator whose panes are the output."""

    @property
    @abstractmethod
    def _spark_query(self) -> StreamingQuery:
        """Spark's query. Raises `UsageError` (``not-started``) before it has started."""

    @abstractmethod
    def _with_checkpoints(self, reports: Sequence[Report]) -> list[Report]:
        """Spark's reports, each with what the checkpoint of its batch has."""

    @abstractmethod
    def _progress(self) -> Mapping[str, Progress]:
        """The progress of each operator that has had input."""

    def __repr__(self) -> str:
        return f"DurableQuery({self._job_name!r}, checkpoint={self._root!r}, checkpoint_id={self.checkpoint_id})"

    def _repr_html_(self) -> str:
        """The query as a table, for a notebook."""
        facts = {
            "checkpoint": self._root,
            "checkpoint_id": self.checkpoint_id,
            "status": self.status.get("message") if self.isActive else "stopped",
            "exception": self.exception(),
        }
        return facts_html(f"DurableQuery {self.name}", facts)

    @property
    def id(self) -> str:
        return str(self._spark_query.id)

    @property
    def runId(self) -> str:  # noqa: N802
        return str(self._spark_query.runId)

    @property
    def name(self) -> str:
        return str(self._spark_query.name)

    @property
    def status(self) -> dict[str, Any]:
        since_us, status = self.waiting_since_us, dict(self._spark_query.status)
        if since_us is None:
            return status
        return {**status, "message": f"Waiting for a sink since {time_text(since_us)} UTC"}

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        reports = [report_of(progress) for progress in self._spark_query.recentProgress]
        return [as_spark_progress(report) for report in self._with_checkpoints(reports)]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        progress = self._spark_query.lastProgress
        if progress is None:
            return None
        (report,) = self._with_checkpoints([report_of(progress)])
        return as_spark_progress(report)

    def explain(self, extended: bool = False) -> None:
        print(path_text(self.scan), "Its figures: docs/how-it-works/how-rows-are-read.md.")
        self._spark_query.explain(extended)

    def metrics(self, operator: str | None = None) -> Metrics:
        return metrics_of(self._progress_of(operator))

    def gaps(self, operator: str | None = None) -> list[Gap]:
        return gaps_of_progress(self._progress_of(operator))

    def _progress_of(self, operator: str | None) -> Progress:
        """The progress of an operator by its name, of the first one without. Raises `UsageError` (``operator``)."""
        progress = self._progress()
        if not progress:
            raise UsageError("the job has had no input so far: ask again after a batch", code="no-input")
        if operator is not None and operator not in progress:
            raise UsageError(
                "the job has no such operator: choose from those listed",
                code="operator",
                found=operator,
                there=list(progress),
            )
        return progress[operator] if operator is not None else next(iter(progress.values()))


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query. A run that is fenced, but has not noticed, may begin Spark's checkpoint at the same moment: then
    Spark refuses one of the two, which can begin a moment later with what the other has written.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

    retrying = Retrying(
        stop=stop_after_attempt(BEGUN_TRIES),
        wait=wait_fixed(BEGUN_PAUSE_S),
        retry=retry_if_exception(is_modified_meanwhile),
        reraise=True,
    )
    query: StreamingQuery = retrying(writer.start)
    return query
