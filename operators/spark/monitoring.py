"""What Spark itself has of a job: the name of its query, gauges in Spark's own metrics system, and what listeners of
the job get: Spark's events of its query, in which each progress has what the checkpoint of its batch has.

`DataFrame.observe` would not do: its figures are in the progress of a query only where Spark's own plan reads the
batch, which tasks of ours or the driver read too; and late events, the watermark and the size of the state are known
only once the batch is in a checkpoint.

Spark makes these events itself and lets nobody add to them, so a listener of the job gets copies. It is registered as
Spark registers any other: calls come from a thread of Spark, and an error of a listener is logged there.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from tidestate.operators.progress.watermarks import END_US
from tidestate.operators.spark.platform import Platform
from tidestate.recovery.log.manifest import Manifest, events_of, state_size
from tidestate.recovery.log.topic_offsets import TopicOffsets, offsets_behind

log = logging.getLogger("tidestate")
Report = dict[str, Any]
"""A progress report, as in Spark's JSON."""


def free_query_name(session: SparkSession, name: str, root: str) -> str:
    """The name of a query; with its root if another one that runs has that name, which Spark would refuse."""
    taken = {query.name for query in session.streams.active}
    return f"{name} ({root})" if name in taken else name


def gauge_values(manifest: Manifest) -> dict[str, int]:
    """What the gauges of a job have after a checkpoint; no watermark before the first and after the end."""
    return {name: value for name, value in _values(manifest, manifest.totals).items() if value is not None}


def observed_values(manifest: Manifest) -> dict[str, int | None]:
    """The same of a batch, as Spark has metrics that it observed: the events of this batch, not of all."""
    return _values(manifest, manifest.counters)


def _values(manifest: Manifest, counters: dict[str, int]) -> dict[str, int | None]:
    size, mark = state_size(manifest), manifest.watermark_us
    late = sum(count for name, count in counters.items() if name.rpartition(".")[2] in ("mildly_late", "very_late"))
    return {
        "checkpoint": manifest.id,
        "events": events_of(manifest, counters),
        "late": late,
        "watermark_ms": None if mark is None or mark == END_US else mark // 1000,
        "state_rows": size.rows,
        "state_bytes": size.bytes,
    }


def offsets_behind_of(report: Report | None) -> tuple[TopicOffsets, ...]:
    """Of each source in a report of Spark's, how many offsets its batch left of those that there were before it."""
    sources = () if report is None else report.get("sources", ())
    return tuple(offsets_behind(source.get("endOffset"), source.get("latestOffset")) for source in sources)


def set_gauges(platform: Platform, job_name: str, values: Mapping[str, int]) -> bool:
    """Set gauges ``AccumulatorSource.tidestate.<name>.<gauge>`` of the driver, for each sink that Spark's metrics
    have (JMX, Graphite, ``/metrics/json`` of the UI). Accumulators are what Spark makes gauges of by a public
    interface.

    Never stops a job: False, and a line in the log, from a Spark without this interface.
    """
    try:
        for gauge, value in values.items():
            if (accumulator := platform.accumulator(f"tidestate.{job_name}.{gauge}")) is not None:
                accumulator.add(value - accumulator.sum())
    except Exception as error:
        log.warning("Spark's metrics have no gauges of this job: %s", error)
        return False
    return True


class JobListener(StreamingQueryListener):  # type: ignore[misc]  # pyspark has no types here
    """Passes events of the query ``name`` on to ``listener``. ``completed`` adds to a report what is known of its
    batch.
    """

    def __init__(
        self,
        session: SparkSession,
        listener: StreamingQueryListener,
        name: str,
        completed: Callable[[Report], Report],
    ) -> None:
        self._session, self._listener, self._name, self._completed = session, listener, name, completed
        self._run: Any = None
        """The run of the query. Spark has one of a name at a time, and says that it starts before `start` returns."""

    def begin(self) -> None:
        """From now on, until the query has ended."""
        self._session.streams.addListener(self)

    def end(self) -> None:
        """Take this listener off the session, which then reports nothing more to it."""
        self._session.streams.removeListener(self)

    def _end_later(self) -> None:
        """`end`, not while Spark calls: a client of Spark Connect holds a lock then, for which `end` would wait."""
        threading.Thread(target=self.end, name="tidestate-listener", daemon=True).start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        if self._run is None and event.name == self._name:
            self._run = event.runId
            self._listener.onQueryStarted(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if event.progress.runId == self._run:
            report = self._completed(json.loads(event.progress.json))
            self._listener.onQueryProgress(QueryProgressEvent(StreamingQueryProgress.fromJson(report)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        if event.runId == self._run:
            self._listener.onQueryIdle(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if event.runId == self._run:
            try:
                self._listener.onQueryTerminated(event)
            finally:
                self._end_later()


@contextmanager
def listening(
    session: SparkSession,
    listeners: Sequence[StreamingQueryListener],
    name: str,
    completed: Callable[[Report], Report],
) -> Iterator[None]:
    """Listeners get the events of the query ``name``, which is started in the block, until it ends."""
    copies = [JobListener(session, one, name, completed) for one in listeners]
    try:
        for one in copies:
            one.begin()
        yield
    except BaseException:
        for one in copies:
            one.end()
        raise
