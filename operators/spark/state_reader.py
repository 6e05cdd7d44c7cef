"""Reads the state of a query through Spark's own state reader, which is in Spark from 4.0 on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from tidestate.operators.adopt.spark_state import OPERATORS, Half, SparkState, column_of, refused_operator
from tidestate.operators.spark.compat import SPARK_4
from tidestate.operators.spark.platform import SPARK_ERRORS
from tidestate.operators.spark.types import arrow_schema
from tidestate.statestore.errors import UsageError

DELAY_MS = "spark.watermarkDelayMs"
"""Where Spark notes the delay of the watermark that a column carries."""


def check_reader() -> None:
    """Raise `UsageError` (``adopt-spark``) for a Spark without a state reader."""
    if not SPARK_4:
        raise UsageError(
            "reading spark's state needs spark 4.0 or later, which also reads checkpoints of older versions: "
            "adopt with such a spark; the job itself may then run on 3.5",
            code="adopt-spark",
        )


@dataclass(frozen=True)
class StateReader:
    """The state of the query's one stateful operator after a batch: ``frame`` reads it, ``state`` has no rows yet."""

    frame: DataFrame
    state: SparkState

    @classmethod
    def open(cls, session: SparkSession, location: str, batch_id: int) -> StateReader:
        """Read what the columns are. Raises `UsageError` for an operator that cannot be taken over, and where Spark
        cannot read.
        """
        with _reading():
            rows = session.read.format("state-metadata").load(location).collect()
        operators = {str(row["operatorName"]) for row in rows}
        if strange := sorted(operators - set(OPERATORS)):
            raise refused_operator(", ".join(strange))
        with _reading():
            frame = session.read.format("statestore").options(batchId=batch_id).load(location)
        key, value = _struct(frame, "key"), _struct(frame, "value")
        # By place, since names repeat in a value; a cast of structs goes by place.
        by_place = {"key": _renamed(key, "key"), "value": _renamed(value, "value")}
        renamed = [sf.col(part).cast(kind).alias(part) for part, kind in by_place.items()]
        fields = _fields(key), _fields(value)
        names = [name for kind in by_place.values() for name in kind.names]
        types = [field.type for part in fields for field in part]
        empty = pa.schema(list(zip(names, types, strict=True))).empty_table()
        state = SparkState(next(iter(operators), ""), *fields, _delay_us(key, value), empty)
        return cls(frame.select(*renamed).select("key.*", "value.*"), state)

    def read(self) -> SparkState:
        """The state with its rows: all of them are then in this process. Raises `UsageError`."""
        with _reading():
            rows = self.frame.toArrow()
        return replace(self.state, rows=rows.cast(self.state.rows.schema))


@contextmanager
def _reading() -> Iterator[None]:
    """Raise `UsageError` (``adopt-unreadable``) where Spark cannot read what is asked of it inside."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise UsageError(
            "spark cannot read the state of this checkpoint: nothing was written; start the query once with spark, "
            "which repairs the checkpoint or reports why it cannot",
            code="adopt-unreadable",
            why=next(iter(str(error).splitlines()), type(error).__name__),
        ) from None


def _struct(frame: DataFrame, part: str) -> StructType:
    kind = frame.schema[part].dataType if part in frame.columns else None
    if not isinstance(kind, StructType):
        raise refused_operator("unknown", columns=frame.columns)
    return kind


def _renamed(kind: StructType, part: Half) -> StructType:
    return StructType([StructField(column_of(part, n), field.dataType) for n, field in enumerate(kind.fields)])


def _fields(kind: StructType) -> tuple[pa.Field, ...]:
    """The columns with Arrow's types; null for one that has none in our tables."""
    found = []
    for field in kind.fields:
        try:
            found.append(arrow_schema(StructType([field]), [field.name]).field(0))
        except UsageError:
            found.append(pa.field(field.name, pa.null()))
    return tuple(found)


def _delay_us(*parts: StructType) -> int | None:
    noted = [field.metadata[DELAY_MS] for kind in parts for field in kind.fields if DELAY_MS in field.metadata]
    return int(noted[0]) * 1000 if noted else None
