"""The function that a client of Spark Connect gives to ``foreachBatch``."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame

from tidestate.operators.describe.runnable import imported
from tidestate.operators.spark.connect.failed import leave_refusal
from tidestate.operators.spark.connect.settings import JobSettings
from tidestate.operators.spark.failures import CarriedError
from tidestate.statestore.errors import TidestateError, UsageError

OF_THE_SERVER = "SPARK_CONNECT_LOCAL_URL"
"""What the environment of the server's process of a query has, and no other's."""


class JobOfQuery:
    """The function that a client gives to ``foreachBatch``. Unpickled in the server's process, the job begins."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._query: Any = None

    def __getstate__(self) -> JobSettings:
        return self._settings

    def __setstate__(self, settings: JobSettings) -> None:
        self._settings, self._query = settings, None
        if OF_THE_SERVER not in os.environ:
            return
        try:
            self._query = imported("spark.job", "begin_in_server")(settings)
        except TidestateError as error:
            carried = CarriedError(error)
            leave_refusal(settings.start_id, carried)
            raise carried from error.__cause__

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Process a batch, as Spark calls the function."""
        if self._query is None:
            raise UsageError("a job begins where its query runs", code="not-started")
        try:
            self._query.take_batch(batch, number)
        except TidestateError as error:
            raise CarriedError(error) from error.__cause__
