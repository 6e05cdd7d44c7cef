"""A description on a streaming DataFrame: what a query on Spark is started from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tidestate.operators.bind.choose_engine import choose_engine
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.runnable import Runnable, root_text
from tidestate.operators.engine.bootstrap import begun
from tidestate.operators.engine.delivery import SparkSink
from tidestate.operators.engine.job import Hook, Job, no_hook
from tidestate.operators.plan.graph import Graph
from tidestate.operators.spark.bootstrap import Handover, History, bootstrap
from tidestate.operators.spark.query import DurableQuery
from tidestate.operators.spark.shared_root import check_shared
from tidestate.operators.spark.storage import open_with
from tidestate.operators.spark.types import read_schemas
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.names import SPARK_ENTRIES, spark_number
from tidestate.recovery.spark.agreement import compare
from tidestate.recovery.spark.spark_checkpoint import COMPACTED
from tidestate.recovery.spark.spark_log import SparkLog
from tidestate.recovery.start.policy import Policy
from tidestate.recovery.start.spark_repair import Mending
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.storage.objects import Objects


@dataclass(frozen=True)
class SparkJob:
    """A description on a streaming DataFrame. ``start`` runs it; ``schedule`` says how often."""

    description: Runnable
    stream: DataFrame
    checkpoint: str
    store: StoreConfig
    sink: SparkSink | None
    partitions: int | None
    trigger: dict[str, Any] | None = None
    hook: Hook = no_hook
    tick: int = 1_000_000
    policy: Policy = field(default_factory=Policy)
    streams: Mapping[str, DataFrame] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"SparkJob({self.description.name!r}, checkpoint={root_text(self.checkpoint)!r})"

    def schedule(self, **trigger: Any) -> SparkJob:
        """As Spark's ``trigger``: ``processingTime="10 seconds"`` or ``availableNow=True``."""
        return replace(self, trigger=trigger)

    def with_hook(self, hook: Hook) -> SparkJob:
        """Call ``hook(moment, checkpoint_id)`` before and after each manifest: for fault injection."""
        return replace(self, hook=hook)

    @property
    def begun(self) -> bool:
        """Whether anything was taken in at this root, by this or an earlier run: then `bootstrap` is refused."""
        return begun(self.checkpoint)

    def bootstrap(self, history: History, *, offsets: Handover = None, deliver: bool = True) -> Manifest:
        """Begin a new root with the state a batch DataFrame leads to; ``start`` then reads exactly what it had not.

        Of several streams, ``history`` and ``offsets`` are by name or side; one without is read from its beginning.
        Sources of files pass over its files; other ``offsets`` say where it ends, as ``{"topic":{"0":100}}``. Without
        ``deliver`` no sink gets its panes. Raises `UsageError` where something does not fit, `ConflictError` where
        files changed meanwhile: nothing is handed over then.
        """
        return bootstrap(self, history, offsets, deliver=deliver)

    def start(self) -> DurableQuery:
        """Take over the checkpoint, deliver what is outstanding, and start Spark's query.

        Raises before anything runs: `UsageError` for a description that does not fit the stream or a drained
        checkpoint, `IncompatibleError` for a checkpoint of another job, a changed configuration, or a Spark
        checkpoint that does not belong to ours. One that has merely lost something is rewritten, see `Policy`.
        """
        if not self.stream.isStreaming:
            raise UsageError("this DataFrame is not a stream: read it with spark.readStream", code="not-a-stream")
        graph = bind_graph(self.description, read_schemas(self.description, self.stream))
        session = self.stream.sparkSession
        spark_log = SparkLog(Objects(self.checkpoint))
        if not spark_log.has_marker() and (refusal := compare(None, spark_log).refusal) is not None:
            raise refusal
        checkpoint = open_with(session, self.checkpoint)
        mending = Mending(checkpoint, self.policy, _folded_every(session), self.hook)
        job = self.begin(graph, checkpoint, partial(_check_input, mending))
        read = mending.done(job.head)
        query = DurableQuery(session, job, spark_log, read, self.sink, self.tick / 1e6 if graph.clocked else None)
        # Only what the job reads: nothing projected later reaches the source.
        columns = [sf.col(f"`{name}`") for name in graph.columns]
        query.begin(self.stream.select(*columns), self.trigger)
        return query

    def begin(self, graph: Graph, checkpoint: Checkpoint, check: Callable[[Manifest | None], None]) -> Job:
        """Take over the checkpoint, once all executors have shown that they share its root. See `Job.begin`."""
        check_shared(self.stream.sparkSession, checkpoint)
        return Job.begin(
            graph,
            checkpoint,
            self.store,
            partitions=self.partitions,
            otherwise=max(1, self.stream.sparkSession.sparkContext.defaultParallelism),
            check=check,
            hook=self.hook,
            choose=choose_engine,
            policy=self.policy,
        )


def _folded_every(session: SparkSession) -> int:
    """Every how many entries Spark folds its list of the files that a source has read."""
    found = session.conf.get("spark.sql.streaming.fileSource.log.compactInterval", str(COMPACTED))
    return (spark_number(found, SPARK_ENTRIES) if found is not None else None) or COMPACTED


def _check_input(mending: Mending, head: Manifest | None) -> None:
    if head is not None and head.input is not None:
        raise IncompatibleError(
            "the standalone runner has been feeding this checkpoint: continue with it, or give a folder of its own",
            code="other-runner",
            id=head.id,
        )
    mending.look(head)
