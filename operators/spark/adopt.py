"""A job that goes on where a query of Spark's own was stopped or killed: with its state, watermark and offsets.

`plan_adoption` reads and checks everything, and writes nothing. `execute_adoption` makes the root from what was read:
one checkpoint, kind ``bootstrap``, so a root is adopted completely or not at all; then Spark's checkpoint for the
job's query, which goes on from the offsets of the old one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from tidestate.operators.adopt.adopted import Adopted, adopted
from tidestate.operators.adopt.transport import AdoptingTransport
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.runs import JobHook
from tidestate.operators.engine.bootstrap import FILES_READ, check_new, new_job, newest_at, spark_position
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Position, no_job_hook
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.watermarks import INPUT
from tidestate.operators.spark.state_reader import StateReader, check_reader
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.spark_log import NOTHING_READ
from tidestate.recovery.spark.spark_checkpoint import finish_checkpoint, keep_others
from tidestate.recovery.spark.spark_query import SparkQuery, open_log, read_query
from tidestate.statestore.errors import ConflictError, UsageError
from tidestate.statestore.storage.objects import Objects

MAX_AGE_MS = 7 * 24 * 3600 * 1000
"""By default Spark's file source ignores files that are so much older than the newest one."""


@dataclass(frozen=True)
class Adoption:
    """What `execute_adoption` does: the job ``graph`` takes ``taken`` over from ``query``, whose checkpoint is at
    ``location``, and begins at ``root``.
    """

    location: str
    root: str
    query: SparkQuery
    graph: Graph
    kind: str
    taken: Adopted

    @property
    def mark_us(self) -> int:
        """The watermark from which the job goes on."""
        return self.taken.watermark_us


def plan_adoption(
    session: SparkSession,
    location: str,
    root: str,
    description: Runnable,
    schema: pa.Schema,
    *,
    buffers: Mapping[str, int] | None = None,
) -> Adoption:
    """Read the checkpoint of a stopped query, and check that ``description`` can go on from it; nothing is written.

    ``schema``: the columns of the job's stream. ``buffers``: for aggregates that could be several of the query's, the
    place of their first column in its state. Raises `UsageError` with what cannot be taken over, `NotFoundError`
    where there is no Spark checkpoint, and `DataError` for a damaged one.
    """
    if isinstance(description, Sided | Chain):
        raise UsageError("only a job of one operator on one stream can take over a query", code="adopt-job")
    check_reader()
    if os.path.abspath(location) == os.path.abspath(root):
        raise UsageError(
            "the root must not be the folder of the query: choose another one", code="adopt-root", root=root
        )
    check_new(Objects(root))(newest_at(root))
    log = open_log(location)
    query = read_query(log)
    _check_query(query)
    graph = bind_graph(description, {INPUT: schema})
    reader = StateReader.open(session, log.objects.url(log.folder), query.batch_id)
    marks_us, given = (query.watermark_us, query.next_us), buffers or {}
    adopted(graph, reader.state, marks_us, given)  # what needs no rows is refused before they are read
    state = reader.read()
    return Adoption(location, root, query, graph, state.kind, adopted(graph, state, marks_us, given))


def execute_adoption(
    adoption: Adoption, *, partitions: int = 1, deliver: bool = True, hook: JobHook = no_job_hook
) -> Manifest:
    """Make the root. Without ``deliver`` no sink gets the panes of this checkpoint, which only early triggers have.

    Raises `UsageError` where a job has begun meanwhile, and `ConflictError` if the query has gone on: nothing is
    taken over then.
    """
    query = adoption.query
    check_new(Objects(adoption.root))(newest_at(adoption.root))
    _check_stopped(adoption)
    job = new_job(adoption.graph, adoption.root, partitions, hook)
    checkpoint = job.checkpoint
    driver = Driver(job, AdoptingTransport())

    def position(number: int) -> Position:
        keep_others(checkpoint.objects, query.others)
        _check_stopped(adoption)
        ends = [
            FILES_READ if source in query.files and end != NOTHING_READ else end
            for source, end in enumerate(query.end)
        ]
        read = {source: files for source, files in query.files.items() if query.end[source] != NOTHING_READ}
        return Position(spark=spark_position(checkpoint.objects, ends, read, number))

    with driver.running():
        manifest = driver.bootstrap(adoption.taken, position, deliver=deliver)
        finish_checkpoint(checkpoint, manifest, hook)
    return manifest


def _check_stopped(adoption: Adoption) -> None:
    """Raise `ConflictError` if the query has gone on since it was read."""
    now = read_query(open_log(adoption.location))
    if now != adoption.query:
        raise ConflictError(
            "the spark query has committed another batch in the meantime: stop it for good, and adopt again",
            code="adopt-moved",
            batch=adoption.query.batch_id,
            found=now.batch_id,
        )


def _check_query(query: SparkQuery) -> None:
    if len(query.stateful) != 1:
        why = (
            "it has several stateful operators, and none can be taken over without the others"
            if query.stateful
            else ""
        )
        raise UsageError(
            f"this query cannot be taken over: {why or 'it has no state; bootstrap a root with its offsets'}",
            code="adopt-operators",
            operators=len(query.stateful),
        )
    for source, files in query.upcoming.items():
        newest = max(map(_time_ms, query.files[source]), default=None)
        old = [one for one in files if newest is not None and _time_ms(one) < newest - MAX_AGE_MS]
        if old:
            raise UsageError(
                "files of a batch that the query had planned are too old for spark to read them again "
                "(maxFileAge): start the query once more, stop it between two batches, and adopt again",
                code="adopt-file-age",
                file=old[0].rpartition(" ")[0],
            )


def _time_ms(file: str) -> int:
    return int(file.rpartition(" ")[2])
