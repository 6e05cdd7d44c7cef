"""HDFS over loopback: Hadoop's own small cluster, a name node and a data node in one JVM.

Import ``hdfs_server`` into a test module, and ``hdfs_root`` for a root in it. The jars are those of Maven, 89 MB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.kafka import UnavailableError, fetched
from tests.servers.ports import free_port
from tools.java import java_home

_HADOOP = "3.4.2"
_JARS = (
    *(f"org.apache.hadoop:hadoop-client-{part}:{_HADOOP}" for part in ("minicluster", "api", "runtime")),
    "org.slf4j:slf4j-api:1.7.36",
    "commons-logging:commons-logging:1.2",
    "junit:junit:4.13.2",
    "org.hamcrest:hamcrest-core:1.3",
)
_START_SECONDS = 60


class HdfsServer:
    """A cluster of its own; its files are gone with it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        jars, details, self.port = fetched(_JARS, folder), folder / "details.json", free_port()
        java = [f"{java_home()}/bin/java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java += [f"-Dtest.build.data={folder / 'data'}", "-cp", os.pathsep.join(jars)]
        java += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"]
        java += ["-nnport", str(self.port), "-writeDetails", str(details), "-D", "dfs.replication=1"]
        java += ["-D", "dfs.namenode.redundancy.considerLoad=false"]  # else fifty writers are too many for one node
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(java, cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log)
        until = time.monotonic() + _START_SECONDS
        while not details.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise UnavailableError((folder / "log").read_text()[-2000:])
            time.sleep(0.1)

    def suspend(self) -> None:
        """Neither name node nor data node answers, until `resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it, with all of its files."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """A cluster that lives as long as the session."""
    try:
        server = HdfsServer(tmp_path_factory.mktemp("hdfs") / "cluster")
    except UnavailableError as error:
        pytest.skip(f"HDFS could not be started: {error}")
    yield server
    server.stop()


@pytest.fixture
def hdfs_root(hdfs_server: HdfsServer) -> str:
    """A folder that is not there yet."""
    return f"hdfs://127.0.0.1:{hdfs_server.port}/roots/{uuid.uuid4().hex[:12]}"
