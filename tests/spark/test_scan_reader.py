"""The direct scan against Spark's own reader, on files of three writers: the same rows, in the same types."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.helpers.parquet_files import TYPES, VALUES, Written, bag, by_spark, decided, scanned
from tests.helpers.process import LONG
from tidestate.operators.spark.scan.decide import REBASE, DirectScan, NeedsJvmError
from tidestate.operators.spark.scan.reader import FileRange, read_ranges

pytestmark = [pytest.mark.spark, pytest.mark.classic("scan")]

ARROW_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "row_group_size": st.integers(1, 20),
        "data_page_size": st.sampled_from([1, 100]),
        "write_statistics": st.booleans(),
        "store_decimal_as_integer": st.booleans(),
        "dictionary_typed": st.booleans(),
        "store_schema": st.booleans(),
    },
)
SPARK_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd"]),
        "parquet.enable.dictionary": st.sampled_from(["true", "false"]),
        "parquet.writer.version": st.sampled_from(["v1", "v2"]),
    },
)
DUCKDB_OPTIONS = st.fixed_dictionaries({}, optional={"compression": st.sampled_from(["snappy", "gzip", "zstd"])})
OPTIONS = {"pyarrow": ARROW_OPTIONS, "spark": SPARK_OPTIONS, "duckdb": DUCKDB_OPTIONS}

LITERALS = {"date": st.dates(date(1600, 1, 1))}
"""The JVM takes no literal of a year before 1000, and an older one in the Julian calendar."""

Change = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Example:
    """The columns of the stream, the files, and what is done with the rows."""

    columns: dict[str, str]
    files: list[Written]
    changes: list[tuple[str, Change]]


@st.composite
def examples(draw: Any) -> Example:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4))
    columns = {f"Col{n}": kind for n, kind in enumerate(kinds)}
    files = draw(st.lists(written(columns), min_size=1, max_size=3))
    return Example(columns, files, draw(st.lists(changes(columns), max_size=2)))


@st.composite
def written(draw: Any, columns: dict[str, str]) -> Written:
    """A file that may lack columns, and have others in another order and case."""
    writer = draw(st.sampled_from(sorted(OPTIONS)))
    there = draw(st.lists(st.sampled_from(sorted(columns)), unique=True))
    rows = draw(st.integers(0, 30))
    case = draw(st.sampled_from([str, str.lower, str.upper]))
    values = {
        case(name): (columns[name], draw(st.lists(VALUES[columns[name]] | st.none(), min_size=rows, max_size=rows)))
        for name in there
    }
    return Written(writer, values, draw(OPTIONS[writer]), nested=draw(st.booleans()))


@st.composite
def changes(draw: Any, columns: dict[str, str]) -> tuple[str, Change]:
    """A projection or a filter; one that does not fit what is left has no effect."""
    name = draw(st.sampled_from(sorted(columns)))
    value = draw(LITERALS.get(columns[name], VALUES[columns[name]]))
    kind = draw(st.sampled_from(["select", "null", "not null", "<", ">=", "=", "!=", "in", "either"]))
    if columns[name] in ("float", "double", "binary") or columns[name].startswith("decimal"):
        kind = draw(st.sampled_from(["select", "null", "not null"]))
    if columns[name] == "boolean" and kind in ("<", ">=", "in"):
        kind = "="

    def change(frame: DataFrame) -> DataFrame:
        column, literal = sf.col(name), sf.lit(value)
        if name not in frame.columns or (kind == "select" and "constant" in frame.columns):
            return frame
        conditions: dict[str, Any] = {
            "null": column.isNull,
            "not null": column.isNotNull,
            "<": lambda: column < literal,
            ">=": lambda: literal <= column,
            "=": lambda: column == literal,
            "!=": lambda: column != literal,
            "in": lambda: column.isin([value]),
            "either": lambda: (column == literal) | column.isNull(),
        }
        if kind == "select":
            kept = [sf.col(one) for one in frame.columns if one != name]
            return frame.select(*kept, column.alias("again"), sf.lit("x").alias("constant"))
        return frame.filter(conditions[kind]())

    return f"{kind} {name} {value!r}", change


@pytest.fixture(scope="module", autouse=True)
def _no_old_calendars(spark: SparkSession) -> Iterator[None]:
    """As in Spark 4: by the default of 3.5 Spark reads files whose statistics do not rule out old dates."""
    spark.conf.set(REBASE, "CORRECTED")
    yield
    spark.conf.unset(REBASE)


@settings(max_examples=settings.default.max_examples if LONG else 4)
@given(examples())
def test_rows_and_types_are_those_of_spark(spark: SparkSession, example: Example) -> None:
    with tempfile.TemporaryDirectory() as name:
        event(check(spark, example, Path(name)))


def check(spark: SparkSession, example: Example, folder: Path) -> str:
    """Compare; what came of it."""
    paths = [folder / f"{number}.parquet" for number in range(len(example.files))]
    for file, path in zip(example.files, paths, strict=True):
        file.write(spark, path)
    schema = ", ".join(f"{name} {kind}" for name, kind in example.columns.items())
    stream = spark.readStream.schema(schema).parquet(str(folder))
    batch = spark.read.schema(schema).parquet(*map(str, paths))
    for _, change in example.changes:
        stream, batch = change(stream), change(batch)
    scan = decided(stream)
    assert isinstance(scan, DirectScan) or not certain(example), scan
    if not isinstance(scan, DirectScan):
        return f"not decided: {scan}"
    if has_old_times(example):
        with pytest.raises(NeedsJvmError, match="old calendar"):
            scanned(scan, paths)
        return "old times"
    found, expected = scanned(scan, paths), by_spark(batch)
    assert found.schema.names == expected.schema.names
    assert [field.type for field in found.schema] == [field.type for field in expected.schema]
    assert bag(found) == bag(expected)
    return "compared"


def certain(example: Example) -> bool:
    """Whether the plan must be supported: a literal in Python may have a wider type than its column."""
    return not example.changes


def has_old_times(example: Example) -> bool:
    """Whether a file has times before 1901 as INT96, as which Spark writes them."""
    times = {name.lower() for name, kind in example.columns.items() if kind == "timestamp"}
    columns = [
        values
        for file in example.files
        for name, (_, values) in file.rows.items()
        if file.writer == "spark" and name.lower() in times
    ]
    return any(value is not None and value.year < 1901 for values in columns for value in values)


def test_empty_tables(spark: SparkSession, tmp_path: Path) -> None:
    files = [Written("pyarrow", {"a": ("bigint", [])}), Written("pyarrow", {"b": ("bigint", [1, 2])})]
    assert check(spark, Example({"a": "bigint"}, files, []), tmp_path) == "compared"


def test_a_file_in_ranges_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(1000)}), path, row_group_size=30)
    scan = decided(spark.readStream.schema("a bigint").parquet(str(tmp_path)))
    assert isinstance(scan, DirectScan)
    size = path.stat().st_size
    for step in (size, size // 3, 100, 7_000):
        ranges = [FileRange(0, str(path), at, min(at + step, size), size) for at in range(0, size, step)]
        batches = [batch for one in ranges for batch in read_ranges(scan, [one], 1 << 20)]
        assert pa.Table.from_batches(batches)["a"].to_pylist() == list(range(1000))
