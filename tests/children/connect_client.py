"""A client of Spark Connect that starts the job of `tests.helpers.spark_inputs` and waits to be killed."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.helpers.spark_inputs import job
from tests.helpers.spark_runs import stream

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    session = SparkSession.builder.remote(given.url).create()
    started = job().on_spark(stream(session, given.folder / "input"), checkpoint=given.folder / "root", partitions=3)
    query = started.start()
    print(json.dumps({"event": "started", "checkpoint": query.checkpoint_id}), flush=True)
    while True:
        time.sleep(1)
