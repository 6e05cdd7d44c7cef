"""A durable query on Spark: ``foreachBatch`` is the hook; each batch is one Spark job and one manifest.

Batches, ticks, reprocessing and the drain all take the lock of the job's driver. Ticks come from a thread of their
own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from tidestate.operators.engine.delivery import PATIENCE_S
from tidestate.operators.engine.driver import Driver, MeasuredByDriver
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.rebuild import needs_side_run
from tidestate.operators.engine.replay_start import rebuilt
from tidestate.operators.engine.reprocess import late_rows
from tidestate.operators.plan.reasons import PUT_BACK
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.compat import report_of
from tidestate.operators.spark.handles import QueryHandle, started
from tidestate.operators.spark.monitoring import (
    Report,
    free_query_name,
    gauge_values,
    listening,
    observed_values,
    offsets_behind_of,
    set_gauges,
)
from tidestate.operators.spark.requests import RequestedQuery
from tidestate.operators.spark.scan.batch import BatchScans, SparkRows
from tidestate.operators.spark.stream_job import StreamJob
from tidestate.operators.spark.transport import SparkTransport, configured
from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.manifest import Manifest, Scan
from tidestate.recovery.log.spark_log import (
    SPARK_FOLDER,
    FilesRead,
    SparkLog,
    check_follows,
    check_same,
    followed,
    load_files,
    read_as_patterns,
    store_lists,
)
from tidestate.recovery.log.summary import brief, time_text
from tidestate.recovery.log.topic_offsets import TopicOffsets
from tidestate.statestore.arguments import checked
from tidestate.statestore.distribution import NAME
from tidestate.statestore.errors import FencedError, TidestateError, UsageError
from tidestate.statestore.secrets import public_url

log = logging.getLogger("tidestate")


class Ticker:
    """Calls ``tick`` every ``every_s`` seconds until that returns False, or `stop`."""

    def __init__(self, tick: Callable[[], bool], every_s: float) -> None:
        self._tick, self._every_s = tick, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidestate-ticker", daemon=True)

    def start(self) -> None:
        """Start; the first tick is after one span."""
        self._thread.start()

    def stop(self) -> None:
        """No tick begins after this; waits for a running one."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            if not self._tick():
                return


RECENT_BATCHES = 100
"""Of how many batches the checkpoint is in `QueryOnSpark.recentProgress`: as many as Spark keeps reports of."""
NOTED_PAUSE_S = 0.4
"""The pause between two offers from which Spark's UI has a note of the wait."""


class StoppingError(TidestateError):
    """Raised inside Spark's query to end it between two batches; never seen by users."""


class QueryOnSpark(MeasuredByDriver, QueryHandle):
    """The `DurableQuery` of a job on Spark."""

    def __init__(
        self,
        settings: StreamJob,
        job: Job,
        spark_log: SparkLog,
        read: FilesRead,
        scans: BatchScans,
        replayed: Callable[[DataFrame | Mapping[str, DataFrame]], DataFrame],
        *,
        ticks: bool,
    ) -> None:
        self._platform = settings.platform
        self._noted_since_us: int | None = None
        self._job, self._job_name = job, job.plan.name
        self._root = public_url(job.checkpoint.objects.root)
        self._scans = scans
        self._replayed = replayed
        self._scan: Scan | None = None
        self._log = spark_log
        self._read = read
        self._stopping = self._draining = False
        self._waits_no_more = threading.Event()
        self._ended_by_us = False
        self._has_gauges = True  # as far as is known
        self._batches: OrderedDict[int, Report] = OrderedDict()
        self._failure: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._ticker = Ticker(self._tick, settings.tick / 1e6) if ticks else None
        self._driver: Driver[SparkRows, DataFrame] = Driver(
            job,
            SparkTransport(self._platform, in_driver=settings.in_driver, sql_partials=settings.sql_partials),
            settings.sinks,
            wait=self._wait,
            still=lambda: not self._over,
            retain=settings.retain,
            metrics=settings.metrics,
            behind=self._behind,
        )

    def _progress(self) -> Mapping[str, Progress]:
        return self._job.progress

    def _with_checkpoints(self, reports: Sequence[Report]) -> list[Report]:
        return [self._with_checkpoint(report) for report in reports]

    def begin(
        self,
        stream: DataFrame,
        trigger: dict[str, str | bool] | None,
        listeners: Sequence[StreamingQueryListener] = (),
        *,
        put_back: Callable[[Driver[SparkRows, DataFrame]], None] | None = None,
    ) -> None:
        """`prepare`, then start; with ``put_back``, which reads the stream again, once lost messages are back."""
        self.prepare(replays=put_back is not None)
        try:
            graph, head = self._job.graph, self._job.head
            if put_back is not None and (needs_side_run(graph, head) or rebuilt(graph, head)):
                put_back(self._driver)
                self._driver.begin()
            objects = self._job.checkpoint.objects
            name = free_query_name(self._platform.session, self._job_name, objects.root)
            writer = stream.writeStream.foreachBatch(self._on_batch).queryName(name)
            writer = writer.option("checkpointLocation", objects.url(SPARK_FOLDER))
            if trigger:
                writer = writer.trigger(**trigger)
            quick_log = self._platform.quick_log(objects.url(SPARK_FOLDER))
            with listening(self._platform.session, listeners, name, self._with_checkpoint), quick_log:
                self._query = started(writer)
        except BaseException:
            self._driver.end()
            raise
        self.serve_requests()
        if self._ticker is not None:
            self._ticker.start()

    def serve_requests(self) -> None:
        """Let others ask this run by files in the root."""
        run = RequestedQuery(
            self,
            self._driver,
            self._platform.session,
            is_over=lambda: self._over,
            is_stopping=lambda: self._stopping,
            give_way=self._give_way,
        )
        self._driver.serve_requests(run)

    def prepare(self, *, replays: bool = False) -> None:
        """Take the lease, and deliver what the last run has left undelivered; ``replays`` as in `Driver.begin`.
        Raises `UsageError` for a drained checkpoint. Blocks while the sink refuses.
        """
        self._driver.begin(replays=replays)
        try:
            with self._driver.lock:
                self._driver.deliver()
                self._job.check_open()
        except BaseException:
            self._driver.end()
            raise

    @property
    def _over(self) -> bool:
        """Whether the query has ended, by an error too."""
        try:
            return self._failure is not None or (self._query is not None and not self._query.isActive)
        except Exception:  # Java has ended
            return True

    @property
    def checkpoint_id(self) -> int:
        return self._job.head.id

    @property
    def manifest(self) -> Manifest:
        return self._job.head

    @property
    def scan(self) -> Scan | None:
        return self._scan

    @property
    def waiting_since_us(self) -> int | None:
        return self._driver.offers.waiting_since_us

    @property
    def _measured(self) -> Driver[SparkRows, DataFrame]:
        return self._driver

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._query is not None and bool(self._query.isActive)

    def _behind(self) -> tuple[TopicOffsets, ...]:
        """How far each source was behind at Spark's newest report; nothing before the first, nor without Java."""
        try:
            report = self._spark_query.lastProgress
            return offsets_behind_of(None if report is None else report_of(report))
        except Exception:  # the query has not started, or Java or the server has ended
            return ()

    def _with_checkpoint(self, report: Report) -> Report:
        """A report of Spark's, with what the checkpoint of its batch has. May be called from any thread."""
        made = self._batches.get(report["batchId"])
        if made is None:
            return report
        observed = report.get("observedMetrics", {}) | made["observedMetrics"]
        return {**report, **made, "observedMetrics": observed}

    def exception(self) -> Exception | None:
        if self._failure is not None or self._query is None:
            return self._failure if isinstance(self._failure, Exception) else None
        failure: Exception | None = self._query.exception()
        return None if self._ended_by_us else failure

    def processAllAvailable(self) -> None:  # noqa: N802
        self._guard(self._spark_query.processAllAvailable)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        spark_query = self._spark_query
        if timeout is None:
            self._guard(spark_query.awaitTermination)
            return None
        return self._guard(partial(spark_query.awaitTermination, max(timeout, 0.001))) is not False

    @checked
    def stop(self, *, drain: bool = False, timeout_s: float | None = PATIENCE_S) -> None:
        try:
            self._stop(timeout_s)
            if drain:
                self.drain(timeout_s)
        finally:
            self._driver.end()

    def drain(self, timeout_s: float | None) -> None:
        """End the input, once no batch can follow; see `stop`."""
        with self._driver.lock, contextlib.suppress(StoppingError):
            self._waits_no_more.clear()
            self._draining = True
            self._driver.drain(timeout_s)

    def wait_for_batch(self, timeout_s: float | None) -> None:
        """Wait for a running batch, but not for a sink that does not return. Raises `UnavailableError`."""
        while not self._driver.lock.acquire(timeout=1.0 if timeout_s is None else min(1.0, timeout_s)):
            self._driver.offers.check_called(timeout_s)
        self._driver.lock.release()

    def _wait(self, pause_s: float) -> None:
        """Wait between two offers to a sink that refuses; raises when the query stops. The lock is held meanwhile."""
        since = self._driver.offers.waiting_since_us
        if pause_s >= NOTED_PAUSE_S and since != self._noted_since_us:
            self._noted_since_us = since
            self._platform.note_in_ui(f"{self._job_name}: waits for a sink since {time_text(since)} UTC")
        if self._waits_no_more.wait(pause_s) or (self._over and not self._draining):
            raise StoppingError("the query is stopping", code="stopping")

    def _described(self) -> contextlib.AbstractContextManager[None]:
        """Spark jobs of the next checkpoint have its name meanwhile."""
        return self._platform.described(f"{self._job_name}: checkpoint {self._job.head.id + 1}")

    def _stop(self, timeout_s: float | None) -> None:
        self._stopping = True
        self._waits_no_more.set()
        self.wait_for_batch(timeout_s)  # the next one sees the flag
        if self._ticker is not None:
            self._ticker.stop()
        self._spark_query.stop()
        if self._failure is not None:
            raise self._failure
        if (failure := self.exception()) is not None:
            raise failure

    def reprocess_late(
        self, rows: pa.Table | None = None, *, operator: str | None = None, reason: str | None = None
    ) -> int:
        with self._driver.lock:
            back, before = late_rows(self._job, rows, operator, reason), self._job.head.id
            if back.tables:
                with contextlib.suppress(StoppingError), self._described():
                    self._driver.reprocess_late(back)
            done = self._job.head.id > before  # not if the query was stopped while a sink held it
        return back.count if done else 0

    def rebuild(self, replay: DataFrame | Mapping[str, DataFrame]) -> int:
        rows = SparkRows(self._replayed(replay))
        with self._driver.lock:
            before = self._job.head.id
            with contextlib.suppress(StoppingError), self._described():
                self._driver.rebuild(rows)
            head = self._job.head
        counters = head.counters if head.id > before else {}  # not if the query was stopped while a sink held it
        return sum(count for name, count in counters.items() if name.rpartition(".")[2] == PUT_BACK)

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Spark's hook. An error ends the query, and `awaitTermination` raises it."""
        with self._driver.lock:
            try:
                if self._stopping or self._failure is not None:
                    raise StoppingError("the query is stopping", code="stopping")
                self._take(batch, batch_id)
            except StoppingError:
                self._ended_by_us = True
                raise
            except BaseException as error:
                self._failure = error
                raise

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        job, objects = self._job, self._job.checkpoint.objects
        planned = self._log.planned(str(self._log.query_id()), batch_id)
        position, head = planned.position, load_files(objects, job.head.spark)
        if head is not None and head.batch_id == batch_id:
            check_same(head, position)
            self._driver.deliver()
            return
        check_follows(head, position)
        self._read.check(job.head, position)
        rows = configured(batch, self._platform)
        direct = self._scans.of(rows.sparkSession, position.files)
        taken = SparkRows(rows, direct, patterns=read_as_patterns(position.files))

        def after(number: int) -> Position:
            spark = store_lists(objects, followed(head, position), number)
            return Position(spark=spark, scan=self._scans.outcome(taken))

        with self._described():
            made = self._driver.batch(taken, planned.timestamp_ms * 1000, after)
        self._scan = made.scan
        if self._has_gauges:
            self._has_gauges = set_gauges(self._platform, self._job_name, gauge_values(made))
        self._batches[batch_id] = {
            "observedMetrics": {NAME: observed_values(made)},
            NAME: brief(made, self._driver.finished),
        }
        if len(self._batches) > RECENT_BATCHES:
            self._batches.popitem(last=False)
        self._read.add(position)
        # Idle time counts from here: during a batch Spark polls no source.
        self._driver.skip_idle_time(now_us())

    def _tick(self) -> bool:
        """Advance time without a batch. Returns False if the query has ended."""
        with self._driver.lock:
            if self._stopping or self._failure is not None or not self.isActive:
                return False
            try:
                with self._described():
                    self._driver.advance(now_us())
            except StoppingError:
                return False
            except BaseException as error:
                self._failure = error
        if self._failure is not None:
            self._spark_query.stop()  # without the lock, for a batch may be waiting for it
        return self._failure is None

    def _give_way(self) -> None:
        """End the query if a newer run has taken over."""
        with self._driver.lock:
            if self._stopping or self._failure is not None:
                return
            try:
                self._job.check_newest()
                return
            except FencedError as error:
                self._failure = error
        self._spark_query.stop()  # without the lock, as in `_tick`

    def _guard(self, wait: Callable[[], Any]) -> Any:
        """Run ``wait``; if the query has failed, raise our error and not the one that Spark wraps it in."""
        try:
            result = wait()
            if self._failure is not None:
                raise self._failure
            return result
        except Exception:
            if self._failure is not None:
                # Without what Spark says of it; what it comes from stays.
                raise self._failure from self._failure.__cause__
            if self._ended_by_us:
                return None  # stopped by another thread meanwhile
            raise
        finally:
            if self._over:
                self._driver.end()

    @property
    def _spark_query(self) -> StreamingQuery:
        if self._query is None:
            raise UsageError("the query has not started yet", code="not-started")
        return self._query
