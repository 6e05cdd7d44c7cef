"""Which files need the JVM, by their footers; and files that are damaged, changed or gone."""

from __future__ import annotations

import zlib
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidestate.operators.spark.scan import reader
from tidestate.operators.spark.scan.decide import Branch, DirectScan, FileColumn, NeedsJvmError
from tidestate.operators.spark.scan.reader import FileRange, read_ranges

NEW = {"org.apache.spark.version": "4.0.0"}
OLD = [date(1850, 1, 1), None]


def scan_of(*columns: tuple[str, str], rebased: bool = False) -> DirectScan:
    values = tuple(FileColumn(*column) for column in columns)
    names, types = zip(*columns, strict=True)
    return DirectScan(names, types, (Branch(0, values),), rebased)


def read(path: Path, *columns: tuple[str, str], rebased: bool = False, most: int = 1 << 20) -> pa.Table:
    size = path.stat().st_size
    ranges = [FileRange(0, str(path), 0, size, size)]
    return pa.Table.from_batches(read_ranges(scan_of(*columns, rebased=rebased), ranges, most))


def write(path: Path, kind: pa.DataType, values: list[Any], name: str = "a", **options: Any) -> Path:
    facts = options.pop("facts", None)
    table = pa.table({name: pa.array(values, kind)}).replace_schema_metadata(facts)
    pq.write_table(table, path / "a.parquet", **options)
    return path / "a.parquet"


@pytest.mark.parametrize(
    ("kind", "values", "expected", "options", "reason"),
    [
        (pa.timestamp("us"), [datetime(2024, 1, 1)], "timestamp", {"use_deprecated_int96_timestamps": True}, "INT96"),
        (pa.timestamp("ms", "UTC"), [datetime(2024, 1, 1)], "timestamp", {}, "timeUnit=milliseconds"),
        (pa.timestamp("ns", "UTC"), [datetime(2024, 1, 1)], "timestamp", {}, "timeUnit=nanoseconds"),
        (pa.timestamp("us"), [datetime(2024, 1, 1)], "timestamp", {}, "isAdjustedToUTC=false"),
        (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1)], "timestamp_ntz", {}, "isAdjustedToUTC=true"),
        (pa.int32(), [1], "bigint", {}, "INT32 None, not bigint"),
        (pa.int64(), [1], "int", {}, "INT64 None, not int"),
        (pa.int32(), [1], "smallint", {}, "not smallint"),
        (pa.uint8(), [1], "smallint", {}, "isSigned=false"),
        (pa.uint64(), [1], "bigint", {}, "isSigned=false"),
        (pa.float32(), [1], "double", {}, "FLOAT None, not double"),
        (pa.float16(), [1], "float", {}, "Float16"),
        (pa.binary(), [b"x"], "string", {}, "BYTE_ARRAY None, not string"),
        (pa.string(), ["x"], "binary", {}, "String, not binary"),
        (pa.binary(3), [b"xyz"], "binary", {}, "FIXED_LEN_BYTE_ARRAY"),
        (pa.decimal128(7, 2), [Decimal("1.23")], "decimal(7,3)", {}, "scale=2"),
        (pa.decimal128(7, 2), [Decimal("1.23")], "decimal(9,2)", {}, "precision=7"),
        (pa.duration("us"), [1], "bigint", {}, "written as duration"),
        (pa.null(), [None], "int", {}, "Null, not int"),
        (pa.list_(pa.int64()), [[1]], "bigint", {}, "nested"),
        (pa.struct([("b", pa.int64())]), [{"b": 1}], "bigint", {}, "nested"),
        (pa.int64(), [1], "bigint", {"compression": "brotli"}, "BROTLI"),
        (pa.int64(), [1], "bigint", {"compression": "lz4"}, "LZ4"),
        (
            pa.float32(),
            [1],
            "float",
            {"use_byte_stream_split": True, "use_dictionary": False},
            "BYTE_STREAM_SPLIT",
        ),
    ],
)
def test_a_footer_that_needs_the_jvm(
    tmp_path: Path, kind: pa.DataType, values: list[Any], expected: str, options: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path, kind, values, **options)
    with pytest.raises(NeedsJvmError, match=reason):
        read(path, ("a", expected))


def test_names_in_another_case_and_columns_that_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path, pa.int64(), [1, 2], name="Amount")
    found = read(path, ("aMOUNT", "bigint"), ("other", "date"))
    assert found.to_pydict() == {"aMOUNT": [1, 2], "other": [None, None]}
    assert found.schema.types == [pa.int64(), pa.date32()]


@pytest.mark.parametrize(
    ("names", "wanted", "reason"),
    [
        (["a", "A"], "a", "there twice"),
        (["a.b"], "a", "nested or there twice"),
        (["a"], "a.b", "dot in its name"),
        (["straße"], "STRASSE", "is written straße"),
        (["É"], "é", "is written É"),
    ],
)
def test_names_that_are_not_certain(tmp_path: Path, names: list[str], wanted: str, reason: str) -> None:
    pq.write_table(pa.table([pa.array([1])] * len(names), names=names), tmp_path / "a.parquet")
    with pytest.raises(NeedsJvmError, match=reason):
        read(tmp_path / "a.parquet", (wanted, "bigint"))


@pytest.mark.parametrize(
    ("facts", "rebased", "readable"),
    [
        (None, False, True),
        (None, True, False),
        (NEW, True, True),
        ({**NEW, "org.apache.spark.legacyDateTime": ""}, False, False),
        ({"org.apache.spark.version": "2.4.8"}, False, False),
    ],
)
def test_dates_of_the_old_calendar(
    tmp_path: Path, facts: dict[str, str] | None, rebased: bool, readable: bool
) -> None:
    path = write(tmp_path, pa.date32(), OLD, facts=facts)
    if readable:
        assert read(path, ("a", "date"), rebased=rebased)["a"].to_pylist() == OLD
    else:
        with pytest.raises(NeedsJvmError, match="old calendar"):
            read(path, ("a", "date"), rebased=rebased)
    for values in ([date(1901, 1, 1)], [None]):
        path = write(tmp_path, pa.date32(), values, facts=facts)
        assert read(path, ("a", "date"), rebased=rebased)["a"].to_pylist() == values
    path = write(tmp_path, pa.date32(), [date(2024, 1, 1)], facts=facts, write_statistics=False)
    if not readable:
        with pytest.raises(NeedsJvmError, match="old calendar"):
            read(path, ("a", "date"), rebased=rebased)


@pytest.mark.parametrize(
    ("values", "writer", "reason"),
    [
        ([datetime(1901, 1, 1), None, datetime(2024, 1, 1, microsecond=1)], "parquet-mr version 1.16.0", None),
        ([None], "parquet-mr version 1.16.0", None),
        ([datetime(1900, 12, 31, 23, 59)], "parquet-mr version 1.16.0", "has dates of the old calendar"),
        ([datetime(2024, 1, 1)], "impala version 4", "INT96"),
    ],
)
def test_times_as_spark_writes_them_by_default(
    tmp_path: Path, values: list[Any], writer: str, reason: str | None
) -> None:
    path = write(tmp_path, pa.timestamp("us"), values, facts=NEW, use_deprecated_int96_timestamps=True)
    data, own = path.read_bytes(), pq.ParquetFile(path).metadata.created_by.encode()
    path.write_bytes(data.replace(own, writer.encode().ljust(len(own))))
    if reason is not None:
        with pytest.raises(NeedsJvmError, match=reason):
            read(path, ("a", "timestamp"))
        return
    found = read(path, ("a", "timestamp"))["a"].cast(pa.timestamp("us")).to_pylist()
    assert found == values


def test_a_row_group_beyond_the_budget(tmp_path: Path) -> None:
    path = write(tmp_path, pa.int64(), list(range(10_000)), use_dictionary=False, compression="none")
    with pytest.raises(NeedsJvmError, match="too large for the memory budget"):
        read(path, ("a", "bigint"), most=10_000)
    assert read(path, ("b", "bigint"), most=10_000).num_rows == 10_000


def test_damaged_changed_and_missing_files_are_left_to_spark(tmp_path: Path) -> None:
    path = write(tmp_path, pa.int64(), list(range(1000)))
    data, size = path.read_bytes(), path.stat().st_size
    for damaged in (data[:-8], b"", b"PARE" + data[4:-4] + b"PARE", data[:-4] + b"xxxx"):
        path.write_bytes(damaged)
        with pytest.raises(NeedsJvmError):
            read(path, ("a", "bigint"))
        with pytest.raises(NeedsJvmError, match="has changed"):
            list(read_ranges(scan_of(("a", "bigint")), [FileRange(0, str(path), 0, size, size + 1)], 1 << 20))
    path.unlink()
    with pytest.raises(NeedsJvmError, match="FileNotFoundError"):
        list(read_ranges(scan_of(("a", "bigint")), [FileRange(0, str(path), 0, size, size)], 1 << 20))


def test_no_row_is_returned_before_all_files_of_the_task_are_known_to_be_readable(tmp_path: Path) -> None:
    """A task that fails after some rows would have given them twice, once Spark reads the files."""
    for name, values in (("good", [1, 2]), ("bad", ["x"])):
        pq.write_table(pa.table({"a": values}), tmp_path / name)
    sizes = [(str(tmp_path / name), (tmp_path / name).stat().st_size) for name in ("good", "bad")]
    ranges = [FileRange(0, path, 0, size, size) for path, size in sizes]
    assert next(read_ranges(scan_of(("a", "bigint")), ranges[:1], 1 << 20)).num_rows == 2
    with pytest.raises(NeedsJvmError, match="not bigint"):
        next(read_ranges(scan_of(("a", "bigint")), ranges, 1 << 20))


def test_hadoop_s_checksums_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK", 1 << 16)  # of the file some blocks are read
    path = write(tmp_path, pa.int64(), list(range(100_000)), use_dictionary=False, compression="none")
    data = path.read_bytes()
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    path.with_name(".a.parquet.crc").write_bytes(b"crc\x00" + (512).to_bytes(4, "big") + sums)
    assert read(path, ("a", "bigint"), most=1 << 30).num_rows == 100_000
    for place in (700, len(data) // 2, len(data) - 200):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(NeedsJvmError):
            read(path, ("a", "bigint"), most=1 << 30)
    path.write_bytes(data)
    path.with_name(".a.parquet.crc").write_bytes(b"abc")
    with pytest.raises(NeedsJvmError, match="damaged"):
        read(path, ("a", "bigint"))
