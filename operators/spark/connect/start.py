"""The start of a job by a client of Spark Connect: Spark's query is the client's, the job runs in the server."""

from __future__ import annotations

from tidestate.operators.plan.graph import Graph
from tidestate.operators.spark.connect.failed import left_refusal, ours
from tidestate.operators.spark.connect.function import JobOfQuery
from tidestate.operators.spark.connect.query import QueryOnConnect
from tidestate.operators.spark.connect.settings import JobSettings
from tidestate.operators.spark.handles import started
from tidestate.operators.spark.monitoring import free_query_name, listening
from tidestate.operators.spark.stream_job import StreamJob
from tidestate.operators.spark.types import read_columns
from tidestate.recovery.log.spark_log import SPARK_FOLDER
from tidestate.statestore.errors import UnavailableError, UsageError
from tidestate.statestore.storage.objects import Objects


def start_in_server(job: StreamJob, graph: Graph, sources: int) -> QueryOnConnect:
    """Start the query of a job, whose streams read so many sources; the server's process begins the job."""
    if job.policy.messages == "replay":
        raise UsageError(
            "a client of Spark Connect cannot read its streams again for messages that were lost: start with "
            'Policy(messages="rebuild"), and give rebuild(…) the replay',
            code="connect-replay",
        )
    settings, session = JobSettings.of(job, sources), job.stream.sparkSession
    objects, name = Objects(job.checkpoint), free_query_name(session, job.description.name, job.checkpoint)
    # Only what the job reads, as on classic Spark.
    stream = read_columns(job.stream, graph.columns)
    writer = stream.writeStream.foreachBatch(JobOfQuery(settings)).queryName(name)
    writer = writer.option("checkpointLocation", objects.url(SPARK_FOLDER))
    if job.spark_trigger:
        writer = writer.trigger(**job.spark_trigger)
    handle = QueryOnConnect(session, job.checkpoint, job.description.name, job.sinks.each.keys())
    try:
        quick_log = job.platform.quick_log(objects.url(SPARK_FOLDER))
        with ours(), listening(session, job.listeners, name, handle.with_checkpoint), quick_log:
            handle.query = started(writer)
    except UnavailableError as error:
        refusal = left_refusal(session, settings.start_id) if error.code == "server-process" else None
        if refusal is not None:
            raise refusal from refusal.__cause__
        raise
    # The job has begun before Spark says that the query has: its fence is the newest checkpoint, or before it.
    handle.epoch = handle.manifest.epoch
    return handle
