"""A real Spark Connect server with the settings of tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.servers.kafka import fetched
from tests.servers.packages import INTERPRETED
from tests.servers.ports import free_port
from tools.connect_server import SPARK_HOME, ConnectServer


def connect_server(folder: Path, settings: Mapping[str, str] | None = None) -> ConnectServer:
    """A server that has begun, of a session as the shared one of tests."""
    jars: list[str] = []
    if not list(SPARK_HOME.glob("jars/spark-connect_*.jar")):  # Spark has it along from 4.0 on
        jars = fetched([f"org.apache.spark:spark-connect_2.12:{pyspark.__version__}"], folder)
    chosen = INTERPRETED | {"spark.sql.adaptive.enabled": "false"} | dict(settings or {})
    server = ConnectServer(folder, free_port(), chosen, jars)
    server.wait()
    return server
