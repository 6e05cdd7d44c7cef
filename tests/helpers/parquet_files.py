"""Parquet files as different writers make them, and what Spark's own reader returns for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.arrow_rows import arrow_of
from tests.helpers.left_to_spark import found_or_reason
from tidestate.operators.spark.scan.decide import DirectScan, decide
from tidestate.operators.spark.scan.extract import plan_of_jvm, reader_settings
from tidestate.operators.spark.scan.reader import FileRange, read_ranges, seen_type
from tidestate.operators.spark.transport import times_as_numbers

ROW_GROUP_BYTES = 128 << 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(7,2)": pa.decimal128(7, 2),
    "decimal(18,4)": pa.decimal128(18, 4),
    "decimal(38,9)": pa.decimal128(38, 9),
}
_TIMES = st.integers(-(10**16), 10**16)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: Decimal(n).scaleb(-scale))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8),
    "binary": st.binary(max_size=8),
    "date": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": _TIMES.map(lambda us: EPOCH + timedelta(microseconds=us)),
    "timestamp_ntz": _TIMES.map(lambda us: (EPOCH + timedelta(microseconds=us)).replace(tzinfo=None)),
    "decimal(7,2)": _decimals(7, 2),
    "decimal(18,4)": _decimals(18, 4),
    "decimal(38,9)": _decimals(28, 9),
}


@dataclass(frozen=True)
class Written:
    """One file: columns by name as it has them, who writes it, and how."""

    writer: str
    rows: dict[str, tuple[str, list[Any]]]
    options: dict[str, Any] = field(default_factory=dict)
    nested: bool = False

    @property
    def table(self) -> pa.Table:
        """The rows in Arrow, with a column that nobody reads."""
        columns = {name: pa.array(values, TYPES[kind]) for name, (kind, values) in self.rows.items()}
        count = max((len(values) for _, values in self.rows.values()), default=3)
        if self.nested:
            columns["unused"] = pa.array([{"a": [n], "b": None} for n in range(count)])
        return pa.table(columns or {"other": pa.array(range(count))})

    def write(self, spark: SparkSession, path: Path) -> None:
        """As one file; Spark writes a folder, of which the file is taken, with its checksums."""
        getattr(self, f"_by_{self.writer}")(spark, path)

    def _by_pyarrow(self, _spark: SparkSession, path: Path) -> None:
        table = self.table
        if self.options.get("dictionary_typed"):
            for place, column in enumerate(table.schema):
                if column.type == pa.string():
                    table = table.set_column(place, column.name, table[column.name].dictionary_encode())
        named = {name: value for name, value in self.options.items() if name != "dictionary_typed"}
        pq.write_table(table, path, **named)

    def _by_duckdb(self, _spark: SparkSession, path: Path) -> None:
        codec = self.options.get("compression", "snappy")
        db = duckdb.connect()
        db.execute("set timezone = 'UTC'")
        db.register("rows", self.table)
        db.execute(f"copy rows to '{path}' (format parquet, compression {codec})")

    def _by_spark(self, spark: SparkSession, path: Path) -> None:
        kinds = {name: kind for name, (kind, _) in self.rows.items()}
        schema = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items()) or "other int"
        columns = [values for _, values in self.rows.values()]
        frame = spark.createDataFrame(list(zip(*columns, strict=True)) if columns else [(1,), (2,)], schema)
        frame.coalesce(1).write.options(**self.options).parquet(str(path) + ".folder")
        (part,) = Path(str(path) + ".folder").glob("part-*.parquet")
        part.rename(path)
        part.with_name(f".{part.name}.crc").rename(path.with_name(f".{path.name}.crc"))


def decided(stream: DataFrame) -> DirectScan | str:
    """What the scan decides about a stream, with the settings of its session."""
    return found_or_reason(lambda: decide(plan_of_jvm(stream, columns=True), reader_settings(stream.sparkSession)))


def whole(branch: int, path: Path) -> FileRange:
    """The range of a whole file."""
    size = path.stat().st_size
    return FileRange(branch, str(path), 0, size, size)


def scanned(scan: DirectScan, paths: list[Path]) -> pa.Table:
    """What the tasks read of some files, all of the first branch."""
    batches = list(read_ranges(scan, [whole(0, path) for path in paths], ROW_GROUP_BYTES))
    fields = zip(scan.names, scan.types, strict=True)
    return pa.Table.from_batches(batches, pa.schema([(name, seen_type(kind)) for name, kind in fields]))


def by_spark(frame: DataFrame) -> pa.Table:
    """What tasks get of a batch DataFrame through the JVM."""
    return arrow_of(times_as_numbers(frame))


def bag(table: pa.Table) -> list[str]:
    """Rows as sorted texts, in which NaN equals NaN and 0.0 is not -0.0."""
    return sorted(repr(tuple(map(_exact, row.values()))) for row in table.to_pylist())


def _exact(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value
