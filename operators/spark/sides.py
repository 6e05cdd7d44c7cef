"""Combines several DataFrames, all streams or all batches, into one with the rows of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.operators.expressions.sql_types import quoted
from tidestate.operators.plan.graph import STREAM
from tidestate.operators.spark.types import arrow_schema, column_at
from tidestate.statestore.errors import UsageError


def check_streams(streams: Iterable[DataFrame]) -> None:
    """Raise `UsageError` unless all are streams."""
    if not all(stream.isStreaming for stream in streams):
        raise UsageError("this DataFrame is not a stream: read it with spark.readStream", code="not-a-stream")


def all_sides(sides: Sides, streams: Mapping[str, DataFrame]) -> DataFrame:
    """The union of ``streams``, one for each side; each has its own offsets in Spark's log.

    Raises `UsageError` if their columns do not fit.
    """
    named = {name: streams[name] for name in sides.names}
    schema = sides.schema({name: arrow_schema(one.schema, one.columns) for name, one in named.items()})
    types = {
        sides.prefixed(name, field.name): field.dataType for name, one in named.items() for field in one.schema.fields
    }
    parts = [_side(sides, name, one, schema.names, types) for name, one in named.items()]
    return reduce(DataFrame.unionByName, parts)


def _side(sides: Sides, name: str, own: DataFrame, columns: list[str], types: dict) -> DataFrame:  # type: ignore[type-arg]
    prefixed = {sides.prefixed(name, column): column for column in own.columns}
    chosen: list[Column] = []
    for column in columns:
        if column == SIDE:
            chosen.append(sf.lit(name).alias(SIDE))
        elif column == AT:
            chosen.append(column_at(own, sides.time_of(name)).alias(AT))
        elif column in prefixed or column in sides.shared:
            chosen.append(column_at(own, prefixed.get(column, column)).alias(column))
        else:
            chosen.append(sf.lit(None).cast(types[column]).alias(column))
    return own.select(*chosen)


def by_name(streams: Mapping[str, DataFrame]) -> DataFrame:
    """The union of streams with any columns: each row has the name of its stream, which also prefixes its columns.

    A single one is unchanged.
    """
    if len(streams) == 1:
        return next(iter(streams.values()))
    renamed = [
        stream.select(sf.lit(name).alias(STREAM), *(sf.col(quoted(c)).alias(f"{name}__{c}") for c in stream.columns))
        for name, stream in streams.items()
    ]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), renamed)
