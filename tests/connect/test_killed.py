"""Kills of each end of a job on Spark Connect: the process of its query, the server, the client, a worker of Spark.

Each round feeds a file, kills one of them at any moment, and lets another client go on. In the end the panes and the
ledger are those of a run that nobody killed: nothing is lost, nothing is there twice.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy

from tests.helpers.checkout import ROOT
from tests.helpers.killed_jobs import batches_of_spark
from tests.helpers.process import LONG, REMOTE
from tests.helpers.spark_inputs import batch, job, sample, write
from tests.helpers.spark_runs import output, stream
from tests.servers.connect import connect_server
from tests.servers.spark_cluster import below, commands
from tidestate import DurableQuery, TidestateError
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import running
from tools.connect_server import ConnectServer
from tools.demo.child import Child

pytestmark = pytest.mark.skipif(not REMOTE, reason="of the form on Spark Connect: make connect")

ENDS = ("query", "server", "client", "worker")
ROUNDS = 40 if LONG else 4
SEEDS = range(7) if LONG else range(1)
OF_A_QUERY, OF_A_WORKER = "-m pyspark.sql.connect.streaming.worker.foreach_batch_worker", "-m tools.python_daemon"
PATIENCE_S = 120
STARTS = 3
"""How often a start is tried that Spark itself fails."""
SCHEMA = batch([]).schema


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, for so long as a busy machine may need."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.05)


@pytest.fixture
def rounds(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rounds]:
    """Rounds of a seed, whose server ends with the test however that ends."""
    playing = Rounds(tmp_path, getattr(request, "param", 0))
    yield playing
    playing.server.stop()


class Rounds:
    """A folder with input and root, a server, and whoever is its client now."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.tables = sample(ROUNDS, 40, seed)
        self.server = self.new_server()
        self.written = 0

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def new_server(self) -> ConnectServer:
        """Another server, which has begun."""
        return connect_server(self.folder)

    def session(self) -> SparkSession:
        """Another client, in this process, which does not try for minutes to reach a server that is gone."""
        session = SparkSession.builder.remote(self.server.url).create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=2)])
        return session

    def feed(self) -> None:
        """The next file of the input."""
        write(self.folder / "input", self.written, self.tables[self.written])
        self.written += 1

    def is_read(self) -> bool:
        """Whether all files are in the newest checkpoint. A batch has two where Spark died as it planned one."""
        head = Checkpoint.open(self.root).newest()
        events = sum(table.num_rows for table in self.tables[: self.written])
        return head is not None and head.manifest.totals.get("events") == events

    def processes(self, kind: str) -> list[int]:
        """Processes of the server of this kind."""
        lines = commands()
        return [pid for pid in below(self.server.process.pid) if pid in lines and kind in lines[pid][1]]

    def workers(self) -> list[int]:
        """The workers of Spark, without the process that starts them: without that one a later job fails too."""
        lines, found = commands(), self.processes(OF_A_WORKER)
        return [pid for pid in found if pid in lines and lines[pid][0] in found]

    def start(self, session: SparkSession) -> DurableQuery:
        """The job, by a client that may come while the one before still runs. On a busy machine a process may take
        longer to begin than Spark waits for it.
        """
        starting = job().on_spark(stream(session, self.folder / "input"), checkpoint=self.root, partitions=3)
        for _ in range(STARTS):
            with suppress(PySparkException):
                return starting.start()
        return starting.start()

    def play(self, end: str) -> None:
        """A round: a file, a kill, and another client that goes on."""
        self.feed()
        if end == "client":
            self.without_client()
            return
        session = self.session()
        query = self.start(session)
        time.sleep(self.chance.uniform(0, 2))  # any moment of a batch
        if end == "server":
            queries = self.processes(OF_A_QUERY)
            self.server.kill()
            until(
                lambda: not any(Path(f"/proc/{pid}").exists() for pid in queries), "the orphan of the server to end"
            )
            self.server = self.new_server()
            forget(session)
            return
        for pid in self.processes(OF_A_QUERY) if end == "query" else self.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(Exception):  # of the kill, or it was over before
            query.processAllAvailable()
        with suppress(Exception):
            query.stop()
        session.stop()

    def without_client(self) -> None:
        """The client is killed, and its query goes on."""
        command = [sys.executable, "-m", "tests.children.connect_client", self.server.url, str(self.folder)]
        child = Child(command, self.folder / "client.log", ROOT)
        child.wait_for(lambda event: event["event"] == "started")
        child.kill()
        if self.written < ROUNDS:
            self.feed()
        until(self.is_read, "the query to go on without its client")
        lease = running(Checkpoint.open(self.root))
        assert lease is not None
        assert lease.process.pid in self.processes(OF_A_QUERY), "the lease is of the process of the query"

    def finish(self) -> None:
        """Read the rest, and end the input."""
        while self.written < ROUNDS:
            self.feed()
        session = self.session()
        query = self.start(session)
        query.processAllAvailable()
        query.stop(drain=True)
        session.stop()
        until(lambda: not self.processes(OF_A_QUERY), "the process of the query to end")


def forget(session: SparkSession) -> None:
    """Let a client go whose server is gone: it would try for minutes to reach it at the end."""
    session.release_session_on_close = False
    session.client._release_session_on_close = False
    session.stop()


@pytest.mark.parametrize("rounds", SEEDS, indirect=True)
def test_killed_at_each_end(tmp_path: Path, rounds: Rounds) -> None:
    ends = [*ENDS, *(rounds.chance.choice(ENDS) for _ in range(ROUNDS))]
    rounds.chance.shuffle(ends)
    for end in ends:
        if rounds.written < ROUNDS:
            rounds.play(end)
    rounds.finish()
    alone, cuts = tmp_path / "alone", batches_of_spark(rounds.root / "spark")
    batches = [pa.concat_tables([SCHEMA.empty_table(), *map(pq.read_table, files)]) for (files,) in cuts]
    job().standalone(checkpoint=alone).run(batches, drain=True)
    assert output(rounds.root, "panes") == output(alone, "panes")
    assert output(rounds.root, "late") == output(alone, "late")


def test_errors_of_the_other_end_have_a_code(rounds: Rounds) -> None:
    rounds.feed()
    session = rounds.session()
    query = rounds.start(session)
    query.processAllAvailable()
    (pid,) = rounds.processes(OF_A_QUERY)
    os.kill(pid, signal.SIGKILL)
    rounds.feed()
    with pytest.raises(TidestateError) as caught:
        query.processAllAvailable()
    assert caught.value.code == "server-process"
    rounds.server.kill()
    with pytest.raises(TidestateError) as caught:
        query.processAllAvailable()
    assert caught.value.code == "server-lost"
    forget(session)
