"""A job on Spark in a process of its own, which lines of JSON tell what to do; it answers with events.

``["start", ROOT]``, with ``"MOMENT:CHECKPOINT"`` to pause there, or with ``{"dies": true}`` to die of an error of its
own; ``["settle"]``, ``["stop"]``, ``["drain"]``, and
what the kind of its input adds. Options come last, as an object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.helpers.spark_inputs import job
from tidestate.operators.describe.runs import DurableQuery, SparkJob
from tidestate.recovery.log.outputs import DeliveryId
from tidestate.statestore.errors import TidestateError
from tools.java import local_session

TRUSTED = Path("/etc/ssl/certs/java/cacerts")
"""Whom this machine trusts, as Debian gives it to its own Java; the one from PyPI may not know a mirror's name."""


class OwnError(Exception):
    """A query dies of it when it was asked to."""


def trusting() -> dict[str, str]:
    """What a Java needs in its environment to fetch from Maven Central."""
    return {"JAVA_TOOL_OPTIONS": f"-Djavax.net.ssl.trustStore={TRUSTED}"} if TRUSTED.exists() else {}


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


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

    def paused(self) -> None:
        """Wait to be killed."""
        time.sleep(3600)

    def start(self, root: str, pause: str = "", *, dies: bool = False, **options: Any) -> None:
        def hook(moment: str, checkpoint_id: int) -> None:
            if pause == f"{moment}:{checkpoint_id}":
                if dies:
                    raise OwnError
                say("paused")
                self.paused()

        self._query = self.job(root, **options).with_hook(hook).start()
        say("started", checkpoint=self._query.checkpoint_id)

    def settle(self) -> None:
        assert self._query is not None
        try:
            self._query.processAllAvailable()
        except OwnError:
            say("died")
        else:
            say("settled", checkpoint=self._query.checkpoint_id)

    def stop(self, *, drain: bool = False) -> None:
        assert self._query is not None
        self._query.stop(drain=drain)
        say("stopped", checkpoint=self._query.checkpoint_id)

    def drain(self) -> None:
        self.stop(drain=True)


def obey(kind: Callable[[SparkSession, str], Commands], source: str, **settings: str) -> None:
    """Do what is asked for on standard input until that ends."""
    os.environ |= trusting()
    spark = local_session(
        "commanded",
        **settings,
        **{"spark.sql.streaming.pollingDelay": "200ms"},  # it would ask a hundred times a second for new input
    )
    say("ready", jars=spark.sparkContext.getConf().get("spark.jars"))
    commands = kind(spark, source)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        try:
            getattr(commands, what)(*arguments, **options)
        except TidestateError as error:
            say("refused", code=error.code, text=str(error))
    spark.stop()
