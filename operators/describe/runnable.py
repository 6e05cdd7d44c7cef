"""What every description has in common: a name, where its watermark comes from, and the door to what runs it. Pure.

Runners know descriptions, and no description knows a runner: the door, `imported`, finds one by its name when opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from tidestate.operators.describe.given_sides import given_ctis
from tidestate.operators.describe.renames import SAME_NAMES, Renames, given_renames
from tidestate.operators.describe.runs import SparkJob, Standalone
from tidestate.operators.describe.sides import SIDE, Sides
from tidestate.operators.describe.sinks import ArrowSinks, Sinks, SparkSinks
from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.progress.cti_settings import Settings
from tidestate.operators.progress.watermarks import (
    INPUT,
    BufferProgress,
    Generator,
    Watermarks,
    given_watermarks,
    side_sources,
)
from tidestate.operators.progress.watermarks import sources as declared
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.roots import checked_root
from tidestate.statestore.spec.plain import ArrowRows, as_table, plain_schema
from tidestate.statestore.spec.store import Parquet, StoreConfig

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame


def checked_name(name: str) -> str:
    """The name of an operator or stream, which is also that of a folder. Raises `UsageError`."""
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        raise UsageError("a name has letters, digits, - and _", code="operator-name", found=repr(name))
    return name


def tick_us(tick: Span | None) -> int:
    """How often time goes on by itself, in microseconds."""
    found = 1_000_000 if tick is None else span_us(tick)
    if found <= 0:
        raise UsageError("a tick comes after a span of time", code="tick", found=tick)
    return found


@called("a job", "stream(…).group_by(…).window(…).aggregate(…)")
class Runnable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """A description that can run: on Spark, or alone. Without ``renames`` it is the configuration in a manifest, see
    `tidestate.operators.describe.configuration`.
    """

    name: str
    watermarks: Watermarks | None = msgspec.field(default=None, name="watermark")
    renames: Renames = SAME_NAMES

    def __hash__(self) -> int:
        """By kind and name: mappings, such as the aggregates, have no hash."""
        return hash((type(self), self.name))

    @checked
    def renamed(
        self, *, aggregates: Mapping[str, str] | None = None, columns: Mapping[str, str] | None = None
    ) -> Self:
        """Names that differ in the checkpoint to continue from: ``{"old": "new"}``, of aggregates and of input
        columns. Once the change has happened, repeating it has no effect.
        """
        return replace(self, renames=given_renames(aggregates, columns))

    @checked
    def watermark(
        self,
        generator: Generator | BufferProgress,
        *,
        by: str | None = None,
        sources: Sequence[str] = (),
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """Where the watermark comes from, instead of the largest event time minus ``watermark_delay``.

        With ``by``, the values of that column are sources, each with a watermark, and the smallest counts. Those in
        ``sources`` hold the watermark from the start, others join when they appear. A source without input for
        ``idle_timeout`` of processing time is idle: it no longer holds the watermark until it has caught up. Choose a
        timeout longer than Spark's trigger interval. With `BufferProgress` each origin is a source.
        """
        known = declared(*sources, idle_timeout=idle_timeout, own_timeouts=own_timeouts)
        return replace(self, watermarks=given_watermarks(generator, by, known))

    @checked
    def on_spark(
        self,
        stream: DataFrame,
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
        """Run over a streaming DataFrame; nothing happens until ``start()``.

        ``checkpoint`` is the folder of all durable state, Spark's own included. ``sink`` is called with a DataFrame
        of the panes of a checkpoint and its `DeliveryId`, in order, at least once each; it refuses them by returning
        False or raising `Refused` (docs/how-to/own-sink.md). Without a sink, panes are in the pane files of the
        checkpoint, exactly once. ``late_sink`` gets the rows of the late ledger in the same way, those of each
        operator by themselves. ``partitions`` is the number of state partitions of a new root (default: Spark's
        default parallelism); change it with ``tidestate rescale``. Every ``tick`` (default: 1 second) time advances
        without a batch, where that matters: idle sources, and watermarks and triggers in processing time; and sinks
        that are behind are offered what they lack. ``policy`` decides what the start does if another driver runs this
        checkpoint, or the newest one is damaged. With ``retain=CheckpointRetention(…)`` the job deletes old
        checkpoints itself, see docs/how-to/keep-and-collect.md. ``metrics`` is a port of this host, or a host and
        port, at which the job serves its metrics to Prometheus (docs/how-to/monitor.md). Tasks read Parquet files
        themselves where the rows are certain to be the same, unless ``direct_scan`` is False
        (docs/how-it-works/direct-scan.md); if they are few and state is small, the driver processes them without a
        Spark job, unless ``in_driver`` is False.
        """
        return self._on_spark(
            {INPUT: stream},
            checkpoint=checkpoint,
            store=store,
            sinks=Sinks(sink, late_sink),
            partitions=partitions,
            tick=tick,
            policy=policy,
            retain=retain,
            metrics=metrics,
            direct_scan=direct_scan,
            in_driver=in_driver,
        )

    def _on_spark(
        self,
        streams: Mapping[str, DataFrame],
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | None,
        sinks: Sinks[DataFrame],
        partitions: int | None,
        tick: Span | None,
        policy: Policy | None,
        retain: CheckpointRetention | None,
        metrics: int | str | None,
        direct_scan: bool,
        in_driver: bool,
    ) -> SparkJob:
        made: SparkJob = imported("spark.job", "job_on_spark")(
            self,
            streams,
            checkpoint=checked_root(checkpoint),
            store=store or Parquet(),
            sinks=sinks,
            partitions=partitions,
            tick=tick_us(tick),
            policy=policy or Policy(),
            retain=retain,
            metrics=metrics,
            direct_scan=direct_scan,
            in_driver=in_driver,
        )
        return made

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
        """The same computation in this process, over batches of Arrow data, with the same checkpoint format, by
        default with one partition of state. ``sink`` and ``late_sink`` are as on Spark, called with tables;
        ``policy``, ``retain`` and ``metrics`` are as there. Times without a zone are in ``time_zone``, such as
        ``"Europe/Berlin"``; without it they are no event times.
        """
        made: Standalone = imported("local.standalone", "StandaloneRunner")(
            self,
            checked_root(checkpoint),
            store or Parquet(),
            Sinks(sink, late_sink),
            partitions,
            policy=policy or Policy(),
            retain=retain,
            metrics=metrics,
            time_zone=time_zone,
        )
        return made

    @checked
    def plan(
        self,
        root: str | PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, pa.Schema] | None = None,
        policy: Policy | None = None,
        time_zone: str | None = None,
    ) -> StartPlan:
        """What a start of this job at ``root`` would do: what would change, what would be dropped, and why it would
        be refused. Nothing is touched. See docs/how-to/change-a-job.md.

        Input has the types that it had at the newest checkpoint, unless there is a ``schema``, of each stream by name
        where there are several; its times without a zone are in ``time_zone``. Raises `CorruptionError` for a root
        that a start could not read, and `UsageError` where the description does not fit the input.
        """
        made: StartPlan = imported("engine.start_plan", "plan_start")(
            self, checked_root(root), schema=schema, policy=policy, time_zone=time_zone
        )
        return made


class Sided(Runnable, frozen=True):
    """A description that reads several streams."""

    @property
    def sides(self) -> Sides:
        """Its inputs."""
        raise NotImplementedError

    def order_of(self, side: str) -> tuple[str, ...]:
        """The columns of the one stream that order the rows of a side; none where it names no offset."""
        raise NotImplementedError

    @checked
    def advance_time(
        self,
        settings: Settings = None,
        *,
        at_source: Settings = None,
        shape: str | Sequence[str] = "point",
        end: str | Sequence[str | None] | None = None,
        shape_column: str | Sequence[str | None] | None = None,
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """Use CTIs, as `Windowed.advance_time`: each side is a source, with settings by the name of the side, and may
        import the CTIs of another one. ``shape``, ``end`` and ``shape_column`` are of all sides, or one for each;
        ``end`` and ``shape_column`` are columns of the side itself. Every side names its ``offset``, but for one that
        reads an operator of a chain: that has no settings, and its CTIs are the watermarks of the operator.
        """
        orders = {side: self.order_of(side) for side in self.sides.names}
        ctis = given_ctis(self.sides, orders, settings, at_source, (shape, end, shape_column))
        known = side_sources(self.sides.names, ctis.followed, idle_timeout, own_timeouts)
        ctis.check(known.names)
        return replace(self, watermarks=Watermarks(ctis, known, SIDE))

    @checked
    def watermark(
        self,
        generator: Generator | BufferProgress,
        *,
        by: str | None = None,
        sources: Sequence[str] = (),
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """As everywhere; unless ``by`` says otherwise, each side is a source and holds W from the start."""
        if by is None and not isinstance(generator, BufferProgress):
            by, sources = SIDE, self.sides.names
        return super().watermark(
            generator, by=by, sources=sources, idle_timeout=idle_timeout, own_timeouts=own_timeouts
        )

    def schema(self, *schemas: pa.Schema, time_zone: str | None = None) -> pa.Schema:
        """Columns of the one stream in which rows of all sides travel, of those of each side in order. Times without
        a zone are in ``time_zone``.

        Raises `UsageError` where they do not go together.
        """
        if len(schemas) != len(self.sides.names):
            raise UsageError("give a schema for each side", code="sides", sides=self.sides.names, found=len(schemas))
        plain = [plain_schema(one, time_zone) for one in schemas]
        return self.sides.schema(dict(zip(self.sides.names, plain, strict=True)))

    def rows(self, schema: pa.Schema, time_zone: str | None = None, /, **sides: ArrowRows | None) -> pa.Table:
        """Rows of some sides as that stream has them, in the order of the sides. Times without a zone are in
        ``time_zone``.
        """
        if strange := sorted(set(sides) - set(self.sides.names)):
            raise UsageError("there is no such side", code="sides", sides=self.sides.names, found=strange)
        there = [(name, rows) for name in self.sides.names if (rows := sides.get(name)) is not None]
        parts = [self.sides.rows(schema, name, as_table(rows, time_zone)) for name, rows in there]
        return pa.concat_tables([schema.empty_table(), *parts])

    @checked
    def on_spark(  # type: ignore[override]
        self,
        *streams: DataFrame,
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
        """This over a streaming DataFrame for each side, in one query with the offsets of all; else as `Runnable`."""
        if len(streams) != len(self.sides.names):
            raise UsageError("give a stream for each side", code="sides", sides=self.sides.names, found=len(streams))
        return self._on_spark(
            dict(zip(self.sides.names, streams, strict=True)),
            checkpoint=checkpoint,
            store=store,
            sinks=Sinks(sink, late_sink),
            partitions=partitions,
            tick=tick,
            policy=policy,
            retain=retain,
            metrics=metrics,
            direct_scan=direct_scan,
            in_driver=in_driver,
        )


def imported(module: str, name: str) -> Any:
    """What runs descriptions, and is imported when it is asked for: the one door to it."""
    return getattr(import_module(f"tidestate.operators.{module}"), name)
