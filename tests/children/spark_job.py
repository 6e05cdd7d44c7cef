"""Jobs of several operators or streams over real flights and weather, as a process that can be killed. Several of
them in one process have ``+`` between their arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tests.servers.packages import for_seconds
from tidestate.agg import count, mean, median
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.stores import Memory, Parquet, RocksDB
from tools.java import brief_options, local_session

STORES = {"parquet": Parquet(), "memory": Memory(), "rocksdb": RocksDB()}


def departures() -> Any:
    """Flights per airline and airport by hour, then per airline by day: another key, the same batch."""
    per_hour = windowed(event_time="scheduled", key=["origin", "carrier"], name="per_hour").window(tumbling("1 hour"))
    per_hour = per_hour.aggregate(flights=count(), worst=max_("dep_delay")).late("6 hours", keep="flight_id")
    per_day = windowed(key="carrier", name="per_day").window(tumbling("1 day"))
    per_day = per_day.aggregate(hours=count(), flights=sum_("flights"), worst=max_("worst")).late("12 hours")
    return chain(per_hour.accumulation(RETRACTING), per_day.accumulation(RETRACTING))


def in_weather() -> Any:
    """Each flight with the observation of its hour."""
    near = ("-59 minutes", "0 seconds")
    times = ("scheduled", "time_hour")
    return join(event_time=times, on="origin", within=near, how="left", late="22 hours", name="in_weather")


def hourly() -> Any:
    """Flights and wind by airport and hour."""
    merged = merge(event_time=("scheduled", "time_hour"), key="origin", name="hourly").window(tumbling("1 hour"))
    merged = merged.aggregate(flights=count("left_flight_id"), wind=mean("right_wind_speed"))
    return merged.late("22 hours").accumulation(RETRACTING)


def by_carrier() -> Any:
    """Flights per airline and day, each once though it comes several times."""
    per_day = windowed(event_time="scheduled", key="carrier", name="by_carrier").window(tumbling("1 day"))
    per_day = per_day.aggregate(flights=count(), middle=median("dep_delay")).late("6 hours").retain("3 days")
    return per_day.messages("flight_id").accumulation(RETRACTING)


JOBS: dict[str, Callable[[], Any]] = {"chain": departures, "join": in_weather, "merge": hourly, "again": by_carrier}
SIDES = {"chain": ("flights",), "again": ("again",)}
"""The folders of jobs that do not read flights and weather."""
LOCAL = {"spark.master": "local[2, 4]"}
"""A task that lost its Python worker is tried again, as it is on a cluster."""
CLUSTER = {
    "spark.master": "local-cluster[2,1,512]",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": brief_options(),
}
PARTITIONS = {"again": 100}
"""State partitions of a job, if not 2. Of more than 64 the manifest names parts, and tasks process every batch."""


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """The files of a folder as a stream, one a batch."""
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def batches(name: str, folder: Path, cuts: list[list[list[Path]]] | None = None) -> list[pa.Table]:
    """The same input for the standalone runner: a file a batch, or the files of ``cuts``, by batch and stream."""
    sides = [sorted((folder / side).glob("*.parquet")) for side in SIDES.get(name, ("flights", "weather"))]
    empty = [pq.read_schema(paths[0]).empty_table() for paths in sides]
    cuts = cuts or [[[path] for path in paths] for paths in zip(*sides, strict=True)]
    read = [
        [pa.concat_tables([none, *map(pq.read_table, paths)]) for none, paths in zip(empty, streams, strict=True)]
        for streams in cuts
    ]
    if name in SIDES:
        return [tables[0] for tables in read]
    description = JOBS[name]()
    schema = description.schema(*(none.schema for none in empty))
    return [description.rows(schema, left=left, right=right) for left, right in read]


SAYING = Lock()
"""Of the jobs of one process each says whole lines."""


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The arguments of one job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", choices=STORES, default="parquet")
    parser.add_argument("--pause", default="", help="MOMENT:CHECKPOINT")
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--executors", action="store_true", help="processes of their own, two of one core")
    parser.add_argument("--for-seconds", action="store_true", help="nothing is compiled, no links are looked at")
    parser.add_argument("--in-driver", action="store_true", help="small batches need no tasks")
    return parser.parse_args(arguments)


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    def say(event: str, checkpoint_id: int) -> None:
        with SAYING:
            print(json.dumps({"event": event, "checkpoint": checkpoint_id, "job": arguments.job}), flush=True)

    def hook(moment: str, checkpoint_id: int) -> None:
        if arguments.pause == f"{moment}:{checkpoint_id}":
            say("paused", checkpoint_id)
            time.sleep(3600)

    sides = SIDES.get(arguments.job, ("flights", "weather"))
    streams = [read(spark, arguments.folder / side) for side in sides]
    job = JOBS[arguments.job]().on_spark(
        *streams,
        checkpoint=arguments.folder / "checkpoint",
        store=STORES[arguments.store],
        partitions=PARTITIONS.get(arguments.job, 2),
        in_driver=arguments.in_driver,
    )
    query = job.with_hook(hook).start()
    say("started", query.checkpoint_id)
    query.processAllAvailable()
    query.stop(drain=arguments.drain)
    say("done", query.checkpoint_id)


def at_once(run_one: Callable[[argparse.Namespace], None], jobs: list[argparse.Namespace]) -> None:
    """Each of the jobs in a thread of its own."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        list(threads.map(run_one, jobs))


def _run_or_end(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """An error ends the process, whatever others in it wait for."""
    try:
        run(spark, arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(words: list[str]) -> None:
    jobs = [parsed(list(part)) for plus, part in groupby(words, "+".__eq__) if not plus]
    for one in jobs:
        Checkpoint.open_or_create(one.folder / "checkpoint")
    own = for_seconds() if jobs[0].for_seconds else {}
    spark = local_session(jobs[0].job, **(CLUSTER if jobs[0].executors else LOCAL), **own)
    at_once(partial(_run_or_end, spark), jobs)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
