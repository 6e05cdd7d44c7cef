"""The platform of a session of Spark Connect. What it does without `Platform` says."""

from __future__ import annotations

import re
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.connect.plan_text import source_twice
from tidestate.operators.spark.connect.relations import separated
from tidestate.operators.spark.platform import FILE_MANAGER, SPARK_ERRORS, WITHOUT_LINKS, Platform, setting_of
from tidestate.recovery.log.spark_log import literal_path
from tidestate.statestore.errors import UsageError

_SPLITS = re.compile(r"splits=Some\((\d+)\)")
DEFAULT_PARALLELISM = 2
"""Where a server does not say how many tasks run at once."""


class ConnectPlatform(Platform):
    """What a client of a server has, and the server's process of a query."""

    is_connect = True

    @property
    def parallelism(self) -> int:
        """The number of partitions that the server divides a range among."""
        said = _SPLITS.search(self.session.range(1)._explain_string(extended=True))
        return max(1, int(said[1])) if said else DEFAULT_PARALLELISM

    def has_same_session(self, session: SparkSession) -> bool:
        """Whether a session is that in which the client has described the job."""
        return bool(session.session_id == self.session.session_id)

    def why_unseen(self, url: str) -> str | None:
        """Why Spark does not find a file; None if it does."""
        try:
            # Workers read it, so it says more than a look from the server would.
            stamps = self._stamps(url)
        except SPARK_ERRORS as error:
            return str(error).strip().partition("\n")[0]
        return None if stamps else "nothing is there"

    def file_stamp(self, url: str) -> tuple[int, int]:
        """When a file was modified last, in milliseconds, and its size in bytes."""
        # Spark's list of files has URLs that are escaped, and its readers take paths that are not.
        (stamp,) = self._stamps(unquote(url))
        return stamp

    def separated(self, stream: DataFrame) -> DataFrame:
        """The stream with a source for each place that reads one. Raises `UsageError` (``source-twice``) where a view
        that reads one is there twice: the server knows what is in it, and no client.
        """
        apart = separated(stream)
        if (source := source_twice(apart._explain_string(extended=True))) is not None:
            raise UsageError(
                "this stream reads one source twice by a view or a query, which Spark would read once: read it with "
                "spark.readStream for each place",
                code="source-twice",
                source=source,
            )
        return apart

    @property
    def file_manager(self) -> str:
        """The class that writes the log of a query, as far as the server lets a client read its settings."""
        return setting_of(self.session, FILE_MANAGER, "")

    @property
    def file_manager_without_links(self) -> str | None:
        """The class that a Spark of the server's version has: a client cannot look for it."""
        major, minor = map(int, self.session.version.split(".")[:2])
        return WITHOUT_LINKS[0] if (major, minor) >= (4, 1) else WITHOUT_LINKS[1]

    def _stamps(self, url: str) -> list[tuple[int, int]]:
        files = self.session.read.format("binaryFile").load(literal_path(url))
        rows = files.selectExpr("unix_millis(modificationTime) modified", "length").collect()
        return [(int(row["modified"]), int(row["length"])) for row in rows]
