"""A query on Spark that is asked from elsewhere, to be killed; told what to do as `tests.children.commanded_job`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.children.commanded_job import Commands, obey
from tests.helpers.spark_inputs import job
from tests.helpers.spark_runs import stream
from tidestate import OperatorStream
from tidestate.operators.describe.runs import SparkJob


def retained() -> OperatorStream:
    """The job of Spark tests, whose windows are retained for late events that are put back."""
    return job().retain_windows("1 hour")


class RequestedOnSpark(Commands):
    """Its source is a folder of files."""

    def job(self, root: str, **_options: Any) -> SparkJob:
        return retained().on_spark(stream(self.spark, Path(self.source)), checkpoint=root, partitions=2)


if __name__ == "__main__":
    obey(RequestedOnSpark, sys.argv[1])
