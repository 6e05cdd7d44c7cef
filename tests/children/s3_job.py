"""A job on Spark with Hadoop's S3A: ``python -m tests.children.s3_job INPUT [JARS]``.

Without ``JARS`` Spark fetches them. Further commands: ``["bootstrap", ROOT, FILES]``, ``["panes", ROOT]`` and
``["set", NAME, VALUE]``.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame

from tests.children.commanded_job import Commands, obey, say
from tests.helpers.spark_inputs import SCHEMA
from tests.servers.packages import INTERPRETED, READS_ENDPOINT, S3A, WITHOUT_BUNDLE
from tidestate.recovery.log.checkpoint import Checkpoint


class S3Commands(Commands):
    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(self.source)

    def bootstrap(self, root: str, files: list[str]) -> None:
        made = self.job(root).bootstrap(self.spark.read.schema(SCHEMA).parquet(*files))
        say("bootstrapped", checkpoint=made.id)

    def panes(self, root: str) -> None:
        say("panes", rows=self.spark.read.parquet(*Checkpoint.open(root).pane_paths()).count())

    def set(self, name: str, value: str) -> None:
        self.spark.conf.set(name, value)
        say("set")


def main(folder: str, jars: str = "") -> None:
    endpoint = {} if READS_ENDPOINT else {"spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"]}
    packages = {"spark.jars.packages": ",".join(S3A), "spark.jars.excludes": WITHOUT_BUNDLE}
    obey(
        S3Commands,
        folder,
        **({"spark.jars": jars} if jars else packages),
        **endpoint,
        **{"spark.hadoop.fs.s3a.path.style.access": "true"},
        **INTERPRETED,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
