"""The driver of a job in the server's process of its query: one for each query, which lives as long as it.

Spark unpickles the function of ``foreachBatch`` there once, before it reads its own checkpoint of the query. So the
job begins as it is unpickled: the root is opened, compared and fenced, Spark's log repaired and what is owed
delivered, all where a classic start does it; an error there is the error of the client's start.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame

from tidestate.operators.engine.delivery import PATIENCE_S
from tidestate.operators.spark.query import QueryOnSpark, StoppingError
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError

log = logging.getLogger("tidestate")

LOOK_S = 0.2
"""How often the process looks whether its server still lives."""
END_S = 10.0
"""How long the end of a run may take: what it owes then is done at the next start, as after a kill."""
ASK_EVERY = 150
"""At every so many looks the server is asked for the query: one that it has lost ends the process, and the question
keeps the client's session, which the server would close with its queries after an hour.
"""
LOST_TIMES = 2
"""How often in a row the server must say so: a query may take a while to begin after its job."""


class QueryInServer(QueryOnSpark):
    """The query as its own process has it."""

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.stopped = threading.Event()
        """Set once a request has stopped the run; Spark's query goes on until it is stopped too."""
        self.has_begun = self._has_ended = False

    def begin_in_server(self) -> None:
        """As `begin`, but the client starts Spark's query."""
        self.prepare()
        self.has_begun = True
        if self._ticker is not None:
            self._ticker.start()

    def take_batch(self, batch: DataFrame, number: int) -> None:
        """A batch of Spark's. One that comes after a stop is held until the process ends with the query: a return
        would be a batch that is done, and an error would fail the query.
        """
        try:
            self._on_batch(batch, number)
        except StoppingError:
            while True:
                threading.Event().wait()

    def is_lost(self) -> bool:
        """Whether the server does not have this query, as far as it says: it has ended, or has never begun."""
        query_id = self._log.query_id()
        return query_id is None or self._platform.session.streams.get(query_id) is None

    @checked
    def stop(self, *, drain: bool = False, timeout_s: float | None = PATIENCE_S) -> None:
        """As `QueryOnSpark.stop`, but Spark's query ends after the answer, see `finish`."""
        self._stopping = True
        self._waits_no_more.set()
        self.wait_for_batch(timeout_s)
        if self._failure is not None:
            raise self._failure
        if drain:
            self.drain(timeout_s)
        self.stopped.set()

    def finish(self) -> None:
        """End the run, and Spark's query, which may have ended."""
        self._stopping = True
        self._waits_no_more.set()
        if self._ticker is not None:
            self._ticker.stop()
        self._has_ended = True
        self._driver.end()
        with suppress(Exception):  # the server has ended
            if self.stopped.is_set():
                self._spark_query.stop()

    @property
    def id(self) -> str:
        """Empty until Spark has written it, as the job begins before the query."""
        return self._log.query_id() or ""

    @property
    def name(self) -> str:
        return self._job_name

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self._has_ended

    @property
    def _over(self) -> bool:
        return self._failure is not None or self._has_ended

    @property
    def _spark_query(self) -> Any:
        query = self._platform.session.streams.get(self.id)
        if query is None:
            raise UsageError("the query has ended", code="not-started")
        return query


class ProcessEnder:
    """Ends the process with its query: when Spark says so, when the server has died, which leaves the process behind,
    and when the server has lost the query.
    """

    def __init__(self, query: QueryInServer) -> None:
        self._query, self._server = query, os.getppid()
        self._is_asked_to_end = False

    def begin(self) -> None:
        """From now on. Must be called on the main thread, which alone has signals."""
        signal.signal(signal.SIGTERM, self._ask_to_end)
        # Not a daemon: Python waits for it before the exit hooks of PySpark, which try for ten minutes to reach a
        # server that may be gone.
        threading.Thread(target=self._run, name="tidestate-ender").start()

    def _ask_to_end(self, _number: int, _frame: object) -> None:
        # Nothing with a lock: a second signal may come in the middle of this.
        self._is_asked_to_end = True

    def _run(self) -> None:
        looks, lost, is_asked = 0, 0, False
        while not (self._is_asked_to_end or self._query.stopped.wait(LOOK_S) or self._is_orphaned()):
            if not self._query.has_begun:
                continue  # a sink may refuse what it is owed for as long as it likes
            looks += 1
            if not is_asked and self._query.id:
                is_asked = True
                self._query.serve_requests()
            if looks % ASK_EVERY == 0:
                lost = lost + 1 if self._is_lost() else 0
            if lost == LOST_TIMES:
                break
        # A batch in the middle may hold what the end waits for, while it tries for minutes to reach a server that is
        # gone.
        ending = threading.Thread(target=self._finish, name="tidestate-end", daemon=True)
        ending.start()
        ending.join(END_S)
        sys.stderr.flush()
        os._exit(0)

    def _finish(self) -> None:
        try:
            self._query.finish()
        except BaseException:
            log.exception("the run could not be ended in order: the next start does the rest")

    def _is_orphaned(self) -> bool:
        return os.getppid() != self._server or not threading.main_thread().is_alive()

    def _is_lost(self) -> bool:
        try:
            return self._query.is_lost()
        except Exception as error:
            log.warning("the server does not say whether it has the query: %s", error)
            return False


def log_to_server() -> None:
    """What this package logs goes to the log of the server, as nobody else has set a handler in this process."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
