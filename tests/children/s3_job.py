"""A job on Spark with Hadoop's S3A: ``python -m tests.children.s3_job INPUT [JARS]``.

Without ``JARS`` Spark fetches them. Besides what any is told: ``["bootstrap", ROOT, FILES]`` and
``["set", NAME, VALUE]``.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame

from tests.children.commanded_job import Told, obey, say
from tests.helpers.spark_inputs import SCHEMA

PACKAGES = "org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:s3-transfer-manager:2.35.4"
EXCLUDES = "software.amazon.awssdk:bundle"
"""The whole SDK in one file; what S3A needs of it comes with the transfer manager."""


class ToldS3(Told):
    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(self.source)

    def bootstrap(self, root: str, files: list[str]) -> None:
        made = self.job(root).bootstrap(self.spark.read.schema(SCHEMA).parquet(*files))
        say("bootstrapped", checkpoint=made.id)

    def set(self, name: str, value: str) -> None:
        self.spark.conf.set(name, value)
        say("set")


def main(folder: str, jars: str = "") -> None:
    packages = {"spark.jars.packages": PACKAGES, "spark.jars.excludes": EXCLUDES}
    obey(
        ToldS3,
        folder,
        **({"spark.jars": jars} if jars else packages),
        **{"spark.hadoop.fs.s3a.path.style.access": "true"},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
