"""Several accounts in one process, each with options of its own: a bucket of the same name on two servers."""

from __future__ import annotations

import pickle
import traceback
import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from tests.helpers.moves import fork
from tests.helpers.worked_example import STREAM, example
from tests.servers.s3 import (  # noqa: F401  (fixtures)
    make_bucket,
    options_of,
    s3_elsewhere,
    s3_endpoint,
    without_credentials,
)
from tidestate.operators import Root
from tidestate.operators.inspect.scan import panes_of_root
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.statestore.errors import TidestateError, UnavailableError, UsageError
from tidestate.statestore.storage import options as storage_options
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.options import given_options, root_with_options

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_credentials")]
SECRET = "Of-Nobody-aG3x/+Q"


@dataclass(frozen=True)
class Accounts:
    """A bucket on each of two servers, and how each is reached."""

    bucket: str
    first: dict[str, Any]
    second: dict[str, Any]

    def paths(self, options: dict[str, Any], root: str) -> list[str]:
        """What a server has below a root, asked without what this process was given."""
        found = Objects(root_with_options(root, options))
        return [*found.names(""), *found.names("manifests")]


@pytest.fixture
def accounts(s3_endpoint: str, s3_elsewhere: str) -> Accounts:  # noqa: F811
    bucket = f"twice-{uuid.uuid4().hex[:12]}"
    for endpoint in (s3_endpoint, s3_elsewhere):
        make_bucket(endpoint, bucket)
    return Accounts(f"s3://{bucket}", options_of(s3_endpoint, SECRET), options_of(s3_elsewhere, f"{SECRET}-2"))


def test_jobs_and_sinks_of_one_bucket_use_each_its_own(accounts: Accounts) -> None:
    left, right, panes = (f"{accounts.bucket}/{name}" for name in ("left", "right", "panes"))
    sink = ParquetSink(panes, storage_options=accounts.second)
    of_left = example("retracting").standalone(checkpoint=left, storage_options=accounts.first, sink=sink)
    of_right = example("retracting").standalone(checkpoint=right, storage_options=accounts.second)
    rows = of_left.run(STREAM, drain=True).num_rows
    assert of_right.run(STREAM, drain=True).num_rows == rows > 0
    there = [(root, bool(accounts.paths(options, root))) for root in (left, right, panes) for options in
             (accounts.first, accounts.second)]  # fmt: skip
    assert there == [(left, True), (left, False), (right, False), (right, True), (panes, False), (panes, True)]


def test_two_roots_of_one_url_use_each_its_own(accounts: Accounts) -> None:
    url = f"{accounts.bucket}/same"
    first, second = (Root(url, storage_options=options) for options in (accounts.first, accounts.second))
    example("retracting").standalone(checkpoint=url, storage_options=accounts.first).run(STREAM, drain=True)
    root_with_options(url, accounts.second)
    again = pickle.loads(pickle.dumps(first))
    assert first.panes().to_table() == again.at(first.manifest().id).panes().to_table()
    assert first.panes().to_table().num_rows > 0
    with pytest.raises(TidestateError, match="root"):
        second.panes()
    scan = pickle.loads(cloudpickle.dumps(panes_of_root(first.url, None)))
    root_with_options(url, accounts.second)
    assert pa.Table.from_batches(scan.batches()).num_rows == first.panes().to_table().num_rows


def test_a_root_that_none_of_several_was_given_for_is_refused(accounts: Accounts) -> None:
    root_with_options(f"{accounts.bucket}/a", accounts.first)
    assert given_options(f"s3a://{accounts.bucket[5:]}/other/") == accounts.first
    root_with_options(f"{accounts.bucket}/b", accounts.second)
    assert given_options(f"{accounts.bucket}/a/below") == accounts.first
    assert given_options(f"{accounts.bucket}/b/") == accounts.second
    for ask in (Objects, Root, lambda url: ParquetSink(url)):
        with pytest.raises(UsageError) as caught:
            ask(f"{accounts.bucket}/ab")
        assert caught.value.code == "storage-account"
        assert SECRET not in str(caught.value)
    assert Root(f"{accounts.bucket}/ab", storage_options={}).url.options == {}  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError, match="credentials"):
        Objects(root_with_options(f"{accounts.bucket}/ab", {})).names("")


def test_a_fork_is_read_with_the_options_of_its_own_root(accounts: Accounts) -> None:
    origin, copy = f"{accounts.bucket}/origin", f"{accounts.bucket}/copy"
    root_with_options(f"{accounts.bucket}/elsewhere", accounts.second)
    job = example("retracting").standalone(checkpoint=origin, storage_options=accounts.first)
    job.run(STREAM)
    root_with_options(copy, accounts.first)
    fork(origin, copy)
    sent = pickle.dumps(Root(copy, storage_options=accounts.first))
    storage_options._given.clear()
    received = pickle.loads(sent)
    storage_options._given[f"{accounts.bucket}/elsewhere"] = storage_options.GivenOptions(accounts.second)
    assert received.state().to_table().num_rows > 0
    assert received.verify(read_data=100.0).worst is None


def test_options_print_no_value(accounts: Accounts) -> None:
    root = root_with_options(f"{accounts.bucket}/a", accounts.first)
    objects = Objects(root)
    shown = [repr(root), str(root), repr(given_options(root)), f"{given_options(root)}", repr(vars(objects._storage))]
    assert not any(SECRET in text for text in shown)


@pytest.mark.parametrize("spelled", [SECRET, "Of-Nobody-aG3x%2F%2BQ"])
def test_no_traceback_of_a_library_quotes_one(
    spelled: str, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(root_with_options(f"{accounts.bucket}/a", accounts.first))

    def failing() -> None:
        try:
            raise KeyError(f"no account of {spelled}")
        except KeyError as cause:
            raise PermissionError(f"signed by {spelled}") from cause

    fs = objects._storage._fs()  # type: ignore[union-attr]
    for name in ("_cat_file", "_pipe_file", "cat_file", "pipe_file", "_lsdir", "_put_file", "create_bytes"):
        if hasattr(fs, name):
            monkeypatch.setattr(fs, name, lambda *_args, **_more: failing())
    for ask in (lambda: objects.read("x"), lambda: objects.put("x", b""), lambda: objects.create("x", b"id")):
        with pytest.raises(TidestateError) as caught:
            ask()
        lines = "".join(traceback.format_exception(caught.value)).splitlines()
        assert not any(word.lower() in line.lower() for line in lines for word in (SECRET, spelled))
