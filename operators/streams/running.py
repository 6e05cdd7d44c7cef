"""How a stream runs: on Spark, or in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runs import SparkJob, Standalone
from tidestate.operators.describe.sinks import ArrowSinks, SparkSinks
from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.streams.graph import JobGraph
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreConfig

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame


class RunsJobs:
    """What has a graph of operators can run."""

    @property
    def graph(self) -> JobGraph:
        """The operators and streams."""
        raise NotImplementedError

    @checked
    def on_spark(
        self,
        streams: DataFrame | Mapping[str, DataFrame],
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | None = None,
        sink: SparkSinks | None = None,
        late_sink: SparkSinks | None = None,
        partitions: int | None = None,
        tick: Span | None = None,
        policy: Policy | None = None,
        retain: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        direct_scan: bool = True,
        in_driver: bool = True,
    ) -> SparkJob:
        """Run over streaming DataFrames, by the names of the streams where there are several, in one query; nothing
        happens until ``start()``. All options: docs/RUNNERS.md.

        Raises `UsageError` where a stream has no DataFrame, or one is of no stream.
        """
        description, names = self.graph.description, self.graph.streams
        frames = by_stream(names, streams)
        choices: dict[str, Any] = {
            "checkpoint": checkpoint,
            "store": store,
            "sink": sink,
            "late_sink": late_sink,
            "partitions": partitions,
            "tick": tick,
            "policy": policy,
            "retain": retain,
            "metrics": metrics,
            "direct_scan": direct_scan,
            "in_driver": in_driver,
        }
        if isinstance(description, Chain):
            return description.on_spark(frames, **choices)
        return description.on_spark(*(frames[name] for name in names), **choices)

    @checked
    def standalone(
        self,
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | None = None,
        sink: ArrowSinks | None = None,
        late_sink: ArrowSinks | None = None,
        partitions: int | None = None,
        policy: Policy | None = None,
        retain: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        time_zone: str | None = None,
    ) -> Standalone:
        """The same in this process, over batches of Arrow data, with the same checkpoint format. A batch is a table;
        where there are several streams, tables by their names. All options: docs/RUNNERS.md.
        """
        return self.graph.description.standalone(
            checkpoint=checkpoint,
            store=store,
            sink=sink,
            late_sink=late_sink,
            partitions=partitions,
            policy=policy,
            retain=retain,
            metrics=metrics,
            time_zone=time_zone,
        )

    @checked
    def plan(
        self,
        root: str | PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, pa.Schema] | None = None,
        policy: Policy | None = None,
        time_zone: str | None = None,
    ) -> StartPlan:
        """What a start of this job at ``root`` would do; nothing is touched. Input has the types that it had at the
        newest checkpoint, unless there is a ``schema``, of each stream by name where there are several.
        """
        return self.graph.description.plan(root, schema=schema, policy=policy, time_zone=time_zone)


def by_stream(names: Sequence[str], given: Any) -> dict[str, Any]:
    """What is given for each stream, by name; a single one needs no name."""
    found = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, given)
    if set(found) != set(names) or (len(names) > 1 and not isinstance(given, Mapping)):
        raise UsageError(
            "give each stream of the job by its name",
            code="streams",
            streams=list(names),
            found=list(found) if isinstance(given, Mapping) else type(given).__name__,
        )
    return {name: found[name] for name in names}
