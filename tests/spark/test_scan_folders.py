"""Folders of partitions, read by the tasks: the values in their names are those that Spark finds there."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException, SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.helpers.direct_runs import files, run, ways
from tests.helpers.left_to_spark import found_or_reason
from tests.helpers.parquet_files import ROW_GROUP_BYTES, bag, by_spark, decided
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import same
from tidestate.operators.spark.platforms import platform_of
from tidestate.operators.spark.scan.batch import InputFiles
from tidestate.operators.spark.scan.decide import DirectScan
from tidestate.operators.spark.scan.reader import divide, read_ranges
from tidestate.recovery.log.spark_log import SparkLog
from tidestate.statestore.storage.objects import Objects

pytestmark = [pytest.mark.spark, pytest.mark.classic("scan")]

NULL = "__HIVE_DEFAULT_PARTITION__"
_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"), min_size=1, max_size=6)
TEXTS_IN_NAMES = _TEXT | st.sampled_from(
    [NULL, "%41", "a%3Ab", "%", "a%", "%C3%A9", "é", "00", "a=b", "a b", "null", "_x"]
)
WHOLES = st.integers(-(2**34), 2**34).map(str) | st.sampled_from([NULL, "007", "-0", "+1", "1e3", "x", " 1"])
DAYS_IN_NAMES = st.dates(date(1, 1, 1), date(9999, 12, 31)).map(str) | st.sampled_from(
    [NULL, "2024-1-5", "2024-02-30"]
)
VALUES_IN_NAMES = {"string": TEXTS_IN_NAMES, "int": WHOLES, "bigint": WHOLES, "date": DAYS_IN_NAMES}


def put(folder: Path, values: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"v": pa.array(values, pa.int64()), "p": ["of the file"] * len(values)}), folder / "a.parquet"
    )


def both(spark: SparkSession, rows: DataFrame, folder: Path) -> tuple[pa.Table | str, pa.Table | None]:
    """One batch of a stream as the tasks read it, or why they do not; and as Spark does, None where it fails."""
    seen: list[pa.Table] = []
    query = rows.writeStream.foreachBatch(lambda batch, _: seen.append(by_spark(batch)))
    started = query.option("checkpointLocation", str(folder / "spark")).start()
    try:
        started.processAllAvailable()
    except Exception:
        seen = []
    finally:
        started.stop()
    spark_log = SparkLog(Objects(str(folder)))
    planned = spark_log.planned(str(spark_log.query_id()), 0).position.files
    scan = decided(rows)
    if not isinstance(scan, DirectScan):
        return scan, seen[0] if seen else None
    scanned = InputFiles(str(folder), platform_of(spark).file_stamp)
    found = found_or_reason(lambda: scanned.of(scan, planned))
    if isinstance(found, str):
        return found, seen[0] if seen else None
    read = [rows for task in divide(found) for rows in read_ranges(scan, task, ROW_GROUP_BYTES)]
    return pa.Table.from_batches(read), seen[0] if seen else None


@pytest.mark.long  # in every run: tests.operators.spark.test_scan_folders
@settings(max_examples=60)
@given(
    st.sampled_from([*VALUES_IN_NAMES]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(VALUES_IN_NAMES[kind], min_size=1))
    )
)
def test_values_in_names_are_those_of_spark(spark: SparkSession, example: tuple[str, list[str]]) -> None:
    """Or Spark reads the batch; if all values are plain, it does not."""
    kind, values = example
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, value in enumerate(dict.fromkeys(values)):
            put(folder / "in" / f"p={value}", [number])
        try:
            rows = spark.readStream.schema(f"v bigint, p {kind}").parquet(str(folder / "in"))
        except SparkRuntimeException:  # no stream begins over a name that is no value, such as p=x
            return
        found, expected = both(spark, rows, folder)
        if isinstance(found, str):
            assert "may not be a value of type" in found
            return
        assert expected is not None
        assert found.schema.types == expected.schema.types
        assert bag(found) == bag(expected)


def test_two_levels_inferred_and_filtered(spark: SparkSession, tmp_path: Path) -> None:
    for day in ("2024-01-05", "2024-01-06", NULL):
        for hour in ("7", "08", NULL):
            put(tmp_path / "k=1" / f"day={day}" / f"hour={hour}", [1, 2])
    schema = spark.readStream.schema("v bigint").parquet(str(tmp_path / "k=1"))
    assert schema.dtypes == [("v", "bigint"), ("day", "date"), ("hour", "int")]
    for number, condition in enumerate(
        ["v > 0", "hour = 8", "day > date'2024-01-05' or v = 2", "day is null and hour < 8"]
    ):
        rows = schema.filter(condition).select("hour", "v", sf.col("day").alias("d"))
        found, expected = both(spark, rows, tmp_path / str(number))
        assert isinstance(found, pa.Table)
        assert expected is not None
        assert found.num_rows > 0
        assert bag(found) == bag(expected)


LEFT_TO_SPARK: dict[str, tuple[list[str], str, str]] = {
    "a type": (["p=1.5"], "v bigint, p double", "the partition column p has the type double"),
    "another name": (["P=1"], "v bigint, p int", "a folder is called P=1, where the partition column p"),
    "a folder between": (["x/p=1"], "v bigint, p int", "not directly in the folders"),
    "deeper": (["p=1/x"], "v bigint, p int", "not directly in the folders"),
}


@pytest.mark.long  # in every run: tests.operators.spark.test_scan_folders
@pytest.mark.parametrize("name", LEFT_TO_SPARK)
def test_left_to_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    folders, schema, reason = LEFT_TO_SPARK[name]
    for folder in folders:
        put(tmp_path / "in" / folder, [1])
    rows = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    found, _ = both(spark, rows, tmp_path)
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.long
def test_a_job_over_partitions_by_day(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(3, 60)
    for number, table in enumerate(tables):
        write(tmp_path / "in" / f"k={'abc'[number]}", number, table.drop_columns("k"))

    def stream() -> Any:
        schema = "t timestamp, k string, v long, id long"
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))

    for way in (True, False):
        run(job(), [stream()], tmp_path / str(way), direct=way)
    same(tmp_path / "True", tmp_path / "False")
    assert ways(tmp_path / "True") == [(True, "")] * 3


@pytest.mark.long
def test_a_folder_of_another_column_that_comes_later(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", 1)
    started = job().on_spark(
        spark.readStream.schema("t timestamp, k string, v long, id long").parquet(str(tmp_path / "in")),
        checkpoint=tmp_path / "root",
        partitions=2,
    )
    query = started.start()
    query.processAllAvailable()
    (tmp_path / "in" / "k=a").mkdir()
    os.rename(tmp_path / "in" / "0000.parquet", tmp_path / "in" / "k=a" / "0001.parquet")
    with suppress(PySparkException):  # what Spark makes of the folder is Spark's
        query.processAllAvailable()
        query.stop()
    assert ways(tmp_path / "root")[0] == (True, "")
    assert all(not direct for direct, _ in ways(tmp_path / "root")[1:])
