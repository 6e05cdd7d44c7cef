"""The job once on Spark, in a process of its own: ``python -m tidestate.operators.chaos.spark_child START``."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.chaos.child import noted, sinks_of
from tidestate.operators.chaos.start import STORE_CONFIGS, ChildStart, JobInput, Notes
from tidestate.operators.local.bootstrap import load_job
from tidestate.operators.streams.running import SHORTCUTS

_SETTINGS = {
    "spark.app.name": "tidestate chaos",
    "spark.master": "local[2]",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def _run(start: ChildStart, notes: Notes) -> None:
    stream = load_job(start.job.description)
    builder: Any = SparkSession.builder
    spark: SparkSession = builder.config(map=_SETTINGS).getOrCreate()
    job_input = start.job.input
    streams = {name: _stream(spark, job_input, name) for name in job_input.folders}
    query = stream.on_spark(
        streams,
        checkpoint=start.folders.root,
        store=STORE_CONFIGS[start.store],
        sink=sinks_of(start, notes, stream),
        partitions=start.partitions,
        paths=SHORTCUTS if start.in_driver else {"direct_scan"},
    ).start()
    notes.write("started", checkpoint=query.checkpoint_id)
    query.processAllAvailable()
    query.stop(drain=True)
    notes.write("drained")
    spark.stop()


def _stream(spark: SparkSession, job_input: JobInput, name: str) -> DataFrame:
    """The files of a stream, one a batch."""
    folder, form = str(job_input.folders[name]), job_input.form(name)
    schema = job_input.columns or spark.read.format(form).load(folder).schema
    options = {"maxFilesPerTrigger": "1", **({"header": "true"} if form == "csv" else {})}
    return spark.readStream.schema(schema).format(form).options(**options).load(folder)


if __name__ == "__main__":
    noted(pickle.loads(Path(sys.argv[1]).read_bytes()), _run)
