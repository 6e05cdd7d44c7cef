"""Listeners of a job: Spark's events of its query, in which each progress has what the checkpoint of its batch has.

Spark makes these events itself and lets nobody add to them, so a listener of the job gets copies. It is registered as
Spark registers any other: calls come from a thread of Spark, and an error of a listener is logged there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
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

Report = dict[str, Any]
"""A progress report, as in Spark's JSON."""


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
                self.end()


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
