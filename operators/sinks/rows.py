"""The door of the sinks that are included: rows of any runner, as tables of plain types, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.ipc as ipc

from tidestate.operators.sinks.forms import newest_rows
from tidestate.statestore.spec.plain import plain_schema, plain_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows: TypeAlias = "pa.Table | DataFrame"
"""What a sink is called with: on Spark a DataFrame, otherwise a table."""


@dataclass(frozen=True)
class Tables:
    """The rows of a delivery in order, as tables that have this schema. They can be read once."""

    schema: pa.Schema
    each: Iterator[pa.Table]


def tables_of(rows: Rows) -> Tables:
    """``rows`` as tables. Those of a DataFrame pass through the driver, one of its partitions at a time."""
    if isinstance(rows, pa.Table):
        return Tables(plain_schema(rows.schema), iter([plain_table(rows)]))
    from tidestate.operators.spark.compat import arrow_schema_of

    schema = plain_schema(arrow_schema_of(rows.schema))
    numbered = rows.toDF(*(f"c{place}" for place in range(len(rows.columns))))  # PySpark does not quote names
    packed = numbered.mapInArrow(packed_batches, "batch binary").toLocalIterator()
    parts = (_unpacked(bytes(row["batch"])).rename_columns(schema.names) for row in packed)
    return Tables(schema, (part.cast(schema) for part in parts))


def newest_of(tables: Tables, by: Sequence[str]) -> pa.Table:
    """The `newest_rows` of all ``tables``, of which one is in memory at a time, besides these."""
    newest = tables.schema.empty_table()
    for table in tables.each:
        newest = newest_rows(pa.concat_tables([newest, table]), by)
    return newest


def packed_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch as the bytes of an Arrow stream, for a driver to take one after the other; runs in Spark's tasks."""
    for batch in batches:
        if batch.num_rows:
            into = pa.BufferOutputStream()
            with ipc.new_stream(into, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.record_batch([pa.array([into.getvalue().to_pybytes()], pa.binary())], names=["batch"])


def _unpacked(packed: bytes) -> pa.Table:
    with ipc.open_stream(packed) as reader:
        return plain_table(reader.read_all())
