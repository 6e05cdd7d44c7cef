"""What runs a stream: Spark, this process, a test, or a program that calls it by hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

from tidestate.operators.describe.job_streams import JobStreams
from tidestate.operators.describe.runnable import imported, tick_us
from tidestate.operators.describe.runs import Panes, Schemas, SparkJob, Standalone
from tidestate.operators.describe.sinks import ArrowSinks, ArrowSinksByOutput, Sinks, SparkSinks, SparkSinksByOutput
from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.streams.graph import JobGraph
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreConfig, StoreName, store_of
from tidestate.statestore.storage.options import root_with_options

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame

    from tidestate import Harness  # by its public name, as in `tidestate.operators.streams.by_hand`

Shortcut = Literal["direct_scan", "in_driver", "sql_partials"]
"""How a batch on Spark may be processed faster, with the same result: tasks read Parquet files themselves
(docs/how-it-works/direct-scan.md), the driver processes few rows without a Spark job, and Spark SQL makes partials of
rows before they are handed over (docs/how-it-works/how-rows-are-read.md).
"""
SHORTCUTS: tuple[Shortcut, ...] = get_args(Shortcut)


class Runs(ABC, Generic[Panes]):
    """Verbs that run what is in front of a stream, and its own operator."""

    @property
    @abstractmethod
    def graph(self) -> JobGraph:
        """The operators, and the names of the streams that they read. Raises `UsageError` for names that are not
        clear.
        """

    @checked
    def on_spark(
        self,
        streams: DataFrame | Mapping[str, DataFrame],
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | StoreName | None = None,
        sink: SparkSinks | SparkSinksByOutput | None = None,
        late_sink: SparkSinks | None = None,
        partitions: int | None = None,
        tick: Span | None = None,
        policy: Policy | None = None,
        checkpoints: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        paths: Collection[Shortcut] = SHORTCUTS,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SparkJob:
        """Run over streaming DataFrames, by the names of their streams (a single one needs none), in one Spark query
        that has the offsets of all. Nothing happens until ``start()``.

        ``checkpoint`` is the folder of all durable state, Spark's own included. ``sink`` is called with a DataFrame
        of the panes of a checkpoint and its `DeliveryId`, in order, at least once each; it refuses them by returning
        False or raising `Refused` (docs/how-to/own-sink.md). Without a sink, panes are in the pane files of the
        checkpoint, exactly once. Where the job has several outputs, `job`, sinks are given by their names.
        ``late_sink`` gets the rows of the late ledger in the same way, those of each
        operator by themselves. ``store`` keeps the state: ``"parquet"`` (the default), ``"rocksdb"``, ``"memory"``,
        or one with settings. ``partitions`` is the number of state partitions of a new root (default: Spark's default
        parallelism); ``tidestate rescale`` changes it. Every ``tick`` (default: 1 second) time advances without a
        batch, where that matters: idle sources, and watermarks and triggers in processing time; and sinks that are
        behind are offered what they lack. ``policy`` decides what the start does if another driver runs this
        checkpoint, or the newest one is damaged. With ``checkpoints`` the job deletes old ones itself, as ``tidestate
        gc`` does (docs/how-to/keep-and-collect.md). ``metrics`` is a port of this host, or a host and port, at which
        the job serves its metrics to Prometheus (docs/how-to/monitor.md). ``paths`` are the shortcuts that a batch
        may take, by default all: ``direct_scan``, tasks read Parquet files themselves where the rows are certain to
        be the same (docs/how-it-works/direct-scan.md); ``in_driver``, the driver processes few rows without a Spark
        job; ``sql_partials``, Spark SQL makes partials of rows that it has read, and the driver does the rest, where
        they are few (docs/how-it-works/how-rows-are-read.md). ``storage_options`` are fsspec's for the root, such as
        credentials: they go to the tasks, are written nowhere, and hold for the bucket in this process
        (docs/how-to/roots-in-the-cloud.md).
        """
        graph, shortcuts = self.graph, _chosen(paths)
        made: SparkJob = imported("spark.job", "job_on_spark")(
            graph.description,
            JobStreams(graph.description, graph.streams).each(streams),
            names=graph.streams,
            checkpoint=root_with_options(checkpoint, storage_options),
            store=store_of(store),
            sinks=Sinks(sink, late_sink).of(graph.description.name, graph.outputs),
            partitions=partitions,
            tick=tick_us(tick),
            policy=policy or Policy(),
            retain=checkpoints,
            metrics=metrics,
            **shortcuts,
        )
        return made

    @checked
    def standalone(
        self,
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | StoreName | None = None,
        sink: ArrowSinks | ArrowSinksByOutput | None = None,
        late_sink: ArrowSinks | None = None,
        partitions: int | None = None,
        policy: Policy | None = None,
        checkpoints: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        time_zone: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Standalone[Panes]:
        """The same in this process, over batches of Arrow data, with the same checkpoint format, by default with one
        partition of state.

        ``sink`` and ``late_sink`` are as on Spark, called with tables; ``store``, ``policy``, ``checkpoints``,
        ``metrics`` and ``storage_options`` are as there. Times without a zone are in ``time_zone``, such as
        ``"Europe/Berlin"``; without it they are no event times.
        """
        graph = self.graph
        made: Standalone[Panes] = imported("local.standalone", "StandaloneRunner")(
            graph.description,
            root_with_options(checkpoint, storage_options),
            store_of(store),
            Sinks(sink, late_sink).of(graph.description.name, graph.outputs),
            partitions,
            policy=policy or Policy(),
            retain=checkpoints,
            metrics=metrics,
            time_zone=time_zone,
            streams=graph.streams,
        )
        return made

    @checked
    def harness(
        self,
        schema: Schemas,
        *,
        store: StoreConfig | StoreName | None = None,
        folder: str | PathLike[str] | None = None,
        partitions: int | None = None,
        generate: bool = True,
        sink: ArrowSinks | ArrowSinksByOutput | None = None,
        late_sink: ArrowSinks | None = None,
        time_zone: str | None = None,
    ) -> Harness[Panes]:
        """A `Harness` for tests: feed rows, advance watermark and clock, read panes and state. ``schema`` is that of
        the input, or of each stream by name; else as `Harness` says.
        """
        graph = self.graph
        made: Harness[Panes] = imported("local.harness", "Harness")(
            graph.description,
            schema,
            store=None if store is None else store_of(store),
            folder=folder,
            partitions=partitions,
            generate=generate,
            sink=sink,
            late_sink=late_sink,
            time_zone=time_zone,
            streams=graph.streams,
        )
        return made

    @checked
    def plan(
        self,
        root: str | PathLike[str],
        *,
        schema: Schemas | None = None,
        policy: Policy | None = None,
        time_zone: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> StartPlan:
        """What a start of this job at ``root`` would do: what would change, what would be dropped, and why it would
        be refused. Nothing is touched. See docs/how-to/change-a-job.md.

        Input has the types that it had at the newest checkpoint, unless there is a ``schema``, of each stream by name
        where there are several; its times without a zone are in ``time_zone``. Raises `CorruptionError` for a root
        that a start could not read, and `UsageError` where the job does not fit the input.
        """
        graph = self.graph
        made: StartPlan = imported("engine.start_plan", "plan_start")(
            graph.description,
            root_with_options(root, storage_options),
            schema=schema,
            policy=policy,
            time_zone=time_zone,
            streams=graph.streams,
        )
        return made


def _chosen(paths: Collection[Shortcut]) -> dict[Shortcut, bool]:
    """Whether a batch may take each of the shortcuts. Raises `UsageError` for others."""
    if isinstance(paths, str) or (strange := set(paths) - set(SHORTCUTS)):
        raise UsageError(
            "paths= must be a set of the shortcuts that a batch may take",
            code="paths",
            found=paths if isinstance(paths, str) else sorted(map(str, strange)),
            shortcuts=list(SHORTCUTS),
        )
    return {name: name in paths for name in SHORTCUTS}
