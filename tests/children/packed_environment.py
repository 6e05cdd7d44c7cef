"""A job for spark-submit, whose workers have a packed environment and not these tests."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.children.commanded_job import say
from tests.children.sent_package import run


def main(root: str, source: str) -> None:
    """Reports as JSON lines where the workers have Python and the package, and how the job ends."""

    def places(_: int) -> tuple[str, str]:
        import tidestate

        return sys.executable, str(tidestate.__file__)

    spark = SparkSession.builder.getOrCreate()
    ((python, package),) = spark.sparkContext.parallelize([0], 1).map(places).collect()
    say("workers", python=python, package=package)
    run(spark, source, root)
    spark.stop()
