"""The checkpoint root for Spark: Hadoop's file systems write Spark's checkpoint there, fsspec writes ours."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidestate.operators.spark.compat import java_class
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.marker import MARKER
from tidestate.recovery.log.spark_files import SPARK_FOLDER
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.objects import Objects


def open_with(session: SparkSession, root: str) -> Checkpoint:
    """Open or create a root in storage that Spark reaches too.

    Raises `UsageError`: ``spark-storage`` if Spark has no file system for it, before anything is written, and
    ``spark-storage-differs`` if Spark does not find what this process has written.
    """
    path, system = _file_system(session, Objects(root).url(MARKER))
    checkpoint = Checkpoint.open_or_create(root)
    try:
        seen, reason = system.exists(path), "nothing is there"
    except Py4JJavaError as error:
        seen, reason = False, _one_line(error)
    if not seen:
        raise UsageError(
            "spark does not find the checkpoint root of this process: give both the same endpoint and credentials "
            "(docs/how-to/run-on-a-cluster.md)",
            code="spark-storage-differs",
            url=checkpoint.objects.url(MARKER),
            reason=reason,
        )
    return checkpoint


def _file_system(session: SparkSession, url: str) -> tuple[Any, Any]:
    path = java_class(session, "org.apache.hadoop.fs.Path")(url)
    settings = session._jsparkSession.sessionState().newHadoopConf()  # type: ignore[attr-defined]
    try:
        return path, path.getFileSystem(settings)
    except Py4JJavaError as error:
        raise UsageError(
            f"spark has no file system for this root, where its own checkpoint ({SPARK_FOLDER}/) is kept too: for "
            "s3:// it needs hadoop-aws (docs/how-to/run-on-a-cluster.md)",
            code="spark-storage",
            url=url,
            reason=_one_line(error),
        ) from None


def _one_line(error: Py4JJavaError) -> str:
    """The first line of Java's error."""
    return str(error.java_exception.toString()).splitlines()[0]
