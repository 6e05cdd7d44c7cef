"""A DataFrame as a table of Arrow, which Spark 3.5 does not hand out itself."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from tidestate.operators.spark.compat import arrow_schema_of


def arrow_of(frame: DataFrame) -> pa.Table:
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    schema = arrow_schema_of(frame.schema)
    batches = frame._collect_as_arrow()
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()
