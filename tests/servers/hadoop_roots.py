"""Storage of roots that Spark reaches by a client of Hadoop, with the settings that this takes.

Import ``spark_storage`` into a test module, with the fixtures of servers that it asks for.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.servers.azure import ACCOUNT, ACCOUNT_KEY, azure_endpoint, connection_string, make_azure_container
from tests.servers.fuse import mounted_folder
from tests.servers.gcs import gcs_endpoint, google_key, make_gcs_bucket
from tests.servers.hdfs import HdfsServer, hdfs_server
from tests.servers.packages import HADOOP
from tests.servers.tls import tls_before
from tests.servers.volumes import TOKEN, VOLUME, FilesApi, files_server
from tidestate.statestore.storage.dialects.azure import AZURE
from tidestate.statestore.storage.dialects.gcs import GCS

__all__ = ["SparkStorage", "azure_endpoint", "files_server", "gcs_endpoint", "hdfs_server", "spark_storage"]


@dataclass(frozen=True)
class SparkStorage:
    """Where a test has its roots, and how Spark gets there."""

    name: str
    url: str
    settings: dict[str, str]
    """Of Spark."""


def _hdfs(request: pytest.FixtureRequest, _stack: ExitStack, _environment: pytest.MonkeyPatch) -> SparkStorage:
    server: HdfsServer = request.getfixturevalue("hdfs_server")
    return SparkStorage("hdfs", f"hdfs://127.0.0.1:{server.port}/roots", {})


def _settings(printed: Iterable[str], words: dict[str, str]) -> dict[str, str]:
    """What ``tidestate doctor`` prints for this kind of storage, filled in."""
    filled = (text.format(hadoop=HADOOP, account=f"{ACCOUNT}.dfs.core.windows.net") for text in printed)
    pairs = (text.partition("=") for text in filled)
    return {name: words.get(value, value) for name, _, value in pairs}


def _gcs(request: pytest.FixtureRequest, stack: ExitStack, environment: pytest.MonkeyPatch) -> SparkStorage:
    endpoint, bucket = str(request.getfixturevalue("gcs_endpoint")), f"bucket-{uuid.uuid4().hex[:12]}"
    make_gcs_bucket(endpoint, bucket)
    environment.setenv("STORAGE_EMULATOR_HOST", endpoint)
    environment.setenv("GOOGLE_CLOUD_PROJECT", "tests")
    environment.setenv("NO_GCE_CHECK", "true")
    key = stack.enter_context(google_key(request.getfixturevalue("tmp_path_factory").mktemp("google")))
    settings = _settings(GCS.spark_settings, {"KEY.json": str(key)})
    settings["spark.hadoop.fs.gs.storage.root.url"] = f"{endpoint}/"
    # Google's connector does not ask where the key says.
    settings["spark.hadoop.google.cloud.token.server.url"] = json.loads(key.read_text())["token_uri"]
    return SparkStorage("gcs", f"gs://{bucket}/roots", settings)


def _azure(request: pytest.FixtureRequest, stack: ExitStack, environment: pytest.MonkeyPatch) -> SparkStorage:
    """Azurite has no endpoint of the Data Lake, so the connector speaks to that of blobs, which it can from Hadoop
    3.4.2 on.
    """
    endpoint, container = str(request.getfixturevalue("azure_endpoint")), f"container-{uuid.uuid4().hex[:12]}"
    make_azure_container(endpoint, container)
    folder = request.getfixturevalue("tmp_path_factory").mktemp("tls")
    front = stack.enter_context(tls_before(endpoint, folder))
    environment.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(endpoint))
    environment.setenv("JAVA_TOOL_OPTIONS", front.java)
    settings = _settings(AZURE.spark_settings, {"KEY": ACCOUNT_KEY}) | {
        "spark.hadoop.fs.azure.abfs.endpoint": f"127.0.0.1:{front.port}",
        "spark.hadoop.fs.azure.account.hns.enabled": "false",
        "spark.hadoop.fs.azure.fns.account.service.type": "BLOB",
        "spark.hadoop.fs.azure.ssl.channel.mode": "Default_JSSE",
    }
    return SparkStorage("azure", f"abfs://{container}@{ACCOUNT}.dfs.core.windows.net/roots", settings)


def _volumes(request: pytest.FixtureRequest, stack: ExitStack, environment: pytest.MonkeyPatch) -> SparkStorage:
    """Spark has no ``dbfs:`` but that of Databricks. Hadoop's file system of mounts stands for it, over the folder
    that our server of the Files API serves, mounted without hard links.
    """
    server: FilesApi = request.getfixturevalue("files_server")
    folder = request.getfixturevalue("tmp_path_factory").mktemp("volumes")
    server.reset()
    server.keep_in(stack.enter_context(mounted_folder(folder, "volume", "fuse.volumes")))
    stack.callback(server.reset)
    environment.setenv("DATABRICKS_HOST", server.url)
    environment.setenv("DATABRICKS_TOKEN", TOKEN)
    schemes = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    settings = {
        "spark.hadoop.fs.dbfs.impl": schemes,
        "spark.hadoop.fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        f"spark.hadoop.fs.viewfs.mounttable.default.link.{VOLUME}": f"file://{folder / 'mount-0'}",
    }
    return SparkStorage("volumes", f"{VOLUME}/roots", settings)


_SERVICES: dict[str, Callable[[pytest.FixtureRequest, ExitStack, pytest.MonkeyPatch], SparkStorage]] = {
    "hdfs": _hdfs,
    "gcs": _gcs,
    "azure": _azure,
    "volumes": _volumes,
}


@pytest.fixture(scope="module", params=sorted(_SERVICES))
def spark_storage(request: pytest.FixtureRequest) -> Iterator[SparkStorage]:
    """One of each kind; the environment, which child processes inherit, leads there."""
    with pytest.MonkeyPatch.context() as environment, ExitStack() as stack:
        yield _SERVICES[str(request.param)](request, stack, environment)
