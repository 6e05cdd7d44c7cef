"""A job on Spark with Hadoop's S3A, told by lines of JSON what to do: ``python -m tests.s3_job_child INPUT [JARS]``.

``["start", ROOT]``, with ``"MOMENT:CHECKPOINT"`` to pause there; ``["settle"]``, ``["stop"]``, ``["drain"]``,
``["bootstrap", ROOT, FILES]``, ``["set", NAME, VALUE]``. It answers with events. Without ``JARS`` Spark fetches them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from operators.spark.query import DurableQuery
from statestore.errors import TidemarkError
from tests.spark_inputs import SCHEMA, job
from tools.java import local_session

PACKAGES = "org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:s3-transfer-manager:2.35.4"
EXCLUDES = "software.amazon.awssdk:bundle"
"""The whole SDK in one file; what S3A needs of it comes with the transfer manager."""

TRUSTED = Path("/etc/ssl/certs/java/cacerts")
"""Whom this machine trusts, as Debian gives it to its own Java; the one from PyPI may not know a mirror's name."""


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def deliver(panes: DataFrame, checkpoint_id: int) -> None:
    """Read through S3A, as a sink of a user would."""
    say("delivered", checkpoint=checkpoint_id, rows=panes.count())


class Told:
    """What can be told."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder
        self._query: DurableQuery | None = None

    def start(self, root: str, pause: str = "") -> None:
        def hook(moment: str, checkpoint_id: int) -> None:
            if pause == f"{moment}:{checkpoint_id}":
                say("paused")
                time.sleep(3600)

        self._query = self._job(root).with_hook(hook).start()
        say("started", checkpoint=self._query.checkpoint_id)

    def bootstrap(self, root: str, files: list[str]) -> None:
        made = self._job(root).bootstrap(self._spark.read.schema(SCHEMA).parquet(*files))
        say("bootstrapped", checkpoint=made.id)

    def settle(self) -> None:
        assert self._query is not None
        self._query.process_all_available()
        say("settled", checkpoint=self._query.checkpoint_id)

    def stop(self, *, drain: bool = False) -> None:
        assert self._query is not None
        self._query.stop(drain=drain)
        say("stopped", checkpoint=self._query.checkpoint_id)

    def drain(self) -> None:
        self.stop(drain=True)

    def set(self, name: str, value: str) -> None:
        self._spark.conf.set(name, value)
        say("set")

    def _job(self, root: str) -> Any:
        stream = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(self._folder)
        return job().on_spark(stream, checkpoint=root, partitions=2, sink=deliver)


def main(folder: str, jars: str = "") -> None:
    if TRUSTED.exists():
        os.environ["JAVA_TOOL_OPTIONS"] = f"-Djavax.net.ssl.trustStore={TRUSTED}"
    packages = {"spark.jars.packages": PACKAGES, "spark.jars.excludes": EXCLUDES}
    spark = local_session(
        "s3",
        **({"spark.jars": jars} if jars else packages),
        **{
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.sql.streaming.pollingDelay": "200ms",  # it would ask a hundred times a second for new files
        },
    )
    say("ready", jars=spark.sparkContext.getConf().get("spark.jars"))
    told = Told(spark, folder)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        try:
            getattr(told, what)(*arguments)
        except TidemarkError as error:
            say("refused", code=error.code, text=str(error))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
