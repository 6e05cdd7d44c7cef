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

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tidestate import Aggregation, JoinedStream, OperatorStream, OutputsJob, agg, fn
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.stores import Memory, Parquet, RocksDB
from tools.java import brief_options, local_session

STORES = {"parquet": Parquet(), "memory": Memory(), "rocksdb": RocksDB()}
FLIGHTS = ts.stream("flights", event_time="scheduled")
WEATHER = ts.stream("weather", event_time="time_hour")


def _hours_and_days() -> tuple[Aggregation, Aggregation]:
    per_hour = FLIGHTS.group_by("origin", "carrier").window(ts.tumbling("1 hour"))
    hours = per_hour.aggregate(flights=agg.count(), worst=agg.max("dep_delay")).named("per_hour")
    hours = hours.allowed_lateness("6 hours", ledger_columns="flight_id").accumulation("retracting")
    per_day = hours.group_by("carrier").window(ts.tumbling("1 day"))
    days = per_day.aggregate(hours=agg.count(), flights=agg.sum("flights"), worst=agg.max("worst")).named("per_day")
    return hours, days.allowed_lateness("12 hours").accumulation("retracting")


def departures() -> Aggregation:
    """Flights per airline and airport by hour, then per airline by day: another key, the same batch."""
    return _hours_and_days()[1]


def both() -> OutputsJob:
    """The same, with the panes of hours as an output too."""
    return ts.job(*_hours_and_days())


def prepared() -> Aggregation:
    """Flights by airline and local day from two airports: those that left far too early are in the ledger, and days
    with one or two are not shown.
    """
    flights = FLIGHTS.where("origin <> 'LGA'").with_columns(day=fn.to_date("scheduled", zone="America/New_York"))
    flights = flights.expect("not early", "dep_delay > -12").expect("short", "dep_delay < 60", otherwise="count")
    per_day = flights.group_by("carrier", "day").window(ts.tumbling("1 day"))
    counted = per_day.aggregate(
        flights=agg.count(), delayed=agg.count(where="dep_delay > 0"), delay=agg.sum(ts.expr("dep_delay * 60"))
    )
    counted = counted.derive(share="delayed / flights").having("flights >= 3").named("prepared")
    return counted.allowed_lateness("6 hours", ledger_columns="flight_id").accumulation("retracting")


def in_weather() -> JoinedStream:
    """Each flight with the observation of its hour."""
    near = ("-59 minutes", "0 seconds")
    return FLIGHTS.join(WEATHER, on="origin", within=near, how="left", allowed_lateness="22 hours", name="in_weather")


def hourly() -> Aggregation:
    """Flights and wind by airport and hour."""
    merged = ts.merge(FLIGHTS, WEATHER).group_by("origin").window(ts.tumbling("1 hour"))
    counted = merged.aggregate(flights=agg.count("flights_flight_id"), wind=agg.mean("weather_wind_speed"))
    return counted.named("hourly").allowed_lateness("22 hours").accumulation("retracting")


def by_carrier() -> Aggregation:
    """Flights per airline and day, each once though it comes several times."""
    per_day = ts.stream("again", event_time="scheduled").group_by("carrier").window(ts.tumbling("1 day"))
    counted = per_day.aggregate(flights=agg.count(), middle=agg.median("dep_delay")).named("by_carrier")
    return (
        counted.allowed_lateness("6 hours").retain_windows("3 days").messages("flight_id").accumulation("retracting")
    )


JOBS: dict[str, Callable[[], OperatorStream | OutputsJob]] = {
    "chain": departures,
    "join": in_weather,
    "merge": hourly,
    "again": by_carrier,
    "prepared": prepared,
    "outputs": both,
}
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


def batches(name: str, folder: Path, cuts: list[list[list[Path]]] | None = None) -> list[dict[str, pa.Table]]:
    """The same input for the standalone runner: a file a batch, or the files of ``cuts``, by batch and stream."""
    streams = JOBS[name]().graph.streams
    files = [sorted((folder / stream).glob("*.parquet")) for stream in streams]
    empty = [pq.read_schema(paths[0]).empty_table() for paths in files]
    cuts = cuts or [[[path] for path in paths] for paths in zip(*files, strict=True)]
    return [
        {
            stream: pa.concat_tables([none, *map(pq.read_table, paths)])
            for stream, none, paths in zip(streams, empty, cut, strict=True)
        }
        for cut in cuts
    ]


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


def say(job: str, event: str, checkpoint_id: int) -> None:
    """Tell the process that started this one."""
    with SAYING:
        print(json.dumps({"event": event, "checkpoint": checkpoint_id, "job": job}), flush=True)


def wait_at(job: str, pause: str, moment: str, checkpoint_id: int) -> None:
    """The hook of a job: wait for the kill at one moment."""
    if pause == f"{moment}:{checkpoint_id}":
        say(job, "paused", checkpoint_id)
        time.sleep(3600)


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    described = JOBS[arguments.job]()
    job = described.on_spark(
        {stream: read(spark, arguments.folder / stream) for stream in described.graph.streams},
        checkpoint=arguments.folder / "checkpoint",
        store=STORES[arguments.store],
        partitions=PARTITIONS.get(arguments.job, 2),
        paths={"direct_scan", "in_driver"} if arguments.in_driver else {"direct_scan"},
    )
    query = job.with_hook(partial(wait_at, arguments.job, arguments.pause)).start()
    say(arguments.job, "started", query.checkpoint_id)
    query.processAllAvailable()
    query.stop(drain=arguments.drain)
    say(arguments.job, "done", query.checkpoint_id)


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
    # Not above: the process of a query on Spark Connect imports this module, and has pyspark from an archive.
    from tests.servers.packages import INTERPRETED

    jobs = [parsed(list(part)) for plus, part in groupby(words, "+".__eq__) if not plus]
    for one in jobs:
        Checkpoint.open_or_create(one.folder / "checkpoint")
    own = INTERPRETED if jobs[0].for_seconds else {}
    spark = local_session(jobs[0].job, **(CLUSTER if jobs[0].executors else LOCAL), **own)
    at_once(partial(_run_or_end, spark), jobs)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
