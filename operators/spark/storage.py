"""The checkpoint root for Spark: Hadoop's file systems write Spark's checkpoint there, fsspec writes ours."""

from __future__ import annotations

from tidestate.operators.spark.platform import Platform
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.marker import MARKER
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.objects import Objects


def open_with(platform: Platform, root: str) -> Checkpoint:
    """Open or create a root in storage that Spark reaches too.

    Raises `UsageError`: ``spark-storage`` if Spark has no file system for it, before anything is written, and
    ``spark-storage-differs`` if Spark does not find what this process has written.
    """
    url = Objects(root).url(MARKER)
    platform.check_file_system(url)
    checkpoint = Checkpoint.open_or_create(root)
    if (reason := platform.why_unseen(url)) is not None:
        raise UsageError(
            "spark does not find the checkpoint root of this process: give both the same endpoint and credentials "
            "(docs/how-to/run-on-a-cluster.md)",
            code="spark-storage-differs",
            url=url,
            reason=reason,
        )
    return checkpoint
