"""Checks that driver and executors have the same folder at the root, before a run publishes anything.

A Spark job with as many tasks as run at once reaches all present executors. For one that joins later, each file is
looked up before a commit refers to it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from tidestate.operators.spark.platform import Platform
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.start.visibility import ADVICE, Probe
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.storage.objects import Objects

ANSWERS = "host string, path string, content string, failure string"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("host", "path", "content", "failure")])


def check_shared(platform: Platform, checkpoint: Checkpoint) -> None:
    """Raise `UsageError` (``root-not-shared``) if an executor has another folder at the root than the driver.

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
        answer, failure = None, None
        try:
            objects = Objects(root)
            if probe.seen(objects):
                answer = Probe.leave(objects, checkpoint_id)
            else:
                failure = "the driver's file is not there"
        except TidestateError as error:
            failure = str(error)
        row = (socket.gethostname(), answer and answer.path, answer and answer.content, failure)
        yield pa.record_batch([pa.array([value], pa.string()) for value in row], schema=_SCHEMA)


def _check(objects: Objects, answers: Sequence[tuple[str, str | None, str | None, str | None]]) -> None:
    for host, path, content, failure in answers:
        if path is not None and content is not None and Probe(path, content).seen(objects):
            continue
        raise UsageError(
            f"an executor and the driver see different folders at the root, so the job did not start: {ADVICE}",
            code="root-not-shared",
            host=host,
            driver=socket.gethostname(),
            root=objects.root,
            reason=failure or "the executor's file is not at the driver's root",
        )
