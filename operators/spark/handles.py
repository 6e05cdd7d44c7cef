"""What handles of a query have in common, whether its driver is in this process or in a Spark Connect server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.platform import is_modified_meanwhile
from tidestate.recovery.log.summary import time_text
from tidestate.statestore.errors import UsageError
from tidestate.statestore.html_tables import facts_html

BEGUN_TRIES, BEGUN_PAUSE_S = 5, 1.0
"""How often a query is begun while another driver does."""


def status_of(query: StreamingQuery, waiting_since_us: int | None) -> dict[str, Any]:
    """Spark's status of a query; while a sink holds the intake its message says so."""
    status = dict(query.status)
    if waiting_since_us is None:
        return status
    return {**status, "message": f"Waiting for a sink since {time_text(waiting_since_us)} UTC"}


def query_html(query: DurableQuery, root: str) -> str:
    """A query on a root as a table, for a notebook."""
    facts = {
        "checkpoint": root,
        "checkpoint_id": query.checkpoint_id,
        "status": query.status.get("message") if query.isActive else "stopped",
        "exception": query.exception(),
    }
    return facts_html(f"DurableQuery {query.name}", facts)


def chosen_progress(progress: Mapping[str, Progress], operator: str | None) -> Progress:
    """The progress of an operator by its name, of the first one without. Raises `UsageError` (``operator``)."""
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
