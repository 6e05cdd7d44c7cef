"""What the names of folders say of partition columns, and which names are left to Spark; and where files are, that
tasks read.
"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.left_to_spark import found_or_reason
from tidestate.operators.spark.scan.batch import InputFiles
from tidestate.operators.spark.scan.decide import (
    Branch,
    Condition,
    DirectScan,
    FileColumn,
    NeedsJvmError,
    PathColumn,
    PathValue,
)
from tidestate.operators.spark.scan.folders import NULL, path_values
from tidestate.operators.spark.scan.reader import FileRange, read_ranges
from tidestate.recovery.log.spark_log import file_url


def value_of(folder: str, kind: str) -> PathValue:
    (value,) = path_values(f"/in/{folder}/a.parquet", "/in", (PathColumn("p", kind, 0),))
    return value


@pytest.mark.parametrize(
    ("folder", "kind", "value"),
    [
        ("p=abc", "string", "abc"),
        ("p=a%3Ab%2fc", "string", "a:b/c"),
        ("p=é=é", "string", "é=é"),
        ("p=007", "string", "007"),
        ("p=null", "string", "null"),
        ("p=007", "int", 7),
        ("p=-2147483648", "int", -(2**31)),
        ("p=2147483648", "bigint", 2**31),
        ("p=2024-02-29", "date", (date(2024, 2, 29) - date(1970, 1, 1)).days),
        *((f"p={NULL}", kind, None) for kind in ("string", "int", "bigint", "date")),
    ],
)
def test_a_value(folder: str, kind: str, value: PathValue) -> None:
    assert value_of(folder, kind) == value


@pytest.mark.parametrize(
    ("path", "kind", "reason"),
    [
        ("/in/p=/a", "string", "may not be a value"),
        ("/in/p=%/a", "string", "may not be a value"),
        ("/in/p=a%4/a", "string", "may not be a value"),
        ("/in/p=%C3%A9/a", "string", "may not be a value"),
        ("/in/p=%zz/a", "string", "may not be a value"),
        ("/in/p=2147483648/a", "int", "may not be a value"),
        ("/in/p=+1/a", "int", "may not be a value"),
        ("/in/p=1.0/a", "bigint", "may not be a value"),
        ("/in/p=١/a", "int", "may not be a value"),
        ("/in/p=2024-1-5/a", "date", "may not be a value"),
        ("/in/p=2024-02-30/a", "date", "may not be a value"),
        ("/in/p=0000-01-01/a", "date", "may not be a value"),
        ("/in/p=true/a", "boolean", "may not be a value"),
        ("/in/P=1/a", "int", "is called P=1"),
        ("/in/%70=1/a", "int", "is called %70=1"),
        ("/in/p/a", "int", "is called p"),
        ("/in/a", "int", "not directly"),
        ("/in/p=1/x/a", "int", "not directly"),
        ("/other/p=1/a", "int", "not directly"),
    ],
)
def test_a_name_that_is_left_to_spark(path: str, kind: str, reason: str) -> None:
    with pytest.raises(NeedsJvmError, match=reason):
        path_values(path, "/in/", (PathColumn("p", kind, 0),))


FOLDER, V = PathColumn("p", "int", 0), FileColumn("v", "bigint")


def scan_of(folder: Path, *filters: Condition) -> DirectScan:
    branch = Branch(0, (V, FOLDER), filters, str(folder), (FOLDER,))
    return DirectScan(("v", "p"), ("bigint", "int"), (branch,), rebased=False)


def listed(*paths: Path) -> dict[str, list[str]]:
    return {"0": [f"{file_url(path)} {int(path.stat().st_mtime * 1000)}" for path in paths]}


def never(url: str) -> tuple[int, int]:
    raise AssertionError(url)


def test_rows_have_the_values_of_their_folders_and_others_are_not_opened(tmp_path: Path) -> None:
    paths = [tmp_path / f"p={text}" / "a.parquet" for text in ("1", "2", NULL)]
    for path in paths:
        path.parent.mkdir()
        pq.write_table(pa.table({"p": ["x"], "v": [5]}), path)
    files = InputFiles(str(tmp_path / "root"), never)
    found = files.of(scan_of(tmp_path), listed(*paths))
    rows = pa.Table.from_batches(read_ranges(scan_of(tmp_path), found, 1 << 20))
    assert rows.sort_by("p").to_pydict() == {"v": [5, 5, 5], "p": [1, 2, None]}
    paths[0].write_bytes(b"")
    not_two = scan_of(tmp_path, Condition("<", column=FOLDER, values=(2,)), Condition("=", column=V, values=(5,)))
    assert found_or_reason(lambda: files.of(not_two, listed(*paths))) == "no file of the batch has rows"
    two = files.of(scan_of(tmp_path, Condition("=", column=FOLDER, values=(2,))), listed(*paths))
    size = os.stat(paths[1]).st_size
    assert two == [FileRange(0, str(paths[1]), 0, size, size, values=(2,))]


def test_folders_with_values_of_no_column_are_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "p=1" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"v": [5]}), path)
    plain = DirectScan(("v",), ("bigint",), (Branch(0, (V,)),), rebased=False)
    files = InputFiles(str(tmp_path / "root"), never)
    assert (
        found_or_reason(lambda: files.of(plain, listed(path)))
        == "the files lie in folders with = in the name, which may be partitions"
    )


def test_other_storage_is_left_to_spark() -> None:
    files, scan = InputFiles("/root", never), DirectScan(("v",), ("bigint",), (Branch(0, (V,)),), rebased=False)
    for url, reason in (
        ("hdfs://name/in/a.parquet 1", "tasks do not read files of hdfs://"),
        ("wasb://in@account/a.parquet 1", "the files are at wasb:"),
        ("hdfs:/in/a.parquet 1", "the files are at hdfs:"),
    ):
        assert found_or_reason(lambda url=url: files.of(scan, {"0": [url]})) == reason  # type: ignore[misc]
