"""A root from the state of a query of Spark's own: the plan, and what it needs to be made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.local.history_files import HistoryFiles, schema_of
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.spark_log import local_file
from tidestate.recovery.log.summary import pluralize, time_text
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.recovery.spark.spark_query import open_log, read_query
from tidestate.statestore.distribution import install
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import public_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidestate.operators.spark.adopt import Adoption

_SETTINGS = {
    "spark.app.name": "tidestate adopt",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Of a session that only reads; where it runs is for Spark's own configuration to say."""


@dataclass(frozen=True, repr=False, eq=False)
class AdoptionPlan(RootPlan):
    """A new root with the state, watermark and offsets of a query of Spark's own, at which the job goes on."""

    adoption: Adoption
    partitions: int
    deliver: bool
    manifest: Manifest | None = None

    @classmethod
    def of(
        cls,
        location: str,
        root: str,
        description: Runnable,
        schema: pa.Schema | str | None = None,
        buffers: Mapping[str, int] | None = None,
        partitions: int | None = None,
        *,
        deliver: bool = True,
    ) -> Self:
        """By default with the columns of the file that the query has read last. Raises as `plan_adoption`."""
        columns = _columns(schema, location)
        session = _session()
        from tidestate.operators.spark.adopt import plan_adoption  # pyspark is an extra

        adoption = plan_adoption(session, location, root, description, columns, buffers=buffers)
        return cls(adoption, partitions or os.cpu_count() or 1, deliver)

    @property
    def done(self) -> bool:
        return self.manifest is not None

    def execute(self) -> Self:
        """Make the root. Raises as `execute_adoption`."""
        from tidestate.operators.spark.adopt import execute_adoption

        manifest = execute_adoption(self.adoption, partitions=self.partitions, deliver=self.deliver)
        return replace(self, manifest=manifest)

    def as_dict(self) -> dict[str, Any]:
        adoption, query = self.adoption, self.adoption.query
        facts = {
            "root": adoption.root,
            "query": query.query_id,
            "batch": query.batch_id,
            "kind": adoption.kind,
            "rows": adoption.taken.rows.num_rows,
            "watermark_us": adoption.mark_us,
            "offsets": list(query.end),
            "files": sum(map(len, query.files.values())),
            "again": [query.batch_id + 1, query.planned] if query.planned > query.batch_id else None,
            "done": self.done,
        }
        return facts if self.manifest is None else {**facts, "checkpoint": self.manifest.id}

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        adoption, query = self.adoption, self.adoption.query
        yield "created" if self.done else "to create", public_url(adoption.root)
        if self.manifest is not None:
            yield "checkpoint", str(self.manifest.id)
        yield "spark query", f"{query.query_id}, committed up to batch {query.batch_id}"
        yield "state", f"{adoption.kind}: {pluralize(adoption.taken.rows.num_rows, 'row')}"
        yield "watermark", time_text(adoption.mark_us) or "-"
        for source, end in enumerate(query.end):
            files = f" ({pluralize(len(query.files[source]), 'file')} read)" if source in query.files else ""
            yield f"source {source}", f"goes on after {end}{files}"
        if query.planned > query.batch_id:
            numbers = (
                f"spark batch {query.batch_id + 1} was planned and not committed (planned up to {query.planned})"
            )
            effect = "the job processes its input; what it has already put into a sink comes again"
            yield "once more", f"{numbers}: {effect}"


def _columns(schema: pa.Schema | str | None, location: str) -> pa.Schema:
    """The columns of the job's stream: as given, or those of the Parquet file that the query has read last."""
    if schema is not None:
        return schema_of(schema) if isinstance(schema, str) else schema
    query = read_query(open_log(location))
    names = [entry.rpartition(" ")[0] for files in query.files.values() for entry in files]
    path = local_file(names[-1]) if names else None
    if path is None or path.suffix.lower() != ".parquet" or not path.exists():
        raise UsageError(
            "the columns of the job's stream are not known, as the query has read no local Parquet file: give "
            'them with schema=, such as "t timestamp, k string"',
            code="adopt-schema",
        )
    return HistoryFiles.find([str(path)]).schema


def _session() -> SparkSession:
    """The Spark session of this process, or a local one."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(
            f"an adoption needs spark to read its state: {install('spark')}", code="adopt-spark"
        ) from error
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    builder: Any = SparkSession.builder
    try:
        session: SparkSession = builder.config(map=_SETTINGS).getOrCreate()
    except (PySparkException, OSError) as error:
        raise UsageError(
            "spark cannot be started here: it needs Java, 17 or 21 for Spark 4, in JAVA_HOME or on the path",
            code="adopt-spark",
            why=next(iter(str(error).splitlines()), type(error).__name__),
        ) from None
    return session
