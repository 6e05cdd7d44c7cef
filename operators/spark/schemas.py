"""The columns of streaming DataFrames that a description reads."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from pyspark.sql import DataFrame

from tidestate.operators.bind.columns import require_columns
from tidestate.operators.bind.graph import stream_columns
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.spark.types import arrow_schema
from tidestate.operators.windows.names import END, START
from tidestate.statestore.errors import UsageError


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
    if stream.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
        _check_case(schema.names, available)
    return schema


def _check_case(columns: list[str], available: list[str]) -> None:
    """Check that Spark, for which ``k`` and ``K`` are one name, can read these columns. Raises `UsageError`."""
    folded = Counter(column.lower() for column in available)
    read = {column.lower() for column in columns}
    if same := sorted(column for column in available if folded[column.lower()] > 1 and column.lower() in read):
        raise UsageError(
            "Spark treats these column names as the same: rename or drop one, or set spark.sql.caseSensitive to true",
            code="column-twice",
            columns=same,
        )
