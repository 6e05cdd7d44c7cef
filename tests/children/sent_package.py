"""A job whose Python workers lack this package, without it and with it sent by addPyFile.

``python -m tests.children.sent_package ROOT INPUT PACKAGE``. Reports events as JSON lines.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from tests.children.commanded_job import say
from tests.helpers.spark_inputs import SCHEMA, job
from tidestate.statestore.errors import TidestateError
from tools.java import java_home


def session() -> SparkSession:
    """As a user would begin it: `tools.java` would give the workers this checkout."""
    os.environ |= {"JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]")
    return builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()


def run(spark: SparkSession, source: str, root: str) -> None:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)
    try:
        query = job().on_spark(rows, checkpoint=root, partitions=2, paths={"direct_scan"}).start()
        query.processAllAvailable()
        query.stop(drain=True)
        say("finished")
    except TidestateError as error:
        say("refused", code=error.code, written=os.path.exists(root))


def main(root: str, source: str, package: str) -> None:
    os.environ.pop("PYTHONPATH", None)
    os.chdir(os.path.dirname(root))  # workers import from where they start
    spark = session()
    run(spark, source, root)
    spark.sparkContext.addPyFile(package)
    run(spark, source, root)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
