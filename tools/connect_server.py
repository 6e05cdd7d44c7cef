"""A Spark Connect server on two local cores, in a process of its own. By hand: ``python -m tools.connect_server``."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from tools.java import LOGGING, brief_options, java_home

SPARK_HOME = Path(pyspark.__file__).parent
SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
CONNECT_PATIENCE_S = 60.0
SERVER_SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "connect",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "tools.python_daemon",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


class ConnectServer:
    """The server, and in ``printed`` what it has printed; `kill` ends it as a power cut would."""

    def __init__(
        self, folder: Path, port: int, settings: Mapping[str, str] | None = None, jars: Sequence[str] = ()
    ) -> None:
        root = str(Path(__file__).parents[1])
        self.port, self.url = port, f"sc://127.0.0.1:{port}"
        self.printed = folder / f"connect-{port}.log"
        java = f"-Dlog4j2.configurationFile={LOGGING} {brief_options()}"
        own = {"spark.connect.grpc.binding.port": str(port), "spark.driver.extraJavaOptions": java}
        environment = {
            **os.environ,
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        environment.pop("SPARK_REMOTE", None)
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", SERVER_CLASS]
        chosen = SERVER_SETTINGS | own | dict(settings or {})
        command += [part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")]
        command += ["--jars", ",".join(jars)] if jars else []
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


def main(arguments: list[str] | None = None) -> None:
    """Run a server until it is interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.connect_server",
        description="run a Spark Connect server on two local cores until Ctrl-C",
    )
    parser.add_argument("--port", type=int, default=15002, help="on 127.0.0.1; by default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where it runs and logs; by default here")
    chosen = parser.parse_args(arguments)
    server = ConnectServer(chosen.folder, chosen.port)
    try:
        server.wait()
        print(f"{server.url} is served; its log is {server.printed}", flush=True)
        server.process.wait()
    except KeyboardInterrupt:
        print("stopping")
    finally:
        if server.process.poll() is None:
            server.stop()


if __name__ == "__main__":
    main()
