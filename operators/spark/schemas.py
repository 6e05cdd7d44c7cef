"""The columns of streaming DataFrames that a description reads."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from tidestate.operators.bind.columns import require_columns
from tidestate.operators.bind.graph import stream_columns
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.windows import END, START
from tidestate.operators.spark.types import arrow_schema, check_case


def read_schemas(description: Runnable, stream: DataFrame) -> pa.Schema | dict[str, pa.Schema]:
    """The schema of the columns that are read; by stream if there are several. Raises `UsageError` for a column that
    the stream lacks, or that Spark cannot tell from another one.
    """
    names = description.streams if isinstance(description, Chain) else []
    if len(names) < 2:
        return _read_schema(description, names[0] if names else "", stream, "")
    return {name: _read_schema(description, name, stream, f"{name}__") for name in names}


def _read_schema(description: Runnable, name: str, stream: DataFrame, prefix: str) -> pa.Schema:
    """The schema of the columns of a stream that are read; ``prefix``: what stands before them in the DataFrame."""
    available = [column.removeprefix(prefix) for column in stream.columns if column.startswith(prefix)]
    columns = stream_columns(description, name, available)
    schema = arrow_schema(stream.schema, [prefix + column for column in columns])
    schema = pa.schema([field.with_name(field.name.removeprefix(prefix)) for field in schema])
    operators = description.operators if isinstance(description, Chain) else (description,)
    if not any(isinstance(operator, Sided) for operator in operators):  # those pack their streams first
        # Windows that rows name are a choice of their own, with an error of its own.
        require_columns([name for name in columns if name not in (START, END)], schema, available)
    check_case(stream.sparkSession, schema.names, available)
    return schema
