"""Messages that were lost are put back at a start, by reading the stream again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec
from pyspark.sql import DataFrame

from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Position
from tidestate.operators.engine.replay_start import (
    NOT_READ_AGAIN,
    lacking_text,
    rebuilt,
    replay_start,
    warn_of_lacking,
)
from tidestate.operators.engine.side_run import SideRun
from tidestate.operators.spark.platform import Platform, is_of_spark
from tidestate.operators.spark.replay import read_again, read_batch_again
from tidestate.operators.spark.scan.batch import BatchScans, SparkRows
from tidestate.operators.spark.transport import configured
from tidestate.recovery.log.manifest import SparkPosition
from tidestate.recovery.spark.spark_checkpoint import recorded_positions

log = logging.getLogger("tidestate")


class StreamReadAgain:
    """Reads the stream of a job again: recorded batches by a ``side_run`` where it must be, else all that was read
    since nothing was lost.
    """

    def __init__(
        self,
        stream: DataFrame,
        platform: Platform,
        scans: BatchScans,
        driver: Driver[SparkRows, DataFrame],
        side_run: Callable[[Driver[SparkRows, DataFrame]], SideRun[SparkRows, DataFrame]],
    ) -> None:
        self._stream, self._platform, self._scans = stream, platform, scans
        self._driver, self._job, self._side_run = driver, driver.job, side_run

    def put_back(self) -> None:
        """Put back what was lost. Where a source has it no more, the job goes on without. Raises what a checkpoint
        does that cannot be made.
        """
        if self._run_again():
            self._replay()

    def _described(self, checkpoint_id: int) -> AbstractContextManager[None]:
        """Spark jobs of a checkpoint have its name meanwhile."""
        return self._platform.described(f"{self._job.plan.name}: checkpoint {checkpoint_id}")

    def _replay(self) -> None:
        """Put back what was lost, by reading the stream again. Where a source has it no more, the job goes on
        without. Raises what a checkpoint does that cannot be made.
        """
        job, failures, of_source = self._job, list[BaseException](), list[BaseException]()
        start = replay_start(job.checkpoint, job.head, job.graph)
        log.info(
            "replay: the stream is read again from %s", "its beginning" if start is None else f"checkpoint {start.id}"
        )
        before = job.head.id

        def put_back(rows: DataFrame) -> None:
            if not rebuilt(job.graph, job.head):
                return
            head = job.head.id
            try:
                with self._driver.lock, self._described(head + 1):
                    self._driver.rebuild(SparkRows(configured(rows, self._platform)))
            except BaseException as error:
                # Only here Spark reads the rows, and finds that a topic or a folder has them no more.
                (of_source if job.head.id == head and is_of_spark(error) else failures).append(error)
                raise
            log.info("replay: %s", lacking_text(job.graph, job.head) or "all messages are back")

        try:
            read_again(self._stream, job.checkpoint, start, job.plan.name, put_back)
        except Exception as error:
            if failures:
                raise failures[0] from None
            why = of_source[0] if of_source else error
            log.error(
                NOT_READ_AGAIN,
                "the beginning" if start is None else f"checkpoint {start.id}",
                type(why).__name__,
                " ".join(str(why).splitlines()[:2]),  # what follows is Java's stack
            )
        if job.head.id == before:
            put_back(self._platform.session.createDataFrame([], self._stream.schema))
        warn_of_lacking(job.graph, job.head)

    def _run_again(self) -> bool:
        """Put back what was lost, by running recorded batches again, each in a query of its own. Where a source has
        one no more, the job goes on without. Returns whether identities are to put back what they can. Raises what a
        checkpoint does that cannot be made.
        """
        job, run = self._job, self._side_run(self._driver)
        try:
            positions = recorded_positions(job.checkpoint, job.head) if run.next_batch is not None else {}
            while (step := run.next_batch) is not None:
                position = positions.get(step.batch)
                if position is None:
                    run.fail(f"no manifest says what batch {step.batch} has read", unread=True)
                else:
                    self._run_batch_again(run, position, step.clock_us or 0)
            with self._driver.lock:
                run.finish()
        finally:
            run.close()
        return run.left_to_identities

    def _run_batch_again(self, run: SideRun[SparkRows, DataFrame], position: SparkPosition, clock_us: int) -> None:
        failures = list[BaseException]()
        # Its lists are those of the main root.
        plain = msgspec.structs.replace(position, files={}, files_ref=None, read_ref=None)

        left = run.next_batch
        scan = left.manifest.scan if left is not None and left.manifest is not None else None

        def take(batch: DataFrame) -> None:
            try:
                rows = configured(batch, self._platform)
                # In another way its rows may come in another order.
                is_direct = scan is None or scan.direct
                direct = self._scans.of(rows.sparkSession, position.files) if is_direct else None
                run.take(SparkRows(rows, direct), Position(spark=plain))
            except BaseException as error:
                failures.append(error)
                raise

        try:
            read_batch_again(self._stream, self._job.checkpoint, position, clock_us, self._job.plan.name, take)
        except Exception as error:
            why = failures[0] if failures else error
            if failures and not is_of_spark(why):
                raise why from None
            text = " ".join(str(why).splitlines()[:2])  # what follows is Java's stack
            run.fail(f"the source could not be read again ({type(why).__name__}: {text})", unread=True)
        if run.next_batch is left and left is not None:
            run.fail(f"Spark did not give batch {position.batch_id} again", unread=True)
