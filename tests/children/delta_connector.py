"""A Spark job that writes to a Delta table by Delta's own connector, to be killed between the commit of the table and
that of the job: ``python -m tests.children.delta_connector JARS FOLDER TABLE [DELIVERY]``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from unittest import mock

from pyspark.sql import DataFrame

from tests.helpers.spark_inputs import SCHEMA, job
from tidestate.operators import DeliveryId
from tidestate.operators.sinks import delta
from tidestate.sinks import DeltaSink
from tools.demo.job import say
from tools.java import local_session


def main(jars: str, folder: str, table: str, pause: str = "") -> None:
    """Run to the end, or until the kill."""
    session = local_session(
        "delta",
        **{
            "spark.jars": jars,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )
    sink, number = DeltaSink(table), 0

    def taken(rows: DataFrame, delivery: DeliveryId) -> None:
        nonlocal number
        sink(rows, delivery)
        number += 1
        if pause and number == int(pause):
            say("paused", checkpoint=delivery.checkpoint)
            time.sleep(600)

    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(Path(folder) / "input"))
    with mock.patch.object(delta, "package", side_effect=AssertionError("only the connector writes")):
        query = job().on_spark(stream, checkpoint=Path(folder) / "root", sink=taken, partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=True)
    session.stop()
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
