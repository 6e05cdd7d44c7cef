"""The columns of streaming DataFrames that a description reads."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from tidestate.operators.bind.graph import stream_columns
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.spark.types import arrow_schema


def read_schemas(description: Runnable, stream: DataFrame) -> pa.Schema | dict[str, pa.Schema]:
    """The schema of the columns that are read; by stream if there are several."""
    names = description.streams if isinstance(description, Chain) else []
    if len(names) < 2:
        name = names[0] if names else ""
        return arrow_schema(stream.schema, stream_columns(description, name, stream.columns))
    schemas = {}
    for name in names:
        columns = [column.removeprefix(f"{name}__") for column in stream.columns if column.startswith(f"{name}__")]
        whole = arrow_schema(
            stream.schema, [f"{name}__{column}" for column in stream_columns(description, name, columns)]
        )
        schemas[name] = pa.schema([field.with_name(field.name.removeprefix(f"{name}__")) for field in whole])
    return schemas
