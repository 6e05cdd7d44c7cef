"""A Spark cluster of two executors, one of which has a file system of its own at a checkpoint root.

Executors are processes of this machine; the second one's Java starts in a mount namespace of its own, as if the
folder were another host's. Reports events as JSON lines.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.spark import stream_job as spark_job
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import TidestateError
from tools.java import brief_options, java_home, local_session

LAUNCHER = """#!/bin/sh
case "$*" in
  *"--executor-id 1 "*)
    exec unshare -m sh -c 'mount -t tmpfs tmpfs "$0" && exec "$@"' "{root}" "{java}" "$@" ;;
esac
exec "{java}" "$@"
"""


def _java(folder: Path, hidden: Path) -> None:
    """A JAVA_HOME by which the second executor starts with another folder at ``hidden``."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(LAUNCHER.format(root=hidden, java=f"{java_home()}/bin/java"))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    os.environ["JAVA_HOME"] = str(folder)


def _answered(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main(folder: Path) -> None:
    hidden, shared = folder / "hidden", folder / "shared"
    hidden.mkdir()
    _java(folder / "java", hidden)
    settings = {
        "spark.master": "local-cluster[2,1,512]",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": brief_options(),
        "spark.driver.memory": "512m",
    }
    session = local_session("two hosts", **settings)
    (folder / "input").mkdir()
    keys = pa.array(range(1000), pa.int64())
    times = pa.array([second * 100_000 for second in range(1000)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": times, "k": keys}), folder / "input" / "rows.parquet")
    rows = session.readStream.schema("at timestamp, k long").parquet(str(folder / "input"))
    described = windowed(event_time="at", key="k", name="counts").window(tumbling("1 second")).aggregate(n=count())

    def run(root: Path, event: str) -> None:
        error = ""
        try:
            query = described.on_spark(rows, checkpoint=str(root), partitions=4, in_driver=False).start()
            query.processAllAvailable()
            query.stop()
        except TidestateError as refused:
            error = refused.code
            print(refused, file=sys.stderr)
        head = Checkpoint.open(root).head()
        _answered(event=event, code=error, kind=head.manifest.kind if head else None)

    run(shared, "shared")
    run(hidden, "hidden")
    spark_job.check_shared = lambda *_: None  # as if that executor had joined later
    run(hidden, "late")
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
