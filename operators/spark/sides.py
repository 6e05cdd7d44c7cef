"""Two streaming DataFrames as the one stream in which rows of both sides of a join travel."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from operators.joins.description import Joined
from operators.joins.names import AT, LEFT, RIGHT, SIDE
from operators.spark.types import arrow_schema
from statestore.errors import UsageError


def both_sides(joined: Joined, left: DataFrame, right: DataFrame) -> DataFrame:
    """``left`` and ``right`` under each other; each keeps its own offsets in Spark's log.

    Raises `UsageError` where a side lacks columns of the join or keys have different types.
    """
    if not (left.isStreaming and right.isStreaming):
        raise UsageError("a side is not a stream: read it with spark.readStream", code="not-a-stream")
    joined.schema(*(arrow_schema(side.schema, side.columns) for side in (left, right)))
    return _side(joined, LEFT, left, right).unionByName(_side(joined, RIGHT, right, left))


def _side(joined: Joined, name: str, own: DataFrame, other: DataFrame) -> DataFrame:
    other_name = RIGHT if name == LEFT else LEFT
    columns: list[Column] = [sf.col(f"`{key}`") for key in joined.on]
    columns += [sf.lit(name).alias(SIDE), sf.col(f"`{joined.time_of(name)}`").alias(AT)]
    columns += [sf.col(f"`{c}`").alias(f"{name}_{c}") for c in own.columns if c not in joined.on]
    columns += [
        sf.lit(None).cast(field.dataType).alias(f"{other_name}_{field.name}")
        for field in other.schema.fields
        if field.name not in joined.on
    ]
    return own.select(*columns)
