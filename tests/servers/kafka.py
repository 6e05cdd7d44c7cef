"""A real Kafka: one node, broker and controller in one Java, its jars from Maven Central.

The Ivy that Spark brings fetches just what is named here, 28 MB with Spark's connector; for the rest, such as the
library of Scala, the broker uses Spark's own jars. Import ``kafka_servers`` into a test module.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.children.commanded_job import trusting
from tests.servers.packages import BROKER_LACKS, SPARK_JARS
from tests.servers.ports import free_port
from tools.java import java_home, launcher_options

RELEASE = "4.1.1"
BROKER = (
    *(
        f"org.apache.kafka:{name}:{RELEASE}"
        for name in (
            "kafka_2.13",
            "kafka-clients",
            "kafka-coordinator-common",
            "kafka-group-coordinator",
            "kafka-group-coordinator-api",
            "kafka-metadata",
            "kafka-raft",
            "kafka-server",
            "kafka-server-common",
            "kafka-share-coordinator",
            "kafka-storage",
            "kafka-storage-api",
            "kafka-transaction-coordinator",
        )
    ),
    "com.dynatrace.hash4j:hash4j:0.22.0",
    "com.github.ben-manes.caffeine:caffeine:3.2.0",
    "com.google.re2j:re2j:1.8",
    "com.typesafe.scala-logging:scala-logging_2.13:3.9.5",
    "com.yammer.metrics:metrics-core:2.2.0",
    "commons-validator:commons-validator:1.9.0",
    "net.sf.jopt-simple:jopt-simple:5.0.4",
    "net.sourceforge.argparse4j:argparse4j:0.7.0",
    "org.hdrhistogram:HdrHistogram:2.2.2",
    "org.pcollections:pcollections:4.0.2",
    *BROKER_LACKS,
)
CLUSTER = "4L6g3nShT-eMCtK--X86sw"
"""Any id will do, of those that do not begin like an option."""
STARTED = "Kafka Server started"
_UNTIL_INPUT_ENDS = '"$@" & exec >&- 2>&-; read -r _; kill -9 $!'
_UNTIL_NOBODY_USES_IT = """
import fcntl, os, signal, sys
with open(sys.argv[1]) as users:
    fcntl.flock(users, fcntl.LOCK_EX)
    os.unlink(sys.argv[2])
    os.kill(int(sys.argv[3]), signal.SIGKILL)
"""
_SHARED = '"$@" & exec >&- 2>&-; exec "$PYTHON" -c "$WATCH" "$USERS" "$ADDRESS" $!'
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.out.ref = out
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = info
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n%ex
"""


class UnavailableError(Exception):
    """Jars could not be had; the text says why."""


@pytest.fixture(scope="session")
def kafka_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one broker for all processes of this run; topics that tests write to have names of their own."""
    folder = tmp_path_factory.getbasetemp()
    try:
        with _shared((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "kafka") as servers:
            yield servers
    except UnavailableError as error:
        pytest.skip(f"Kafka could not be had from Maven Central: {error}")


@contextmanager
def _shared(folder: Path) -> Iterator[str]:
    """The first process that asks starts the broker. Each holds a lock, which ends with it, however it ends; when
    nobody holds one, the broker ends too.
    """
    folder.mkdir(exist_ok=True)
    users, address = folder / "users", folder / "address"
    with users.open("a") as used, (folder / "start").open("a") as start:
        fcntl.flock(used, fcntl.LOCK_SH)
        fcntl.flock(start, fcntl.LOCK_EX)
        if not address.exists():
            environment = {"WATCH": _UNTIL_NOBODY_USES_IT, "USERS": str(users), "ADDRESS": str(address)}
            broker = Broker(fetched(BROKER, folder), folder, **environment, PYTHON=sys.executable)
            address.write_text(broker.servers)
        fcntl.flock(start, fcntl.LOCK_UN)
        yield address.read_text()


def fetched(coordinates: Sequence[str], folder: Path) -> list[str]:
    """The paths of these jars and of no others, in Ivy's cache. Raises `UnavailableError`."""
    cached = [_cached(*one.split(":")) for one in coordinates]
    return cached if all(cached) else _resolved(coordinates, folder)


def _cached(organisation: str, name: str, revision: str) -> str:
    """Where Ivy has put a jar, as it does: to ask it takes two seconds."""
    module = Path.home() / ".ivy2" / "cache" / organisation / name
    return next(map(str, module.glob(f"*/{name}-{revision}.jar")), "")


def _resolved(coordinates: Sequence[str], folder: Path) -> list[str]:
    module, found = folder / "ivy.xml", folder / "jars"
    parts = [one.split(":") for one in coordinates]
    wanted = [f'<dependency org="{a}" name="{b}" rev="{c}" transitive="false"/>' for a, b, c in parts]
    info = '<info organisation="tidestate" module="kafka"/>'
    module.write_text(f'<ivy-module version="2.0">{info}<dependencies>{"".join(wanted)}</dependencies></ivy-module>')
    (ivy,) = SPARK_JARS.glob("ivy-*.jar")
    command = [f"{java_home()}/bin/java", *launcher_options().split(), "-jar", str(ivy)]
    command += ["-ivy", str(module), "-types", "jar", "bundle", "-cachepath", str(found)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, check=False, env=os.environ | trusting()
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError("Maven Central did not answer in three minutes") from error
    paths = found.read_text().strip().split(os.pathsep) if found.exists() else []
    if done.returncode != 0 or len(paths) != len(coordinates):
        answered = done.stdout + done.stderr
        missing = [line.strip(": \t") for line in answered.splitlines() if line.endswith(": not found")]
        raise UnavailableError(", ".join(missing) or answered[-2000:])
    return paths


class Broker:
    """Listens on loopback; topics that are written to come to be, with three partitions. Ends with its test process,
    however that ends; ``shared`` are the variables of what waits for the last one of several.
    """

    def __init__(self, jars: Sequence[str], folder: Path, **shared: str) -> None:
        port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{port}"
        settings, logging = folder / "server.properties", folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        settings.write_text(_settings(port, controller, folder / f"data-{port}"))
        java = [f"{java_home()}/bin/java", *launcher_options().split(), "-Xmx512m"]
        java += [f"-Dlog4j2.configurationFile={logging}", "-cp", os.pathsep.join([*jars, f"{SPARK_JARS}/*"])]
        forming = ["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER, "-c", str(settings)]
        formed = subprocess.run([*java, *forming], capture_output=True, text=True, timeout=120, check=False)
        assert formed.returncode == 0, formed.stdout + formed.stderr
        self._shared = shared
        until = _SHARED if shared else _UNTIL_INPUT_ENDS
        self._command = ["sh", "-c", until, "sh", *java, "kafka.Kafka", str(settings)]
        self.start()

    def start(self) -> None:
        """With the data of before."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self._shared},
            start_new_session=bool(self._shared),
        )
        self._wait()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        answered = []
        for line in self._process.stdout:
            answered.append(line)
            if STARTED in line:
                return
        raise AssertionError("".join(answered)[-4000:])

    def stop(self) -> None:
        """At once, by SIGKILL."""
        self._process.communicate()


def _settings(port: int, controller: int, data: Path) -> str:
    return f"""
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={data}
num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
