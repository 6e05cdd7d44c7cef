"""The streams of a query read again, for messages that were lost: in a query of its own, which ends.

Spark cannot run the plan of a stream as a batch. But a checkpoint of Spark's can be written for any of a job, as a
rewind does. So the same DataFrame is started from a Spark checkpoint as it was when nothing of what is missing had
been read, in a folder that nobody else has, until it has read what is there now. Whatever the user's DataFrame does
with the rows of its sources is done again.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from pyspark.sql import DataFrame

from tidestate.operators.spark.plans import analysed_plan
from tidestate.operators.spark.sources import StreamSource, sources_of
from tidestate.operators.spark.start_checks import STATEFUL
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.log.spark_log import SPARK_FOLDER, SparkLog, load_files, read_file
from tidestate.recovery.spark.spark_checkpoint import files_read, write_planned_batch, write_spark_checkpoint
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.storage.objects import Objects

log = logging.getLogger("tidestate")


def check_read_again(stream: DataFrame) -> None:
    """Raise `UsageError` (``replay-source``) for a stream that could not be read again without harm: of sources that
    are neither files nor Kafka, that delete or move files once these are read, or with state of Spark's own.
    """
    steps = {step.name for step in analysed_plan(stream).steps() if all(below.streaming for below in step.below)}
    wrong = [source.name for source in sources_of(stream) if not _reads_again(source)] + sorted(STATEFUL & steps)
    if wrong:
        raise UsageError(
            "this stream cannot be read again by the job: its sources must be Kafka, or files without cleanSource, "
            'and Spark must keep no state in front of it; start with Policy(messages="rebuild"), and give rebuild(…) '
            "the replay",
            code="replay-source",
            found=wrong,
        )


def _reads_again(source: StreamSource) -> bool:
    chosen = {name.lower(): value.lower() for name, value in source.options.items()}
    return source.name.lower() == "kafka" or (source.of_files and chosen.get("cleansource", "off") == "off")


def read_again(
    stream: DataFrame, checkpoint: Checkpoint, start: Manifest | None, name: str, take: Callable[[DataFrame], None]
) -> None:
    """Call ``take`` with each batch that ``stream`` has after the checkpoint ``start``, None for its beginning, up to
    now. Raises what Spark does where a source has that no more.
    """
    with _folder(checkpoint) as into:
        _write_start(checkpoint, start, into)
        _run(stream, into, f"{name}: replay", take, availableNow=True)


def read_batch_again(
    stream: DataFrame,
    checkpoint: Checkpoint,
    position: SparkPosition,
    clock_us: int,
    name: str,
    take: Callable[[DataFrame], None],
) -> None:
    """Call ``take`` with the one batch of ``stream`` that a recorded ``position`` names, with its lists of files: as
    Spark does with a batch that it had planned when it died. Raises what Spark does where a source has that no more.
    """
    with _folder(checkpoint) as into:
        own = msgspec.structs.replace(position, query_id=str(uuid.uuid4()))
        write_planned_batch(into, own, clock_us)
        _run(stream, into, f"{name}: batch {position.batch_id} again", take, once=True)


@contextmanager
def _folder(checkpoint: Checkpoint) -> Iterator[Objects]:
    """A folder for Spark's checkpoint of a query, with what sources of offsets alone know: where they began."""
    folder = tempfile.mkdtemp(prefix="tidestate-replay-")
    try:
        into, spark_log = Objects(folder), SparkLog(checkpoint.objects)
        for source in spark_log.sources():
            for path in () if spark_log.is_of_files(source) else spark_log.own_files(source):
                into.put(path, read_file(checkpoint.objects, path))
        yield into
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(stream: DataFrame, into: Objects, name: str, take: Callable[[DataFrame], None], **trigger: bool) -> None:
    """Run a query to its end."""
    writer = stream.writeStream.foreachBatch(lambda batch, _number: take(batch)).queryName(name)
    query = writer.option("checkpointLocation", into.url(SPARK_FOLDER)).trigger(**trigger).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _write_start(checkpoint: Checkpoint, start: Manifest | None, into: Objects) -> None:
    """Spark's checkpoint as it was at ``start``, of a query with an id of its own."""
    position = None if start is None else load_files(checkpoint.objects, start.spark)
    if start is None or position is None:
        return
    try:
        read = files_read(checkpoint, start)
    except IncompatibleError as error:
        log.warning("replay: from the beginning: %s", error)
        return
    renamed: SparkPosition = msgspec.structs.replace(position, query_id=str(uuid.uuid4()))
    write_spark_checkpoint(into, msgspec.structs.replace(start, spark=renamed), read=read)
