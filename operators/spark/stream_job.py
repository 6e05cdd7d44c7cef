"""A description on a streaming DataFrame with its settings, and how it opens its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQueryListener

from tidestate.operators.describe.job_streams import JobStreams
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.runs import JobHook
from tidestate.operators.describe.sinks import Sinks, sink_name
from tidestate.operators.engine.emitted import emitted_outputs, fit_as_begun
from tidestate.operators.engine.job import Job, no_job_hook
from tidestate.operators.plan.graph import Graph
from tidestate.operators.spark.platform import Platform
from tidestate.operators.spark.platforms import platform_of
from tidestate.operators.spark.start_checks import check_shared, check_workers, open_with
from tidestate.operators.spark.types import check_case
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.html_tables import facts_html
from tidestate.statestore.secrets import public_url
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.storage.dialects.table import dialect_of


@dataclass(frozen=True)
class StreamJob:
    """``stream`` is the combination of all ``streams``, which are by name; empty if there is only one."""

    description: Runnable
    stream: DataFrame
    checkpoint: str
    store: StoreConfig
    sinks: Sinks[DataFrame]
    partitions: int | None
    spark_trigger: dict[str, str | bool] | None = None
    hook: JobHook = no_job_hook
    tick: int = 1_000_000
    policy: Policy = field(default_factory=Policy)
    streams: Mapping[str, DataFrame] = field(default_factory=dict)
    direct_scan: bool = True
    in_driver: bool = True
    sql_partials: bool = True
    retain: CheckpointRetention | None = None
    metrics: int | str | None = None
    listeners: tuple[StreamingQueryListener, ...] = ()
    names: Sequence[str] | None = None
    """What the user calls the streams, in the order of the description."""

    def __repr__(self) -> str:
        return f"SparkJob({self.description.name!r}, checkpoint={public_url(self.checkpoint)!r})"

    def _repr_html_(self) -> str:
        """The job as a table, for a notebook."""
        facts = {
            "checkpoint": public_url(self.checkpoint),
            "streams": ", ".join(self.by_user),
            "store": self.store.name,
            "sink": ", ".join(map(sink_name, self.sinks.each.get("panes", ()))) or None,
            "trigger": ", ".join(f"{name}={value!r}" for name, value in (self.spark_trigger or {}).items()) or None,
        }
        return facts_html(f"SparkJob {self.description.name}", facts)

    @property
    def by_user(self) -> dict[str, str]:
        """What the description calls each stream, by the name that the user knows."""
        return JobStreams(self.description, self.names).by_user

    @property
    def platform(self) -> Platform:
        """The Spark that the job is to run on."""
        return platform_of(self.stream.sparkSession)

    def open(self) -> Checkpoint:
        """The checkpoint, after what can be checked before anything is written. Raises `UsageError`."""
        check_workers(self.platform, _packages(self.store, self.checkpoint))
        return open_with(self.platform, self.checkpoint)

    def fit_sinks(self, graph: Graph) -> None:
        """Tell the sinks what they get, of which Spark makes DataFrames. Raises `UsageError`."""
        emitted = emitted_outputs(graph)
        self.sinks.fit(emitted, on_spark=True)
        offered = {"panes": [output.schema for output in emitted], "late": emitted[-1].late}
        for kind in self.sinks.each:
            for schema in offered[kind]:
                check_case(self.stream.sparkSession, schema.names, schema.names)

    def begin(self, graph: Graph, checkpoint: Checkpoint, check: Callable[[Manifest | None], None]) -> Job:
        """Start the job on the checkpoint after checking that all executors share its root; see `Job.begin`."""
        check_shared(self.platform, checkpoint)
        job = Job.begin(
            graph,
            checkpoint,
            self.store,
            partitions=self.partitions,
            runner="spark",
            otherwise=self.platform.parallelism,
            check=check,
            hook=self.hook,
            may_change=True,
            policy=self.policy,
        )
        fit_as_begun(self.fit_sinks, graph, job.graph)
        return job


def _packages(store: StoreConfig, root: str) -> list[str]:
    """What tasks of a job import of the extras."""
    of_store = ["rocksdict"] if store.name == "rocksdb" else []
    return [*of_store, *filter(None, [dialect_of(root).package])]
