"""A job on a cluster of the tests: ``python -m tests.children.cluster_job SETTINGS``, a JSON file.

Further commands: ``["whole"]`` waits for both executors, ``["busy", HOST]`` keeps the core of one until
``["free"]``, ``["speculate", QUANTILE]`` says after which share of a stage its slow tasks get copies: after all of it
is never. A pause lasts until a file ``go`` is in the folder of orders.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tests.children.commanded_job import Commands, deliver, obey, say
from tests.helpers.spark_inputs import SCHEMA, job
from tidestate.operators.describe.runs import SparkJob
from tidestate.operators.spark import tasks
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB

STORES = {"parquet": Parquet(), "memory": Memory(), "rocksdb": RocksDB()}
PARTITIONS = 4
EXECUTORS = 2


class ClusterCommands(Commands):
    def stream(self, source: str = "") -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source or self.source)

    def job(self, root: str, store: str = "parquet", source: str = "", *, direct: bool = True) -> SparkJob:
        tasks.INLINE_BYTES = 0  # entries travel as broadcasts, which a new executor has to fetch
        made: SparkJob = job().on_spark(
            self.stream(source),
            checkpoint=root,
            store=STORES[store],
            partitions=PARTITIONS,
            sink=deliver,
            paths={"direct_scan"} if direct else (),
        )
        return made

    @staticmethod
    def paused() -> None:
        while not (Path(os.environ["TIDESTATE_CONTROL"]) / "go").exists():
            time.sleep(0.02)

    def whole(self) -> None:
        status: Any = self.spark.sparkContext._jsc.sc()
        while status.getExecutorMemoryStatus().size() != 1 + EXECUTORS:
            time.sleep(0.02)
        say("whole")

    def speculate(self, quantile: str) -> None:
        context: Any = self.spark.sparkContext._jsc.sc()
        context.conf().set("spark.speculation.quantile", quantile)  # each stage reads it as it begins
        say("speculating")

    def busy(self, host: str) -> None:
        """Until a task is held there: one that comes elsewhere ends at once, and there is another try."""
        self._hold = Path(os.environ["TIDESTATE_CONTROL"]) / f"hold-{host}"
        self._hold.touch()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()
        while not _held(self._hold).exists():
            time.sleep(0.02)
        say("busy")

    def _keep(self) -> None:
        context, hold = self.spark.sparkContext, self._hold
        while hold.exists():
            context.parallelize(range(EXECUTORS), EXECUTORS).foreachPartition(partial(_stay, hold))

    def free(self) -> None:
        self._hold.unlink()
        self._keeper.join()
        _held(self._hold).unlink()
        say("free")


def _held(hold: Path) -> Path:
    return hold.with_name(f"{hold.name}-now")


def _stay(hold: Path, _numbers: Iterable[int]) -> None:
    """In a task: stay while the file is there, on the host in its name."""
    if hold.name == f"hold-{os.environ['SPARK_LOCAL_IP']}":
        _held(hold).touch()
        while hold.exists():
            time.sleep(0.02)


def main(settings: str, jars: str = "") -> None:
    given = json.loads(Path(settings).read_text())
    os.environ["TIDESTATE_CONTROL"] = given["control"]
    fetched = {"spark.jars": jars, "spark.jars.packages": ""} if jars else {}
    obey(ClusterCommands, given["source"], **given["spark"] | fetched)


if __name__ == "__main__":
    main(*sys.argv[1:])
