"""A job on Spark in a process of its own, which lines of JSON tell what to do; it answers with events.

``["start", ROOT]``, with ``"MOMENT:CHECKPOINT"`` to pause there, or with ``{"dies": true}`` to die of an error of its
own; ``["settle"]``, ``["stop"]``, ``["drain"]``, and
what the kind of its input adds. Options come last, as an object.

With ``TIDESTATE_REMOTE`` it is the client of a Spark Connect server of its own, whose processes of queries say what
they have to say by notes in a folder.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.apis import Notes
from tests.helpers.process import REMOTE
from tests.helpers.spark_inputs import job
from tidestate.operators.describe.runs import DurableQuery, SparkJob
from tidestate.operators.spark.connect.function import OF_THE_SERVER
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import TidestateError
from tools.java import local_session

TRUSTED = Path("/etc/ssl/certs/java/cacerts")
"""Whom this machine trusts, as Debian gives it to its own Java; the one from PyPI may not know a mirror's name."""


class OwnError(Exception):
    """A query dies of it when it was asked to."""


def trusting() -> dict[str, str]:
    """What a Java needs in its environment to fetch from Maven Central."""
    return {"JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={TRUSTED}"} if TRUSTED.exists() else {}


NOTES = "TIDESTATE_TEST_NOTES"
"""The folder of what processes of queries say."""
_turn = threading.Lock()
_said = 0


def say(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, **facts})
    if OF_THE_SERVER in os.environ:
        Notes[str](Path(os.environ[NOTES])).append(line)
        return
    with _turn:
        _relay()
        print(line, flush=True)


def _relay() -> None:
    """Say what processes of queries have said since."""
    global _said
    for line in list(Notes[str](Path(os.environ[NOTES])))[_said:] if NOTES in os.environ else ():
        print(line, flush=True)
        _said += 1


def deliver(panes: DataFrame, one: DeliveryId) -> None:
    """Read by Spark, as a sink of a user would."""
    say("delivered", checkpoint=one.checkpoint, rows=panes.count())


class Commands:
    """What can be asked for."""

    def __init__(self, spark: SparkSession, source: str) -> None:
        self.spark = spark
        self.source = source
        self._query: DurableQuery | None = None

    def stream(self, **options: Any) -> DataFrame:
        raise NotImplementedError

    def job(self, root: str, **options: Any) -> SparkJob:
        return job().on_spark(
            self.stream(**options), checkpoint=root, partitions=2, sink=deliver, paths={"direct_scan"}
        )

    @staticmethod
    def paused() -> None:
        """Wait to be killed."""
        time.sleep(3600)

    def start(self, root: str, pause: str = "", *, dies: bool = False, **options: Any) -> None:
        hook = partial(_at_moment, pause, None if dies else self.paused)
        self._query = self.job(root, **options).with_hook(hook).start()
        say("started", checkpoint=self._query.checkpoint_id)

    def settle(self) -> None:
        assert self._query is not None
        try:
            self._query.processAllAvailable()
        except (OwnError, PySparkException) as error:
            if OwnError.__name__ not in f"{type(error)} {error}":
                raise
            say("died")
        else:
            say("settled", checkpoint=self._query.checkpoint_id)

    def stop(self, *, drain: bool = False) -> None:
        assert self._query is not None
        self._query.stop(drain=drain)
        say("stopped", checkpoint=self._query.checkpoint_id)

    def drain(self) -> None:
        self.stop(drain=True)


def _at_moment(pause: str, paused: Callable[[], None] | None, moment: str, checkpoint_id: int) -> None:
    """The hook of a job that pauses, or dies of an error, at one moment."""
    if pause == f"{moment}:{checkpoint_id}":
        if paused is None:
            raise OwnError
        say("paused")
        paused()


@contextmanager
def _session(settings: dict[str, str]) -> Iterator[SparkSession]:
    """A classic session, or of a server of its own."""
    if not REMOTE:
        spark = local_session("commanded", **settings)
        say("ready", jars=spark.sparkContext.getConf().get("spark.jars"))
        yield spark
        spark.stop()
        return
    # Not above: the process of a query imports this module, and has pyspark from an archive.
    from tests.servers.connect import connect_server

    folder = Path(tempfile.mkdtemp(prefix="tidestate-connect-"))
    os.environ[NOTES] = str(folder / "notes")
    server = connect_server(folder, settings)
    spark = SparkSession.builder.remote(server.url).getOrCreate()
    threading.Thread(target=_relay_often, daemon=True).start()
    say("ready", jars=settings.get("spark.jars", ""))
    yield spark
    spark.stop()
    server.stop()


def _relay_often() -> None:
    while True:
        with _turn:
            _relay()
        time.sleep(0.05)


def obey(kind: Callable[[SparkSession, str], Commands], source: str, **settings: str) -> None:
    """Do what is asked for on standard input until that ends."""
    for name, value in trusting().items():
        os.environ.setdefault(name, value)
    # It would ask a hundred times a second for new input.
    with _session(settings | {"spark.sql.streaming.pollingDelay": "200ms"}) as spark:
        commands = kind(spark, source)
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            try:
                getattr(commands, what)(*arguments, **options)
            except TidestateError as error:
                say("refused", code=error.code, text=str(error))
