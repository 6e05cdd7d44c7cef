"""Options given in Python for a root: they reach its storage from each process of a job, and are seen nowhere."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from tests.helpers.moves import fork
from tests.helpers.worked_example import STREAM, example
from tests.servers.clouds import Cloud
from tidestate.operators import Root
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.storage import options as storage_options
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.options import root_with_options

pytestmark = pytest.mark.slow
SECRET = "a-secret-of-nobody"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_options, "_given", {})


@pytest.fixture
def given(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options by which the bucket is reached; the environment does not lead there any more."""
    environment = dict(cloud.service.variables(cloud.proxy.url))
    for name in environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    found: dict[str, dict[str, Any]] = {
        "s3": {"endpoint_url": cloud.proxy.url, "key": "testing", "secret": SECRET},
        "gcs": {"endpoint_url": cloud.proxy.url, "token": "anon", "project": "tests"},
        "azure": {"connection_string": environment.get("AZURE_STORAGE_CONNECTION_STRING")},
    }
    return found[cloud.name]


def test_a_job_its_readers_and_its_sink_reach_the_root_by_them(cloud: Cloud, given: dict[str, Any]) -> None:
    sink = ParquetSink(f"{cloud.root}-panes", storage_options=given)
    job = example("retracting").standalone(checkpoint=cloud.root, storage_options=given, sink=sink)
    panes = job.run(STREAM, drain=True)
    assert Root(cloud.root, storage_options=given).panes().to_table().num_rows == panes.num_rows > 0
    assert len(Objects(f"{cloud.root}-panes").names("")) > 0
    # The fork names the original in its marker, and the original names the fork in a pin.
    fork(cloud.root, f"{cloud.root}-fork")
    assert Root(f"{cloud.root}-fork").panes().to_table().num_rows == 0


def test_they_go_to_other_processes_and_are_seen_nowhere(cloud: Cloud, given: dict[str, Any]) -> None:
    root = Root(cloud.root, storage_options=given)
    example("retracting").standalone(checkpoint=cloud.root).run(STREAM, drain=True)
    scan = root.panes()
    sent = pickle.dumps([root.url, Objects(cloud.root).root, copy.copy(root)])
    secrets = [
        value for value in given.values() if isinstance(value, str) and value not in (cloud.proxy.url, "tests")
    ]
    for text in (str(root), repr(root), root.url, f"{scan}", repr(Objects(cloud.root).root)):
        assert not any(secret in text for secret in secrets)
    for name in Objects(cloud.root).names("manifests"):
        assert not any(secret.encode() in Objects(cloud.root).read(f"manifests/{name}") for secret in secrets)
    storage_options._given.clear()
    with pytest.raises(TidestateError):
        Objects(cloud.root).read("tidestate.json")
    pickle.loads(sent)
    assert Objects(cloud.root).exists("tidestate.json")


def test_an_error_quotes_none_of_them(cloud: Cloud, given: dict[str, Any]) -> None:
    root_with_options(cloud.root, {**given, "note": SECRET})
    cloud.proxy.expired = cloud.service.codes["forbidden"]
    refusal = cloud.proxy.refusal
    try:
        cloud.proxy.refusal = lambda status, _code: refusal(status, SECRET)
        with pytest.raises(TidestateError) as caught:
            Objects(cloud.root).read("a")
    finally:
        cloud.proxy.refusal = refusal
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("root", ["/data/root", "file:///data/root"])
def test_a_local_root_takes_none(root: str) -> None:
    with pytest.raises(UsageError) as caught:
        root_with_options(root, {"key": SECRET})
    assert caught.value.code == "storage-options"
    assert SECRET not in str(caught.value)
