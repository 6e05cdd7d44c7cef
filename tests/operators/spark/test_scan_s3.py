"""Files on S3 that tasks read themselves: as they were listed, by few requests, or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.left_to_spark import found_or_reason
from tests.servers.proxy import Fault, Proxy
from tests.servers.s3 import options_of, s3_endpoint, s3_front, s3_proxy, s3_root  # noqa: F401
from tidestate.operators.spark.scan import reader
from tidestate.operators.spark.scan.batch import InputFiles
from tidestate.operators.spark.scan.decide import Branch, DirectScan, FileColumn, NeedsJvmError, PathColumn
from tidestate.operators.spark.scan.reader import FileRange, divide, read_ranges
from tidestate.statestore.storage import options as storage_options
from tidestate.statestore.storage.foreign import bucket_and_key
from tidestate.statestore.storage.options import CarriedRoot

DAY = PathColumn("day", "int", 0)
STORED = pa.table({"a": range(50_000), "other": [f"{n:040d}" for n in range(50_000)]})
BUDGET = 1 << 24


class Input:
    """A folder on S3 with a file, as Spark has listed it."""

    def __init__(self, root: str, endpoint: str) -> None:
        self.bucket = root.split("/")[2]
        self.client = boto3.client("s3", endpoint_url=endpoint)
        self.key = "in/day=7/a b.parquet"
        self.url = f"s3a://{self.bucket}/in/day=7/a%20b.parquet"
        self.put(STORED)
        self.stamp = self._stamp()
        branch = Branch(0, (FileColumn("a", "bigint"), DAY), (), f"s3a://{self.bucket}/in/", (DAY,))
        self.scan = DirectScan(("a", "day"), ("bigint", "int"), (branch,), rebased=False)

    def put(self, rows: pa.Table, **how: Any) -> None:
        file = io.BytesIO()
        pq.write_table(
            rows, file, **({"row_group_size": 10_000, "compression": "none", "use_dictionary": False} | how)
        )
        self.client.put_object(Bucket=self.bucket, Key=self.key, Body=file.getvalue())

    def _stamp(self) -> tuple[int, int]:
        head = self.client.head_object(Bucket=self.bucket, Key=self.key)
        return int(head["LastModified"].timestamp()) * 1000, head["ContentLength"]

    def listed(self, changed_ms: int | None = None) -> dict[str, list[str]]:
        return {"0": [f"{self.url} {self.stamp[0] if changed_ms is None else changed_ms}"]}

    def found(self, root: str = "/root", **listed: Any) -> list[FileRange] | str:
        files = InputFiles(root, lambda _url: self.stamp)
        return found_or_reason(lambda: files.of(self.scan, self.listed(**listed)))

    def read(self, files: list[FileRange] | str) -> pa.Table:
        assert isinstance(files, list), files
        batches = [rows for task in divide(files) for rows in read_ranges(self.scan, task, BUDGET)]
        return pa.Table.from_batches(batches)


@pytest.fixture
def given(s3_root: str, s3_endpoint: str) -> Input:  # noqa: F811
    return Input(s3_root, s3_endpoint)


def test_rows_are_read_by_few_requests_and_only_of_their_columns(given: Input, s3_proxy: Proxy) -> None:  # noqa: F811
    rows = given.read(given.found())
    assert rows.to_pydict() == {"a": STORED["a"].to_pylist(), "day": [7] * 50_000}
    ranges = 1 + STORED.num_rows // 10_000
    assert (s3_proxy.count("HEAD"), s3_proxy.count("GET")) == (2, ranges)
    assert reader.TAIL_BYTES + 50_000 * 8 <= s3_proxy.bytes_read() < reader.TAIL_BYTES + 50_000 * 9


def test_a_small_file_is_read_by_one_request(given: Input, s3_proxy: Proxy) -> None:  # noqa: F811
    given.put(STORED.slice(0, 1000))
    given.stamp = given._stamp()
    assert given.read(given.found()).num_rows == 1000
    assert s3_proxy.count("GET") == 1


def test_what_was_read_is_let_go_of(given: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[reader.HeldRanges] = []
    made = reader.HeldRanges
    monkeypatch.setattr(reader, "HeldRanges", lambda *args: held.append(made(*args)) or held[-1])
    files = given.found()
    assert isinstance(files, list)
    batches = read_ranges(given.scan, files, BUDGET)
    most = [sum(len(data) for one in held for _, data in one._held) for _ in batches]
    assert 0 < max(most) < 2 * 10_000 * 8
    assert [one._held for one in held] == [[]]


@pytest.mark.parametrize("fault", ["before", "torn", (503, "SlowDown")], ids=str)
def test_what_may_pass_is_asked_for_again(given: Input, s3_proxy: Proxy, fault: Fault) -> None:  # noqa: F811
    files = given.found()
    s3_proxy.faults["GET"] = [None, fault, fault]
    assert given.read(files)["a"].equals(STORED["a"])
    assert s3_proxy.faults["GET"] == []


HARMS: dict[str, Callable[[Input], Any]] = {
    "overwritten": lambda given: given.put(STORED.set_column(0, "a", pa.array(range(50_000, 100_000)))),
    "deleted": lambda given: given.client.delete_object(Bucket=given.bucket, Key=given.key),
}


@pytest.mark.parametrize("name", HARMS)
def test_a_file_that_changes_after_it_was_looked_at_is_left_to_spark(given: Input, name: str) -> None:
    files = given.found()
    assert isinstance(files, list)
    batches = read_ranges(given.scan, files, BUDGET)
    assert next(batches).num_rows == 10_000
    HARMS[name](given)
    with pytest.raises(NeedsJvmError, match=r"pre-conditions|does not exist"):
        list(batches)
    with pytest.raises(NeedsJvmError):
        given.read(files)


def test_a_file_that_is_not_what_spark_has_listed_is_left_to_spark(given: Input, s3_proxy: Proxy) -> None:  # noqa: F811
    found = given.found(changed_ms=given.stamp[0] - 2000)
    assert found == f"a file was written after Spark has listed it: {given.key}"
    given.stamp = (given.stamp[0], 1)
    assert given.found() == f"the storage of s3://{given.bucket} that Spark reads has another {given.key}"
    s3_proxy.faults["HEAD"] = [(403, "AccessDenied")]
    found = given.found()
    assert isinstance(found, str)
    assert found.startswith("UnavailableError: ")


def test_options_of_the_root_are_those_of_files_in_its_bucket(
    given: Input,
    s3_endpoint: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(storage_options, "_given", {})
    options = options_of(s3_endpoint, "not-to-be-printed")
    files = given.found(root=CarriedRoot(f"s3://{given.bucket}/roots/1", options))
    assert given.read(files).num_rows == 50_000
    assert "not-to-be-printed" not in repr(files)
    refused = given.found(root=CarriedRoot("s3://elsewhere/roots/1", options))
    assert isinstance(refused, str)
    assert "Unavailable" in refused


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3a://b/k", ("s3://b", "k")),
        ("s3n://b/k", ("s3n://b", "k")),
        ("s3a://b/a%20b/%25", ("s3://b", "a b/%")),
        ("s3a://b/", None),
        ("s3a://u:p@b/k", None),
        ("file:/k", None),
    ],
)
def test_the_bucket_and_the_key_of_a_url(url: str, place: tuple[str, str] | None) -> None:
    assert bucket_and_key(url) == place
