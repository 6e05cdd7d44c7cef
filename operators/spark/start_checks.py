"""What a start checks before anything is written: Spark, its workers, what comes before the job in the plan, and that
driver, executors and Hadoop's file systems have the same folder at the root.

A Spark job with as many tasks as run at once reaches all present executors. For one that joins later, each file is
looked up before a commit refers to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame

from tidestate.operators.spark.failures import CarriedError, carried_in
from tidestate.operators.spark.plans import analysed_plan
from tidestate.operators.spark.platform import SPARK_ERRORS, Platform
from tidestate.operators.spark.worker_facts import worker_facts
from tidestate.recovery.log.checkpoint import SHARED_ROOT_ADVICE, Checkpoint, Probe
from tidestate.recovery.log.marker import MARKER
from tidestate.statestore.distribution import version
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.storage.objects import Objects

log = logging.getLogger("tidestate")

OLDEST_SPARK = (3, 5)
STATEFUL = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join"}
STATEFUL |= {"FlatMapGroupsInPandasWithState", "FlatMapGroupsWithState", "TransformWithState"}
STATEFUL |= {"TransformWithStateInPandas", "TransformWithStateInPySpark"}
"""Steps of a plan for which Spark keeps state, if what they read is a stream."""


def check_spark_version() -> None:
    """Raise `UsageError` for a Spark that is too old."""
    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < OLDEST_SPARK:
        raise UsageError("tidestate needs PySpark 3.5 or newer", code="spark-version", found=pyspark.__version__)


def check_plan(stream: DataFrame) -> None:
    """Raise `UsageError` for a watermark of Spark that nothing reads; log a warning where Spark keeps state."""
    steps = list(analysed_plan(stream).steps())
    stateful = [step for step in steps if step.name in STATEFUL and all(below.streaming for below in step.below)]
    keeping_state = sorted({step.name for step in stateful})
    if keeping_state:
        log.warning(
            "spark keeps state of its own before this job (%s), which rewind, repair and fork cannot take along: "
            "to drop duplicates, use .deduplicate(…) or .messages(…), which keep it in the checkpoint",
            ", ".join(keeping_state),
        )
    elif "EventTimeWatermark" in {step.name for step in steps}:
        raise UsageError(
            "withWatermark has no effect before this job: remove it, and give the stream its delay, "
            "stream(watermark_delay=…)",
            code="watermark-of-spark",
        )


def check_workers(platform: Platform, packages: Sequence[str] = ()) -> None:
    """Raise `UsageError` unless the workers can run tasks of this job: Python, this package in this version, and the
    ``packages`` that the job needs of its extras.

    Costs a small Spark job, which also starts the workers; in local mode with the driver's Python there is none.
    """
    if platform.is_local and _same_python(platform.worker_python):
        return
    try:
        found = worker_facts(platform, packages)
    except SPARK_ERRORS as error:
        raise UsageError(
            "a Spark worker cannot run Python tasks: it needs the driver's Python version and pyarrow; on one "
            f"machine set PYSPARK_PYTHON={sys.executable} before the session begins",
            code="worker-python",
            worker=platform.worker_python,
            driver="{}.{}".format(*sys.version_info[:2]),
            reason=_last_line(str(error)),
        ) from error
    for one in found:
        if one.failure:
            raise UsageError(
                "a Spark worker cannot import tidestate or its dependencies: install them there, see "
                "docs/how-to/run-on-a-cluster.md",
                code="worker-package",
                host=one.host,
                python=one.python,
                platform=one.platform,
                reason=one.failure,
            )
        if "unknown" not in (one.version, version()) and one.version != version():
            raise UsageError(
                "a Spark worker has another version of tidestate than the driver: install the same version there",
                code="worker-version",
                host=one.host,
                worker=one.version,
                driver=version(),
            )
    log.info("workers of Spark: %s", "; ".join(f"{one.host}, Python {one.python}, {one.platform}" for one in found))


def _same_python(command: str) -> bool:
    """Whether a command starts this Python, in this environment: that goes by the folder of its executable."""
    found = shutil.which(command)
    if found is None:
        return False
    return os.path.dirname(found) == os.path.dirname(sys.executable) and os.path.samefile(found, sys.executable)


_NO_PROGRAM = "Cannot run program"


def _last_line(text: str) -> str:
    """Of a long text of Java: the program that is not there, else the last line of a Python error, else the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.partition(":")[0] and not line.startswith("at ")]
    absent = [line[line.index(_NO_PROGRAM) :] for line in lines if _NO_PROGRAM in line]
    return absent[0] if absent else (errors or lines or [""])[-1 if errors else 0]


ANSWERS = "host string, path string, content string, failure string"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("host", "path", "content", "failure")])


def check_shared(platform: Platform, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` (``root-not-shared``) if an executor has another folder at the root than the driver, and
    `UnavailableError` if it has the same and cannot write there.

    In local mode there are no executors. Costs one small Spark job, which also starts the workers.
    """
    if platform.is_local:
        return
    tasks, objects = platform.parallelism, checkpoint.objects
    checkpoint_id = max(checkpoint.stored_ids(), default=0) + 1
    probe, answers = Probe.leave(objects, checkpoint_id), []
    try:
        look = partial(_look, objects.root, probe, checkpoint_id)
        rows = platform.session.range(0, tasks, 1, tasks).mapInArrow(look, ANSWERS)
        answers = [(row["host"], row["path"], row["content"], row["failure"]) for row in rows.collect()]
        _check(objects, answers)
    finally:
        for path in (probe.path, *(path for _, path, _, _ in answers if path)):
            objects.delete(path)


def _look(root: str, probe: Probe, checkpoint_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: look for the driver's file; if it is there, leave a file for the driver."""
    for _ in batches:
        answer, failure, is_seen = None, None, False
        try:
            objects = Objects(root)
            is_seen = probe.seen(objects)
            if is_seen:
                answer = Probe.leave(objects, checkpoint_id)
            else:
                failure = "the driver's file is not there"
        except TidestateError as error:
            # It is the same folder, whose storage takes no file: that error is the driver's too.
            failure = str(CarriedError(error)) if is_seen else str(error)
        row = (socket.gethostname(), answer and answer.path, answer and answer.content, failure)
        yield pa.record_batch([pa.array([value], pa.string()) for value in row], schema=_SCHEMA)


def _check(objects: Objects, answers: Sequence[tuple[str, str | None, str | None, str | None]]) -> None:
    for host, path, content, failure in answers:
        if path is not None and content is not None and Probe(path, content).seen(objects):
            continue
        if failure is not None and (refusal := carried_in(failure)) is not None:
            raise refusal from refusal.__cause__
        raise UsageError(
            "an executor and the driver see different folders at the root, so the job did not start: "
            f"{SHARED_ROOT_ADVICE}",
            code="root-not-shared",
            host=host,
            driver=socket.gethostname(),
            root=objects.root,
            reason=failure or "the executor's file is not at the driver's root",
        )


def open_with(platform: Platform, root: str) -> Checkpoint:
    """Open or create a root in storage that Spark reaches too.

    Raises `UsageError`: ``spark-storage`` if Spark has no file system for it, before anything is written, and
    ``spark-storage-differs`` if Spark does not find what this process has written.
    """
    url = Objects(root).url(MARKER)
    platform.check_file_system(url)
    checkpoint = Checkpoint.open_or_create(root)
    if (reason := platform.why_unseen(url)) is not None:
        raise UsageError(
            "spark does not find the checkpoint root of this process: give both the same endpoint and credentials "
            "(docs/how-to/run-on-a-cluster.md)",
            code="spark-storage-differs",
            url=url,
            reason=reason,
        )
    return checkpoint
