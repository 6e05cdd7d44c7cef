"""Several streams as one: a row has its side, its time, its key, and the columns of its side.

Joins, merges and unions read such a stream, whether its rows come from the input or from other operators.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.progress.buffers import BufferProgress
from tidestate.operators.progress.sources import Generator
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame

    from tidestate.operators.engine.delivery import SparkSink
    from tidestate.operators.spark.job import SparkJob
    from tidestate.recovery.start.policy import Policy
    from tidestate.statestore.durations import Span
    from tidestate.statestore.spec.store import StoreConfig

SIDE, AT = "side", "time"
"""Columns of every row: which side it is of, and its event time."""
LEFT, RIGHT = "left", "right"
SIDES = (LEFT, RIGHT)


@dataclass(frozen=True)
class Sides:
    """``names`` of the sides and their columns of event ``times``, in parallel; ``shared`` columns have one name and
    type on all sides, the others get their side's name in front. With ``alike`` all columns are shared.
    """

    names: tuple[str, ...]
    times: tuple[str, ...]
    shared: tuple[str, ...] = ()
    alike: bool = False

    def schema(self, schemas: dict[str, pa.Schema]) -> pa.Schema:
        """Columns of the one stream, of those of each side. Raises `UsageError` where they do not go together."""
        first, columns = schemas[self.names[0]], self._shared(schemas)
        # Streams that are unions themselves have these marks already, and get new ones.
        known = {*columns, SIDE, AT} if self.alike else {*columns}
        marks = [pa.field(SIDE, pa.string()), pa.field(AT, TIME)]
        rest = [
            pa.field(self.prefixed(side, field.name), field.type)
            for side in self.names
            for field in schemas[side]
            if field.name not in known
        ]
        return pa.schema([*(first.field(name).remove_metadata() for name in columns), *marks, *rest])

    def rows(self, schema: pa.Schema, side: str, rows: pa.Table) -> pa.Table:
        """``rows`` of a side as the one stream has them. Raises `UsageError` where a column is missing."""
        time = self.time_of(side)
        own = {self.prefixed(side, name): name for name in rows.column_names} | {AT: time}
        needed = [time, *self.shared]
        if missing := [name for name in needed if name not in rows.column_names]:
            raise UsageError("a side lacks columns", code="column-missing", side=side, missing=missing)
        columns = [
            pa.repeat(pa.scalar(side), rows.num_rows)
            if field.name == SIDE
            else rows[own[field.name]].cast(field.type)
            if field.name in own
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def prefixed(self, side: str, name: str) -> str:
        """What a side's column is called in the one stream."""
        return name if self.alike or name in self.shared else f"{side}_{name}"

    def time_of(self, side: str) -> str:
        """The column of event times of a side."""
        return self.times[self.names.index(side)]

    def _shared(self, schemas: dict[str, pa.Schema]) -> list[str]:
        """Columns that all sides have, of the same type."""
        first = schemas[self.names[0]]
        shared = [name for name in first.names if name not in (SIDE, AT)] if self.alike else list(self.shared)
        for side, schema in schemas.items():
            if missing := [name for name in (*shared, self.time_of(side)) if name not in schema.names]:
                raise UsageError("a side lacks columns", code="column-missing", side=side, missing=missing)
            if self.alike and (more := sorted(set(schema.names) - {*shared, SIDE, AT})):
                raise UsageError(
                    "all sides have the same columns: select them first", code="side-columns", side=side, more=more
                )
            if differ := [name for name in shared if schema.field(name).type != first.field(name).type]:
                raise UsageError("a column has different types: cast one", code="side-types", columns=differ)
        return shared


class Sided(Runnable):
    """A description that reads several streams."""

    @property
    @abstractmethod
    def sides(self) -> Sides:
        """Its inputs."""

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

    def schema(self, *schemas: pa.Schema) -> pa.Schema:
        """Columns of the one stream in which rows of all sides travel, of those of each side in order.

        Raises `UsageError` where they do not go together.
        """
        if len(schemas) != len(self.sides.names):
            raise UsageError("give a schema for each side", code="sides", sides=self.sides.names, found=len(schemas))
        return self.sides.schema(dict(zip(self.sides.names, schemas, strict=True)))

    def rows(self, schema: pa.Schema, **sides: pa.Table | None) -> pa.Table:
        """Rows of some sides as that stream has them, in the order of the sides."""
        if strange := sorted(set(sides) - set(self.sides.names)):
            raise UsageError("there is no such side", code="sides", sides=self.sides.names, found=strange)
        there = [(name, table) for name in self.sides.names if (table := sides.get(name)) is not None]
        parts = [self.sides.rows(schema, name, table) for name, table in there]
        return pa.concat_tables([schema.empty_table(), *parts])

    def on_spark(  # type: ignore[override]
        self,
        *streams: DataFrame,
        checkpoint: str | PathLike[str],
        store: StoreConfig | None = None,
        sink: SparkSink | None = None,
        partitions: int | None = None,
        tick: Span | None = None,
        policy: Policy | None = None,
    ) -> SparkJob:
        """This over a streaming DataFrame for each side, in one query with the offsets of all; else as `Runnable`."""
        from tidestate.operators.spark.sides import all_sides, check_streams

        check_streams(streams)
        one = all_sides(self.sides, streams)
        job = super().on_spark(
            one, checkpoint=checkpoint, store=store, sink=sink, partitions=partitions, tick=tick, policy=policy
        )
        return replace(job, streams=dict(zip(self.sides.names, streams, strict=True)))
