"""A batch of a job on Spark Connect against the same batch on classic Spark, both of rows that the JVM makes: so
without the direct scan, which is classic alone. Each measurement is a process of its own, with a Spark of its own.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pyspark.sql import SparkSession

import tidestate as ts
from tidestate import agg
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.bench import table
from tools.connect_server import ConnectServer
from tools.java import local_session

Api = Literal["classic", "connect"]
BATCHES_MEASURED = (("800 rows, 100 keys", 800, 100), ("200,000 rows, 100,000 keys", 200_000, 100_000))
"""Rows of a batch, in four partitions, and how many keys they have."""
WARM_BATCHES, MEASURED_BATCHES = 15, 25
AIM_RATIO = 1.3
"""How long a batch on Spark Connect may take, in batches of classic Spark."""


def run(turns: int) -> Iterator[dict[str, Any]]:
    """One row for each size: medians of the time from one checkpoint to the next, of ``turns`` runs in turn, and the
    most memory that the process of a query had on Spark Connect.
    """
    at = table.commit()
    for name, rows, keys in BATCHES_MEASURED:
        taken: dict[Api, list[tuple[float, float]]] = {"classic": [], "connect": []}
        for _ in range(turns):
            for api, measured in taken.items():
                measured.append(_process(api, rows, keys))
        classic_ms, connect_ms = (median(ms for ms, _ in measured) for measured in taken.values())
        yield {
            "name": name,
            "connect_ms": round(connect_ms),
            "classic_ms": round(classic_ms),
            "ratio": round(connect_ms / classic_ms, 2),
            "aim": AIM_RATIO,
            "process_mb": round(max(mb for _, mb in taken["connect"])),
            "commit": at,
        }


def _process(api: Api, rows: int, keys: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "tools.bench.connect", api, str(rows), str(keys)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    batch_ms, peak_mb = json.loads(done.stdout.splitlines()[-1])
    return batch_ms, peak_mb


def _session(api: Api, folder: Path, ends: ExitStack) -> SparkSession:
    if api == "classic":
        session = local_session("bench", sustained=True, **{"spark.driver.memory": "2g"})
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = ConnectServer(folder, port, {"spark.driver.extraJavaOptions": ""})
        ends.callback(server.stop)
        server.wait()
        session = SparkSession.builder.remote(server.url).getOrCreate()
    ends.callback(session.stop)
    return session


def _peak_mb() -> float:
    """The most memory that the process of a query has had, of those that run here; 0 where there is none."""
    peaks = [0.0]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if b"foreach_batch_worker" in (process / "cmdline").read_bytes():
                (line,) = [line for line in (process / "status").read_text().splitlines() if "VmHWM" in line]
                peaks.append(int(line.split()[1]) / 1024)
    return max(peaks)


def _measured(api: Api, rows: int, keys: int) -> tuple[float, float]:
    """The median time from one checkpoint to the next, in milliseconds, and the memory of the query's process."""
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder, ExitStack() as ends:
        session, root = _session(api, Path(folder), ends), Path(folder) / "root"
        source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 4)
        read = source.option("advanceMillisPerBatch", 1000).load()
        keyed = read.selectExpr("timestamp as t", f"cast(value % {keys} as string) as k", "value as v")
        windows = (
            ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(ts.tumbling("10 seconds"))
        )
        counted = windows.aggregate(n=agg.count(), total=agg.sum("v"))
        query = counted.on_spark(keyed, checkpoint=root, partitions=4, paths=()).start()
        checkpoint = Checkpoint.open(root)
        while (head := checkpoint.newest()) is None or head.manifest.id < WARM_BATCHES + MEASURED_BATCHES:
            time.sleep(0.2)
        peak_mb = _peak_mb()
        query.stop()
        made = [manifest.created_us for manifest in checkpoint.history() if manifest.kind == "batch"][WARM_BATCHES:]
        return median((later - sooner) / 1e3 for sooner, later in pairwise(made)), peak_mb


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("api", choices=("classic", "connect"))
    parser.add_argument("rows", type=int)
    parser.add_argument("keys", type=int)
    given = parser.parse_args()
    print(json.dumps(_measured(given.api, given.rows, given.keys)))
