"""A job on Spark whose root is in any storage: ``python -m tests.children.rooted_job '{"input": …, "settings": …}'``
with the settings by which Spark reaches that storage, then ``JARS`` if they were fetched before.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame

from tests.children.commanded_job import Commands, obey, say
from tests.helpers.spark_inputs import SCHEMA
from tests.servers.packages import INTERPRETED
from tidestate.operators.spark.root_views import try_through
from tidestate.recovery.log.checkpoint import Checkpoint


class RootedCommands(Commands):
    """Those of any job, and what Spark sees of the root."""

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(self.source)

    def panes(self, root: str) -> None:
        """How many rows Spark reads in the files of panes."""
        say("panes", rows=self.spark.read.parquet(*Checkpoint.open(root).pane_paths()).count())

    def doctor(self, root: str) -> None:
        """What ``tidestate doctor --spark`` tries through this session."""
        say("tried", checks={check.name: [check.holds, check.found] for check in try_through(self.spark, root)})


def main(given: str, jars: str = "") -> None:
    """With ``JARS`` in place of packages, if a process before has fetched them."""
    about = json.loads(given)
    settings = dict(about["settings"])
    if jars:
        settings.pop("spark.jars.packages", None)
        settings.pop("spark.jars.excludes", None)
        settings["spark.jars"] = jars
    obey(RootedCommands, about["input"], **settings, **INTERPRETED)


if __name__ == "__main__":
    main(*sys.argv[1:])
