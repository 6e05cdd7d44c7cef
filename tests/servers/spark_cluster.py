"""A Spark standalone cluster over loopback: a master, and a worker on each of two addresses, as if they were hosts.

Each worker has its own folders for shuffles, temporary files and executors. Two cores each, so that two drivers find
room; a driver takes one executor of one core on each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark

from tests.helpers.checkout import ROOT
from tests.servers.ports import free_port
from tools.java import brief_options, java_home, launcher_options

HOSTS = ("127.0.0.1", "127.0.0.2")
SPARK = Path(pyspark.__file__).parent
WAIT_S = 120
_UNTIL_INPUT_ENDS = '"$@" & exec >&- 2>&-; read -r _; kill -9 $!'
_EXECUTOR = "CoarseGrainedExecutorBackend"


def until(found: Callable[[], Any], what: str) -> Any:
    """What ``found`` returns, as soon as that is true."""
    end = time.monotonic() + WAIT_S
    while not (value := found()):
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        time.sleep(0.02)
    return value


def commands() -> dict[int, tuple[int, str]]:
    """All processes: the parent and the command line of each."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        found[int(entry.name)] = (parent, line)
    return found


def below(pid: int) -> Iterator[int]:
    """A process, and all that descend from it."""
    everything = commands()
    found = {pid}
    yield pid
    while new := {one for one, (parent, _) in everything.items() if parent in found} - found:
        found |= new
        yield from new


def executor_of(pid: int) -> int:
    """The Java of the executor that a Python process belongs to."""
    everything = commands()
    while _EXECUTOR not in everything[pid][1]:
        pid = everything[pid][0]
    return pid


class Server:
    """A Java of Spark's that ends with this process, however that ends."""

    def __init__(self, folder: Path, main: str, *arguments: str, **environment: str) -> None:
        self.log = folder / f"{main.rpartition('.')[2]}.log"
        own = {"JAVA_HOME": java_home(), "SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": "256m"}
        own |= {"SPARK_DAEMON_JAVA_OPTS": brief_options(), "SPARK_LAUNCHER_OPTS": launcher_options()}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", str(SPARK / "bin" / "spark-class"), main, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **own, **environment},
                cwd=folder,
            )

    def processes(self) -> list[int]:
        return list(below(self._process.pid))

    def kill(self) -> None:
        """SIGKILL to it and to all that it has started, itself first: it restarts an executor that ends."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.communicate()


class SparkCluster:
    """Master and workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        port, ui = free_port(), free_port()
        self.url, self._ui = f"spark://{HOSTS[0]}:{port}", f"http://{HOSTS[0]}:{ui}/json/"
        at = ["--host", HOSTS[0], "--port", str(port), "--webui-port", str(ui)]
        self._master = Server(folder, "org.apache.spark.deploy.master.Master", *at, SPARK_LOCAL_IP=HOSTS[0])
        until(self._answers, "the master")
        self._workers = {host: self._worker(host) for host in HOSTS}
        self._are_there(HOSTS)

    def temporary(self, host: str) -> Path:
        """The temporary folder of a host, where caches of state lie."""
        return self.folder / host / "tmp"

    def executors(self, host: str) -> list[int]:
        """The Javas of the executors on a host."""
        everything = commands()
        return [pid for pid in self._workers[host].processes() if _EXECUTOR in everything.get(pid, (0, ""))[1]]

    def of_executor(self, pid: int) -> tuple[str, int]:
        """The host and the executor that a Python process belongs to."""
        for host in HOSTS:
            for executor in self.executors(host):
                if pid in below(executor):
                    return host, executor
        raise AssertionError(f"{pid} belongs to no executor")

    def kill_host(self, host: str) -> None:
        """Worker, executors and Python: nothing of it remains but its folders."""
        self._workers[host].kill()

    def start_host(self, host: str) -> None:
        self._workers[host] = self._worker(host)
        self._are_there(HOSTS)

    def stop(self) -> None:
        for one in (*self._workers.values(), self._master):
            one.kill()

    def _worker(self, host: str) -> Server:
        folder = self.folder / host
        self.temporary(host).mkdir(parents=True, exist_ok=True)
        arguments = ["--host", host, "--webui-port", "0", "--cores", "2", "--memory", "2g"]
        return Server(
            folder,
            "org.apache.spark.deploy.worker.Worker",
            *arguments,
            "--work-dir",
            str(folder / "work"),
            self.url,
            SPARK_LOCAL_IP=host,
            SPARK_LOCAL_DIRS=str(folder / "local"),
            TMPDIR=str(self.temporary(host)),
            PYTHONPATH=str(ROOT),
        )

    def _answers(self) -> Any:
        try:
            with urllib.request.urlopen(self._ui, timeout=10) as reply:
                return json.load(reply)
        except (OSError, json.JSONDecodeError):  # until all its pages are there, it answers with the first
            return None

    def _are_there(self, hosts: tuple[str, ...]) -> None:
        def alive() -> bool:
            workers = (self._answers() or {}).get("workers", [])
            return {one["host"] for one in workers if one["state"] == "ALIVE"} >= set(hosts)

        until(alive, "the workers")
