"""Before a run publishes anything, its executors prove that they and the driver have the same folder at the root.

A Spark job of as many tasks as run at once reaches the executors there are; of one that joins later every file is
looked for before a commit names it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.start.visibility import ADVICE, Probe
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.storage.objects import Objects

ANSWERS = "host string, path string, content string, failure string"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("host", "path", "content", "failure")])


def check_shared(session: SparkSession, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` (``root-not-shared``) where an executor sees another folder at the root than the driver.

    In local mode there are no executors to ask. Cost: one small Spark job; the first batch finds its workers started.
    """
    context = session.sparkContext
    if context.master.partition("[")[0] == "local":
        return
    tasks, objects = max(1, context.defaultParallelism), checkpoint.objects
    checkpoint_id = max(checkpoint.stored_ids(), default=0) + 1
    probe, answers = Probe.leave(objects, checkpoint_id), []
    try:
        asked = session.range(0, tasks, 1, tasks).mapInArrow(
            partial(_look, objects.root, probe, checkpoint_id), ANSWERS
        )
        answers = [(row["host"], row["path"], row["content"], row["failure"]) for row in asked.collect()]
        _check(objects, answers)
    finally:
        for path in (probe.path, *(path for _, path, _, _ in answers if path)):
            objects.delete(path)


def _look(root: str, probe: Probe, checkpoint_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: look for the driver's file and, where it is here, leave one of its own for the driver."""
    for _ in batches:
        answer, failure = None, None
        try:
            objects = Objects(root)
            if probe.seen(objects):
                answer = Probe.leave(objects, checkpoint_id)
            else:
                failure = "what the driver has written is not there"
        except TidestateError as error:
            failure = str(error)
        row = (socket.gethostname(), answer and answer.path, answer and answer.content, failure)
        yield pa.record_batch([pa.array([value], pa.string()) for value in row], schema=_SCHEMA)


def _check(objects: Objects, answers: Sequence[tuple[str, str | None, str | None, str | None]]) -> None:
    for host, path, content, failure in answers:
        if path is not None and content is not None and Probe(path, content).seen(objects):
            continue
        raise UsageError(
            f"an executor and the driver have different folders at the root, so nothing was begun: {ADVICE}",
            code="root-not-shared",
            host=host,
            driver=socket.gethostname(),
            root=objects.root,
            reason=failure or "what the executor has written is not at the driver's root",
        )
