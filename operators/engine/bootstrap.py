"""Initial state from a batch of history: the first checkpoint with state in a new root, and where the input goes on.

It is one checkpoint, so a root is bootstrapped completely or not at all. A fence without input, which a crash may
leave, is no obstacle: the same call can be repeated.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence

from tidestate.operators.describe.runs import JobHook, Offset
from tidestate.operators.engine.job import Job, no_job_hook
from tidestate.operators.plan.graph import Graph
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, SparkPosition, spark_number
from tidestate.recovery.log.spark_log import NOTHING_READ, SPARK_FOLDER, followed, store_lists
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.storage.objects import Objects

FILES_READ = '{"logOffset":0}'
"""The offset of a source of files after its first batch."""


def has_begun(root: str | os.PathLike[str]) -> bool:
    """Whether a job has taken input at this root: then it can be started, but not bootstrapped."""
    head = newest_at(root)
    return head is not None and _took_input(head)


def newest_at(root: str | os.PathLike[str]) -> Manifest | None:
    """The newest checkpoint at a root; None where there is none. Nothing is written."""
    try:
        head = Checkpoint.open(root).head()
    except NotFoundError:
        return None
    return head.manifest if head is not None else None


def check_new(objects: Objects) -> Callable[[Manifest | None], None]:
    """A check that raises `UsageError` if a job has taken input, or Spark has a checkpoint."""

    def check(head: Manifest | None) -> None:
        if (head is not None and _took_input(head)) or objects.names(SPARK_FOLDER):
            raise UsageError(
                "a job has already begun in this folder: start it as it is, or bootstrap into a new folder",
                code="bootstrap-used",
                root=objects.root,
                checkpoint=head.id if head else None,
            )

    return check


def new_job(graph: Graph, root: str | os.PathLike[str], partitions: int, hook: JobHook = no_job_hook) -> Job:
    """A job at a root where none has taken input. Raises `UsageError` (``bootstrap-used``) at any other."""
    check_new(Objects(root))(None)
    checkpoint = Checkpoint.open_or_create(root)
    return Job.begin(
        graph,
        checkpoint,
        Parquet(),
        partitions=partitions,
        check=check_new(checkpoint.objects),
        hook=hook,
        may_change=True,
        policy=Policy(second="refuse"),
    )


def _took_input(head: Manifest) -> bool:
    return head.drained or any(value is not None for value in (head.spark, head.input, head.processing_us))


def spark_position(
    objects: Objects, ends: Sequence[str], files: Mapping[int, Sequence[str]], checkpoint_id: int
) -> SparkPosition:
    """The history as batch 0 of a Spark query: ``ends`` are the end offsets of the sources in Spark's order,
    ``files`` what sources of files have read, by the number of the source.
    """
    read = {source: tuple(sorted(set(paths))) for source, paths in files.items()}
    named = {str(source): paths for source, paths in read.items()}
    position = followed(None, SparkPosition(str(uuid.uuid4()), 0, (), tuple(ends), named))
    return store_lists(objects, position, checkpoint_id, {source: {0: paths} for source, paths in read.items()})


def offset_text(given: Offset, source: str) -> str:
    """An offset as a line of Spark's log. Raises `UsageError` if it is not one."""
    if given == NOTHING_READ:
        return NOTHING_READ
    try:
        offset = json.loads(given) if isinstance(given, str) else given
        text = json.dumps(offset, separators=(",", ":"), ensure_ascii=False)
        offset = json.loads(text)  # names of partitions may have been numbers
    except (TypeError, ValueError, RecursionError):
        raise _wrong(given, source) from None
    if not _is_kafka(offset) and ("kafka" in source.lower() or _has_partitions(offset)):
        raise _wrong(given, source)
    return text


def _has_partitions(offset: object) -> bool:
    """Whether it looks like Kafka offsets: by topic, then partition."""
    topics = [topic for topic in offset.values() if isinstance(topic, Mapping)] if isinstance(offset, Mapping) else []
    return any(topic and all(spark_number(name) is not None for name in topic) for topic in topics)


def _is_kafka(offset: object) -> bool:
    """Whether it is a complete Kafka offset; -1 and -2, the ends of a topic, are no offsets."""
    topics = list(offset.values()) if isinstance(offset, Mapping) else []
    offsets = [pair for topic in topics if isinstance(topic, Mapping) for pair in topic.items()]
    complete = bool(offsets) and all(isinstance(topic, Mapping) for topic in topics)
    return complete and all(
        spark_number(name) is not None and type(number) is int and number >= 0 for name, number in offsets
    )


def _wrong(given: object, source: str) -> UsageError:
    return UsageError(
        'offsets must be JSON as Spark writes it, for Kafka {"topic":{"0":100}} with the offset to read next '
        "of every partition: the endingOffsets of the batch read, as numbers",
        code="bootstrap-offsets",
        source=source,
        found=given,
    )
