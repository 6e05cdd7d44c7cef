"""The handle of a query whose job runs in a Spark Connect server: it asks Spark, and the root."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tidestate.operators.engine.delivery import PATIENCE_S
from tidestate.operators.engine.exposition import exposition_text, instrument
from tidestate.operators.engine.job import progress_of
from tidestate.operators.engine.job_metrics import stored_families
from tidestate.operators.engine.reprocess import check_reason
from tidestate.operators.progress.figures import SinkWaits
from tidestate.operators.progress.metrics import Family
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.connect.failed import error_of_server, ours, process_died
from tidestate.operators.spark.connect.relations import packed
from tidestate.operators.spark.connect.root_by_task import objects_of_client
from tidestate.operators.spark.handles import QueryHandle
from tidestate.operators.spark.monitoring import Report, observed_values
from tidestate.operators.spark.platform import SPARK_ERRORS, is_connect
from tidestate.recovery.control.asker import Asker
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import running
from tidestate.recovery.log.manifest import Manifest, OutputKind, Scan
from tidestate.recovery.log.marker import read_marker
from tidestate.recovery.log.requests import (
    MetricsRequest,
    RebuildRequest,
    ReprocessRequest,
    StopRequest,
)
from tidestate.recovery.log.summary import brief
from tidestate.statestore.arguments import checked
from tidestate.statestore.distribution import NAME
from tidestate.statestore.errors import FencedError, NotFoundError, TidestateError, UnavailableError, UsageError
from tidestate.statestore.secrets import public_url

BEGIN_PAUSE_S = 0.1
"""How often a client looks whether a run that has just begun can be asked."""


def of_another_session(verb: str) -> UsageError:
    """Why a handle of a job that another session has started cannot do it."""
    return UsageError(
        f"{verb}() needs the session that started this query: a handle of attach(…) knows what is in the root",
        code="attached",
        verb=verb,
    )


NOBODY_TO_ASK = ("not-running", "not-asked", "run-ended", "no-object", "no-checkpoint", "storage")
"""Codes of the errors for a run that has ended, or whose root is gone or takes no request."""
LOOK_AT_RUN_S = 5.0
"""How often a handle that waits for the end looks whether the process of the query still lives."""
END_WAIT_S = 3.0
"""How long a client waits for a process that has ended to say why; one that was killed does not."""


class QueryOnConnect(QueryHandle):
    """The `DurableQuery` of a client. What it says of checkpoints is as of the newest one in the root."""

    def __init__(
        self,
        session: SparkSession,
        root: str,
        job: str,
        delivers: Collection[OutputKind] = (),
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._session, self._url, self._job_name, self._delivers = session, root, job, delivers
        self._root = public_url(root)
        self.query: StreamingQuery | None = None
        """Spark's query, once it has started."""
        self.epoch = 0
        """The writer epoch of its run."""
        self._checkpoint = checkpoint
        self._is_stopped = False

    @property
    def _spark_query(self) -> StreamingQuery:
        if self.query is None:
            raise UsageError("the query has not started yet", code="not-started")
        return self.query

    @property
    def _opened(self) -> Checkpoint:
        if self._checkpoint is None:
            objects = objects_of_client(self._session, self._url)
            self._checkpoint = Checkpoint(objects, read_marker(objects))
        return self._checkpoint

    @property
    def checkpoint_id(self) -> int:
        return self.manifest.id

    @property
    def manifest(self) -> Manifest:
        head = self._opened.newest()
        if head is None:
            raise UsageError("the root has no checkpoint yet", code="not-started")
        return head.manifest

    @property
    def scan(self) -> Scan | None:
        return self.manifest.scan

    @property
    def isActive(self) -> bool:  # noqa: N802
        try:
            return self.query is not None and bool(self.query.isActive)
        except SPARK_ERRORS as error:
            # A session that has ended has ended its queries, and a server that is gone too.
            if (lost := error_of_server(str(error))) is not None and lost.code == "server-lost":
                return False
            raise

    def with_checkpoint(self, report: Report) -> Report:
        """A report of Spark's, with what the checkpoint of its batch has, where that is kept."""
        (completed,) = self._with_checkpoints([report])
        return completed

    def _with_checkpoints(self, reports: Sequence[Report]) -> list[Report]:
        manifests = self._manifests_of({report["batchId"] for report in reports})
        return [_completed(report, manifests.get(report["batchId"])) for report in reports]

    def _manifests_of(self, batches: Collection[int]) -> dict[int, Manifest]:
        """The checkpoints that batches of Spark's have made, by their numbers: one walk from the newest one back, to
        the oldest batch that is asked for.
        """
        checkpoint, manifests = self._opened, dict[int, Manifest]()
        for checkpoint_id in reversed(checkpoint.ids()):
            manifest = checkpoint.read(checkpoint_id).manifest
            if manifest.spark is None or manifest.spark.batch_id < min(batches, default=0):
                break
            if manifest.kind == "batch" and manifest.spark.batch_id in batches:
                manifests[manifest.spark.batch_id] = manifest
            if len(manifests) == len(batches):
                break
        return manifests

    def exception(self) -> Exception | None:
        if self.query is None or self._is_stopped:
            return None
        with ours():
            failure = self.query.exception()
        if failure is None:
            return self._error_of_process() if self.isActive else self._error_of_end()
        own = error_of_server(str(failure))
        if own is not None and own.code == "server-process":
            # Spark 3.5 passes on no error of that process, which leaves it in the root as it ends.
            return self._error_of_end() or own
        return own or failure

    def _error_of_process(self) -> TidestateError | None:
        """That the process of the query is gone, which Spark finds out only with the next batch."""
        try:
            # A run that ends in order says so before it gives its lease back.
            if running(self._opened) is not None or self._asker.end(self.epoch) is not None:
                return None
            return process_died() if self.manifest.epoch == self.epoch else None
        except TidestateError:  # the root cannot be read now
            return None

    def _error_of_end(self) -> Exception | None:
        """Why the run has ended, where Spark's query does not know: between two batches, as at a tick."""
        if self.isActive:
            return None
        until_s = time.monotonic() + END_WAIT_S
        try:
            # It says so before it gives its lease back; a run of a moment says nothing.
            while (end := self._asker.end(self.epoch)) is None and running(self._opened) is not None:
                if time.monotonic() >= until_s:
                    break
                time.sleep(BEGIN_PAUSE_S)
            end = end or self._asker.end(self.epoch)
        except TidestateError:  # the root cannot be read now
            return None
        if end is not None and end.why == "lost":
            return FencedError(
                "a newer run of this job has taken over the checkpoint: this one has ended, and delivers nothing",
                code="fenced",
                epoch=self.epoch,
            )
        return end.error.error() if end is not None and end.error is not None else None

    def processAllAvailable(self) -> None:  # noqa: N802
        self._guard(self._spark_query.processAllAvailable)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        until_s = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = LOOK_AT_RUN_S if until_s is None else min(LOOK_AT_RUN_S, until_s - time.monotonic())
            if self._guard(partial(self._spark_query.awaitTermination, max(left_s, 0.001))) is not False:
                return None if timeout is None else True
            if until_s is not None and time.monotonic() >= until_s:
                return False

    def _guard(self, wait: Callable[[], Any]) -> Any:
        """Run ``wait``; if the query has failed, raise our error and not the one that Spark wraps it in."""
        try:
            result = wait()
            if (failure := self.exception()) is not None:
                raise failure from failure.__cause__
            return result
        except SPARK_ERRORS as error:
            own = error_of_server(str(error)) or self.exception()
            if own is not None:
                raise own from own.__cause__
            if self._is_stopped:
                return None
            raise

    @checked
    def stop(self, *, drain: bool = False, timeout_s: float | None = PATIENCE_S) -> None:
        if (failure := self.exception()) is not None:
            with suppress(*SPARK_ERRORS):
                self._spark_query.stop()
            raise failure from failure.__cause__
        refusal: TidestateError | None = None
        if self.isActive:
            try:
                self._asker.ask(StopRequest(drain, timeout_s))
            except (UsageError, NotFoundError, UnavailableError) as error:
                if error.code not in NOBODY_TO_ASK:
                    raise
                refusal = error  # another one was faster, or the root is gone
        self._is_stopped = True
        # Without a run to ask, Spark's query ends all the same: what it was about to do is done at the next start.
        self._spark_query.stop()
        if drain and not self._is_drained():
            raise refusal or UsageError(
                "this query has ended, and so has the process that could drain it: start the job again, and call "
                "stop(drain=True) while it runs",
                code="not-running",
            )

    def _is_drained(self) -> bool:
        try:
            return self.manifest.drained
        except TidestateError:
            return False

    def reprocess_late(
        self, rows: pa.Table | None = None, *, operator: str | None = None, reason: str | None = None
    ) -> int:
        check_reason(reason, is_given=rows is not None)
        return self._asker.ask(ReprocessRequest(operator, reason=reason), rows).rows or 0

    def rebuild(self, replay: DataFrame | Mapping[str, DataFrame]) -> int:
        if not is_connect(self._session):
            raise of_another_session("rebuild")
        frames = replay if isinstance(replay, Mapping) else {"": replay}
        return self._asker.ask(RebuildRequest({name: packed(frame) for name, frame in frames.items()})).rows or 0

    @property
    def _asker(self) -> Asker:
        return Asker(self._opened.objects)

    def _progress(self) -> dict[str, Progress]:
        progress = {name: progress_of(state) for name, state in self.manifest.operators.items()}
        return {name: of_operator for name, of_operator in progress.items() if of_operator is not None}

    @property
    def waiting_since_us(self) -> int | None:
        lease = running(self._opened)
        return lease.waiting_us if lease is not None else None

    @property
    def waits(self) -> SinkWaits:
        checkpoint, manifest = self._opened, self.manifest
        reached = delivered(checkpoint, manifest)
        behind = []
        for kind in self._delivers:
            outputs = checkpoint.outputs(reached.up_to(kind) + 1, of=manifest)
            waiting = next((output.id for output in outputs if output.output(kind)), manifest.id + 1)
            behind.append(manifest.id + 1 - waiting)
        return SinkWaits(self.waiting_since_us, 0, max(behind, default=0))

    def prometheus(self) -> str:
        return self._asker.ask(MetricsRequest()).text if self.isActive else exposition_text(self._families())

    def opentelemetry(self, provider: Any = None) -> None:
        instrument(self._families, provider)

    def _families(self) -> list[Family]:
        return stored_families(self._job_name, self.manifest, self._progress())

    @property
    def metrics_url(self) -> str | None:
        return self._asker.run().metrics_url if self.isActive else None


def _completed(report: Report, manifest: Manifest | None) -> Report:
    if manifest is None:
        return report
    observed = report.get("observedMetrics", {}) | {NAME: observed_values(manifest)}
    return {**report, NAME: brief(manifest), "observedMetrics": observed}
