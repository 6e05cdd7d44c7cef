"""A real Spark Connect server in a process of its own, with what tests of a shared session set."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.servers.kafka import fetched
from tests.servers.packages import for_seconds
from tests.servers.ports import free_port
from tools.java import LOGGING, brief_options, java_home

SPARK_HOME = Path(pyspark.__file__).parent
CONNECT_PATIENCE_S = 60.0
SERVER_SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "tests",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "tools.python_daemon",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


class ConnectServer:
    """The server and what it has printed; `kill` ends it as a power cut would."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        root = str(Path(__file__).parents[2])
        self.port = free_port()
        self.url = f"sc://127.0.0.1:{self.port}"
        self.printed = folder / f"connect-{self.port}.log"
        java = f"-Dlog4j2.configurationFile={LOGGING} {brief_options()}"
        port = {"spark.connect.grpc.binding.port": str(self.port), "spark.driver.extraJavaOptions": java}
        chosen = SERVER_SETTINGS | for_seconds() | port | dict(settings or {})
        environment = {
            **os.environ,
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        environment.pop("SPARK_REMOTE", None)
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
        ]
        command += [part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")]
        if not list(SPARK_HOME.glob("jars/spark-connect_*.jar")):  # Spark has it along from 4.0 on
            (jar,) = fetched([f"org.apache.spark:spark-connect_2.12:{pyspark.__version__}"], folder)
            command += ["--jars", jar]
        with self.printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [*command, "spark-internal"], env=environment, stdout=printed, stderr=subprocess.STDOUT, cwd=folder
            )

    def wait(self) -> None:
        """Wait until a client can connect."""
        until = time.monotonic() + CONNECT_PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no server: {self.printed.read_text()[-2000:]}") from None
                time.sleep(0.1)

    def kill(self) -> None:
        """End it at once. What it has started stays behind."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it in order, as a user of the server does."""
        self.process.terminate()
        try:
            self.process.wait(CONNECT_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
