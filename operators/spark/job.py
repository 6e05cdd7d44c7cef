"""A job on Spark: a description on streaming DataFrames, before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import Chain, streams_of
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.runs import DurableQuery, Handover, JobHook, SparkJob
from tidestate.operators.describe.spark_trigger import spark_trigger
from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.engine.bootstrap import has_begun
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.kept_zones import kept_rules
from tidestate.operators.engine.side_run import SideRun
from tidestate.operators.engine.start_plan import plan_start
from tidestate.operators.engine.tasks import Transport
from tidestate.operators.plan.graph import Graph
from tidestate.operators.spark.bootstrap import PastEvents, bootstrap, past_rows
from tidestate.operators.spark.connect.server import ProcessEnder, QueryInServer, log_to_server
from tidestate.operators.spark.connect.settings import JobSettings
from tidestate.operators.spark.connect.start import start_in_server
from tidestate.operators.spark.origins import with_sources
from tidestate.operators.spark.platform import setting_of
from tidestate.operators.spark.platforms import platform_of
from tidestate.operators.spark.query import QueryOnSpark
from tidestate.operators.spark.read_again import StreamReadAgain
from tidestate.operators.spark.replay import check_read_again
from tidestate.operators.spark.scan.batch import IN_ORDER, NO_PLAN, SWITCHED_OFF, BatchScans, SparkRows
from tidestate.operators.spark.schemas import read_schemas
from tidestate.operators.spark.sides import all_sides, by_name, check_streams
from tidestate.operators.spark.sources import sources_of
from tidestate.operators.spark.start_checks import check_plan, check_spark_version
from tidestate.operators.spark.stream_job import StreamJob
from tidestate.operators.spark.transport import SparkTransport
from tidestate.operators.spark.types import read_columns
from tidestate.recovery.log.manifest import SPARK_ENTRIES, Manifest, spark_number
from tidestate.recovery.log.spark_log import SparkLog
from tidestate.recovery.spark.agreement import compare
from tidestate.recovery.spark.spark_checkpoint import COMPACTED
from tidestate.recovery.start.spark_repair import SparkRepair
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.objects import Objects

QueryKind = TypeVar("QueryKind", bound=QueryOnSpark)


@dataclass(frozen=True, repr=False)
class JobOnSpark(StreamJob, SparkJob):
    """The `SparkJob` of a description."""

    def trigger(self, **trigger: Any) -> Self:
        return replace(self, spark_trigger=spark_trigger(**trigger))

    def listen(self, listener: StreamingQueryListener) -> Self:
        if not isinstance(listener, StreamingQueryListener):
            raise UsageError(
                "a listener must be a StreamingQueryListener of PySpark",
                code="listener",
                found=type(listener).__name__,
            )
        return replace(self, listeners=(*self.listeners, listener))

    def with_hook(self, hook: JobHook) -> Self:
        return replace(self, hook=hook)

    @property
    def begun(self) -> bool:
        return has_begun(self.checkpoint)

    def bootstrap(self, history: PastEvents, *, offsets: Handover = None, deliver: bool = True) -> Manifest:
        return bootstrap(self, history, offsets, deliver=deliver)

    def plan(self) -> StartPlan:
        schemas = read_schemas(self.description, self.stream)
        return plan_start(
            self.description,
            self.checkpoint,
            schema=schemas,
            policy=self.policy,
            runner="spark",
            sources=self._sources,
            fit_sinks=self.fit_sinks,
        )

    @property
    def _sources(self) -> int:
        """The number of sources of which Spark's log will have offsets."""
        return len(sources_of(self.stream))

    def start(self) -> DurableQuery:
        if not self.stream.isStreaming:
            raise UsageError("this DataFrame is not a stream: read it with spark.readStream", code="not-a-stream")
        graph = self.bound()
        replays = self.policy.messages == "replay"
        if replays:
            check_read_again(self.stream)
        check_plan(self.stream)
        if self.platform.is_connect:
            return start_in_server(self, graph, self._sources)
        # Only what the job reads: nothing projected later reaches the source.
        stream = read_columns(self.stream, graph.columns)
        why_not = None if self.direct_scan else SWITCHED_OFF
        refusal = IN_ORDER if graph.orders else why_not
        scans = BatchScans(stream, self.platform, self.checkpoint, self.store.budget_bytes, refusal)
        query = self.take_over(graph, self._sources, scans, QueryOnSpark)
        transport: Transport[SparkRows, DataFrame] = SparkTransport(self.platform, in_driver=self.in_driver)
        side_run = partial(SideRun, graph=graph, transport=transport, runner="spark", hook=self.hook)

        def put_back(driver: Driver[SparkRows, DataFrame]) -> None:
            StreamReadAgain(stream, self.platform, scans, driver, side_run).put_back()

        query.begin(stream, self.spark_trigger, self.listeners, put_back=put_back if replays else None)
        return query

    def bound(self) -> Graph:
        """The operators, over the columns of the stream, whose sinks can take what they emit. Raises as `start`."""
        fallback = kept_rules(self.checkpoint, self.policy)
        graph = bind_graph(self.description, read_schemas(self.description, self.stream), fallback)
        self.fit_sinks(graph)
        return graph

    def take_over(self, graph: Graph, sources: int, scans: BatchScans, kind: type[QueryKind]) -> QueryKind:
        """Open the root, compare it with Spark's log of so many ``sources``, and fence: the query of this ``kind``,
        which has not begun. Raises as `start`.
        """
        spark_log = SparkLog(Objects(self.checkpoint))
        if not spark_log.has_marker() and (refusal := compare(None, spark_log).refusal) is not None:
            raise refusal
        checkpoint = self.open()
        every = _folded_every(self.platform.session)
        mending = SparkRepair(checkpoint, self.policy, every, self.hook, sources)
        job = self.begin(graph, checkpoint, mending.compare)
        read = mending.repair(job.head)
        replayed, ticks = partial(past_rows, self, job.graph), graph.clocked or self.sinks.may_lag
        return kind(self, job, spark_log, read, scans, replayed, ticks=ticks)


def job_on_spark(description: Runnable, streams: Mapping[str, DataFrame], **settings: Any) -> JobOnSpark:
    """The job of a description on its ``streams``, by their names in it."""
    check_spark_version()
    names = streams_of(description)
    frames = {name: streams[name] for name in names}
    description = with_sources(description, frames)
    if len(names) == 1 and not isinstance(description, Chain):
        stream = frames[names[0]]
        return JobOnSpark(description, platform_of(stream.sparkSession).separated(stream), **settings)
    check_streams(frames.values())
    stream = stream_of(description, frames)
    return JobOnSpark(description, platform_of(stream.sparkSession).separated(stream), streams=frames, **settings)


def begin_in_server(settings: JobSettings) -> QueryInServer:
    """The query of a job, which begins in this process of a Spark Connect server; its client starts Spark's query.
    Raises as `SparkJob.start`.
    """
    log_to_server()
    session = SparkSession.getActiveSession()
    if session is None:
        raise UsageError("this process has no session of its server", code="not-started")
    # Empty frames with the columns of the streams stand for them: what a job asks of its streams here are columns.
    values, frames = settings.values(), settings.frames(session)
    streams = {} if list(frames) == [""] else frames
    stream = stream_of(values["description"], streams) if streams else frames[""]
    job = JobOnSpark(stream=stream, streams=streams, **values)
    scans = BatchScans(job.stream, job.platform, job.checkpoint, job.store.budget_bytes, NO_PLAN)
    query = job.take_over(job.bound(), settings.sources, scans, QueryInServer)
    # Before anything that may take long: a sink can refuse what it is owed while the server dies.
    ProcessEnder(query).begin()
    query.begin_in_server()
    return query


def stream_of(description: Runnable, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The combination of all streams of a description, by their names in it."""
    return all_sides(description.sides, frames) if isinstance(description, Sided) else by_name(frames)


def _folded_every(session: SparkSession) -> int:
    """The number of entries after which Spark compacts its list of the files that a source has read."""
    interval = setting_of(session, "spark.sql.streaming.fileSource.log.compactInterval", str(COMPACTED))
    return spark_number(interval, SPARK_ENTRIES) or COMPACTED
