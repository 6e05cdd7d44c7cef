"""The job itself, in a process of its own so that it can be killed: ``python -m tools.demo.job``.

It says where it is in JSON lines on standard output. With ``--pause before-manifest:N`` it stops dead in the commit
of checkpoint N, its segments written and its manifest not, and waits there for the SIGKILL; ``after-manifest:N`` is
the moment after it.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tidestate import agg, stores
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.store import StoreConfig
from tools.demo.flights import SCHEMA
from tools.java import local_session

STORES: dict[str, StoreConfig] = {
    "parquet": stores.Parquet(),
    "memory": stores.Memory(),
    "rocksdb": stores.RocksDB(),
}


def flights_per_hour() -> ts.Aggregation:
    """The computation of the demo."""
    return (
        ts.stream(event_time="scheduled", watermark_delay="30 minutes")
        .group_by("origin")
        .window(ts.tumbling("1 hour"))
        .aggregate(flights=agg.count(), mean_delay=agg.mean("dep_delay"), worst=agg.max("dep_delay"))
        .allowed_lateness("6 hours", ledger_columns=["flight_id"])
        .accumulation("retracting")
        .named("flights_per_hour")
    )


def stream(spark: SparkSession, folder: str) -> DataFrame:
    """The flights as a stream, one file a batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)


def say(event: str, **facts: Any) -> None:
    """Print one JSON line for the parent process."""
    print(json.dumps({"event": event, **facts}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--store", choices=STORES, default="parquet")
    parser.add_argument("--pause", default="", help="MOMENT:CHECKPOINT")
    parser.add_argument("--drain", action="store_true")
    arguments = parser.parse_args()

    checkpoint = Checkpoint.open_or_create(arguments.checkpoint)

    def hook(moment: str, checkpoint_id: int) -> None:
        if moment == "after-manifest":
            manifest = checkpoint.read(checkpoint_id).manifest
            batch = manifest.spark.batch_id if manifest.spark else -1
            say("checkpoint", checkpoint=checkpoint_id, kind=manifest.kind, batch=batch)
        if arguments.pause == f"{moment}:{checkpoint_id}":
            say("paused", checkpoint=checkpoint_id)
            time.sleep(3600)

    spark = local_session("flights")
    job = flights_per_hour().on_spark(
        stream(spark, arguments.input),
        checkpoint=arguments.checkpoint,
        store=STORES[arguments.store],
        partitions=2,
    )
    query = job.with_hook(hook).start()
    say("started", checkpoint=query.checkpoint_id)
    query.processAllAvailable()
    query.stop(drain=arguments.drain)
    say("done", checkpoint=query.checkpoint_id)
    spark.stop()


if __name__ == "__main__":
    main()
