"""The format ``tidestate`` of Spark: a root as a data source, batch and stream."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.options import root_with_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@checked
def register(
    spark: SparkSession, *, storage_options: Mapping[str | os.PathLike[str], Mapping[str, Any]] | None = None
) -> None:
    """Make the format ``tidestate`` known to a session: ``spark.read.format("tidestate")``, in SQL ``USING
    tidestate``, and ``spark.readStream`` for panes; docs/how-to/read-a-root.md has the options.

    ``storage_options`` are fsspec's, such as credentials, by root, and hold for the folders below it. They go to the
    processes of Spark that read, are in no plan or checkpoint, and replace those of an earlier call in the session.
    Raises `UsageError`: ``storage-options`` for those of a local root, ``spark-version`` before Spark 4.0, where
    `Root.panes` and the like with ``spark=`` work.
    """
    from tidestate.operators.spark.compat import SPARK_4  # pyspark is an extra

    if not SPARK_4:
        raise UsageError(
            "data sources in Python need Spark 4.0: read a root with Root(…).panes(spark=…), late, state or changes",
            code="spark-version",
        )
    from tidestate.operators.inspect.spark_source import TidestateSource, source_with_options

    roots = [root_with_options(root, options) for root, options in (storage_options or {}).items()]
    spark.dataSource.register(source_with_options(roots) if roots else TidestateSource)
