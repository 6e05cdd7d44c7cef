"""A job whose root lies on a file system of its own that fills up, or becomes read-only: ``disk.py FOLDER RUNNER``.

It mounts: run it with ``unshare -m``. Reports the code of each error as a JSON line, and mends what was wrong then.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.children.commanded_job import say
from tests.helpers.spark_inputs import SCHEMA, job, sample, write
from tests.servers.connect import connect_server
from tidestate.statestore.errors import TidestateError
from tidestate.statestore.spec.store import Parquet
from tools.java import local_session

STORE = Parquet(max_levels=2, snapshot_bytes=1)
BATCHES = sample(12, 300)
FIRST, SECOND = 5, 8
"""So many batches before the disk is read-only, and before it fills up."""
ROOM = 48 << 10
"""Bytes that are left then: less than a batch or two need."""


def mount(folder: Path, *options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], check=True)


def standalone(root: Path) -> Callable[[int], None]:
    """Runs the job up to a batch."""
    return lambda batches: _ran(job().standalone(checkpoint=root, store=STORE).run(BATCHES[:batches]))


def on_spark(root: Path) -> Callable[[int], None]:
    return _on_spark(root, local_session("disk"))


def on_connect(root: Path) -> Callable[[int], None]:
    server = connect_server(root.parent.parent)
    atexit.register(server.kill)
    return _on_spark(root, SparkSession.builder.remote(server.url).getOrCreate())


def _on_spark(root: Path, spark: SparkSession) -> Callable[[int], None]:
    source = root.parent.parent / "input"

    def run(batches: int) -> None:
        for number in range(len(list(source.glob("*.parquet"))), batches):
            write(source, number, BATCHES[number])
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        query = job().on_spark(files.parquet(str(source)), checkpoint=root, store=STORE, partitions=2).start()
        query.processAllAvailable()
        query.stop()

    return run


def _ran(_panes: object) -> None:
    """Panes are read from the root."""


def tried(run: Callable[[int], None], batches: int) -> None:
    """Run, and report how that ends."""
    try:
        run(batches)
        say("ran")
    except TidestateError as error:
        say("failed", code=error.code, reason=str(error.context.get("reason", "")))
    except Exception as error:  # Spark's own, of a query that has failed
        say("failed", code="spark", reason=type(error).__name__)


def main(folder: Path, runner: str) -> None:
    place = folder / "disk"
    place.mkdir()
    mount(place)
    run = {"standalone": standalone, "spark": on_spark, "connect": on_connect}[runner](place / "root")
    tried(run, FIRST)
    mount(place, "remount", "ro")
    tried(run, SECOND)
    mount(place, "remount", "rw")
    tried(run, SECOND)
    about = os.statvfs(place)
    mount(place, "remount", f"size={(about.f_blocks - about.f_bfree) * about.f_frsize + ROOM}")
    tried(run, len(BATCHES))
    tried(run, len(BATCHES))  # it is as full as before
    mount(place, "remount", "size=1g")
    tried(run, len(BATCHES))
    subprocess.run(["cp", "-a", str(place / "root"), str(folder / "root")], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
