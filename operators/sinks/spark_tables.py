"""Tables of Spark's catalogues, written by Spark's own writers: by DataFrames and SQL alone, so that Spark Connect
needs nothing of ours in the server.

**Delta** knows by itself which deliveries a table has: each version has the transaction ``txnAppId`` = run and
``txnVersion`` = checkpoint, appends by options of the writer and merges by settings of the session, and a write whose
transaction is there does nothing. The id is in ``userMetadata`` too, which SQL can read.

**Iceberg** knows no transactions of applications, and its writers repeat an append that lost to another commit. So a
delivery is written to a branch, which begins at the snapshot of ``main`` that was looked at and found without the id.
Then ``main`` is moved to its end, which fails if ``main`` is no longer where the branch begins: two drivers with one
delivery cannot both move it. The last snapshot of the branch has the id as a property.

| who dies | leaves | what follows |
|---|---|---|
| before the commit of Delta, before ``main`` is moved | files of no version, a branch that nobody reads | all again |
| after it | the id in the table | the delivery is recognised, and skipped |
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidestate.operators.sinks.iceberg import DELIVERY
from tidestate.operators.sinks.spark_forms import GONE
from tidestate.operators.sinks.stored_columns import quoted_in_spark
from tidestate.recovery.log.outputs import DeliveryId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART = re.compile(r"`(?:[^`]|``)+`|[^.`/:]+")
_NOTED = "tidestate:"
"""What ``userMetadata`` of a version begins with, before the id of its delivery."""
_DELTA_SETTINGS = ("write.txnAppId", "write.txnVersion", "commitInfo.userMetadata")
_OF_A_CATALOG = 2
"""A name with more parts than a schema and a table begins with a catalogue."""
_NEWEST = 64
"""So many versions of a Delta table are looked through before all of them are."""


class SparkTable(ABC):
    """A table of this ``name`` in the catalogue of a ``session``."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self.session = session
        self.quoted = quoted_name(name)

    @abstractmethod
    def append(self, rows: DataFrame, delivery: DeliveryId) -> None:
        """Add rows with the columns of the table, or nothing if the delivery, or a later one of its run, is there."""

    @abstractmethod
    def merge(self, rows: DataFrame, by: Sequence[str], delivery: DeliveryId) -> None:
        """Replace the rows of the same identity ``by``, and take out those that are `GONE`; or nothing, as above."""

    @abstractmethod
    def delivered(self, run: str) -> int | None:
        """The newest checkpoint of a run that it has, 0 for none; None if its history does not go back so far."""

    @abstractmethod
    def compacted_us(self) -> int:
        """When small files were rewritten last, or the table was made."""

    @abstractmethod
    def compact(self) -> None:
        """Rewrite small files, as the format does that itself."""

    def merge_statement(self, target: str, source: str, rows: DataFrame, by: Sequence[str]) -> str:
        """The upsert of ``rows`` as a statement of SQL, from the view ``source`` into ``target``."""
        names = [quoted_in_spark(name) for name in rows.columns if name != GONE]
        same = " AND ".join(f"t.{quoted_in_spark(name)} = s.{quoted_in_spark(name)}" for name in by)
        return (
            f"MERGE INTO {target} t USING {source} s ON {same} "
            f"WHEN MATCHED AND s.{GONE} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)} "
            f"WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)})"
        )


class SparkDeltaTable(SparkTable):
    """A table of Delta Lake, written by transactions of applications."""

    def append(self, rows: DataFrame, delivery: DeliveryId) -> None:
        made = {"txnAppId": delivery.run, "txnVersion": str(delivery.checkpoint), "userMetadata": _noted(delivery)}
        rows.write.format("delta").mode("append").options(**made).saveAsTable(self.quoted)

    def merge(self, rows: DataFrame, by: Sequence[str], delivery: DeliveryId) -> None:
        values = (delivery.run, str(delivery.checkpoint), _noted(delivery))
        names = [f"spark.databricks.delta.{name}" for name in _DELTA_SETTINGS]
        with _session_with(self.session, dict(zip(names, values, strict=True))) as session, _view(rows) as source:
            session.sql(self.merge_statement(self.quoted, source, rows, by)).collect()

    def delivered(self, run: str) -> int | None:
        for limit in (f" LIMIT {_NEWEST}", ""):
            history = self.session.sql(f"DESCRIBE HISTORY {self.quoted}{limit}").select("version", "userMetadata")
            versions = history.collect()
            ids = (_delivery_of(str(row["userMetadata"] or "").removeprefix(_NOTED)) for row in versions)
            if found := [delivery.checkpoint for delivery in ids if delivery is not None and delivery.run == run]:
                return max(found)
        return 0 if min((row["version"] for row in versions), default=0) == 0 else None

    def compacted_us(self) -> int:
        history = self.session.sql(f"DESCRIBE HISTORY {self.quoted}")
        last = history.selectExpr(
            "coalesce(unix_micros(max(CASE WHEN operation = 'OPTIMIZE' THEN timestamp END)), "
            "unix_micros(min(timestamp)), 0) AS last"
        )
        return int(last.collect()[0]["last"])

    def compact(self) -> None:
        self.session.sql(f"OPTIMIZE {self.quoted}").collect()


class SparkIcebergTable(SparkTable):
    """A table of Apache Iceberg, written by branches."""

    def append(self, rows: DataFrame, delivery: DeliveryId) -> None:
        with self._branch(delivery) as branch:
            if branch is not None:
                rows.writeTo(branch).option(f"snapshot-property.{DELIVERY}", str(delivery)).append()

    def merge(self, rows: DataFrame, by: Sequence[str], delivery: DeliveryId) -> None:
        with self._branch(delivery) as branch:
            if branch is not None:
                with _view(rows) as source:
                    self.session.sql(self.merge_statement(branch, source, rows, by)).collect()
                # A statement can give its snapshot no property, so one without rows follows: both are seen at once.
                none = self.session.table(self.quoted).limit(0)
                none.writeTo(branch).option(f"snapshot-property.{DELIVERY}", str(delivery)).append()

    @contextmanager
    def _branch(self, delivery: DeliveryId) -> Iterator[str | None]:
        """A branch to write to, whose rows are those of the table afterwards; None if the delivery is there."""
        self.session.sql(f"REFRESH TABLE {self.quoted}").collect()  # catalogues keep tables for a while
        # The head first: what comes between both questions is in the ids, and not in the branch.
        heads = self.session.sql(f"SELECT snapshot_id FROM {self.quoted}.refs WHERE name = 'main'").collect()
        if self.delivered(delivery.run) >= delivery.checkpoint:
            yield None
            return
        branch = f"tidestate_{uuid.uuid4().hex}"
        begin = f"AS OF VERSION {heads[0]['snapshot_id']} " if heads else ""
        # What a kill leaves goes with ``expire_snapshots`` after a day.
        self.session.sql(f"ALTER TABLE {self.quoted} CREATE BRANCH {branch} {begin}RETAIN 1 DAYS").collect()
        try:
            yield f"{self.quoted}.branch_{branch}"
            self._call("fast_forward", f"branch => 'main', to => '{branch}'")
        finally:
            self.session.sql(f"ALTER TABLE {self.quoted} DROP BRANCH IF EXISTS {branch}").collect()

    def delivered(self, run: str) -> int:
        ids = self.session.sql(
            f"SELECT s.summary['{DELIVERY}'] AS id FROM {self.quoted}.history h JOIN {self.quoted}.snapshots s "
            f"ON h.snapshot_id = s.snapshot_id WHERE h.is_current_ancestor AND s.summary['{DELIVERY}'] IS NOT NULL"
        )
        found = (_delivery_of(row["id"]) for row in ids.collect())
        return max((one.checkpoint for one in found if one is not None and one.run == run), default=0)

    def compacted_us(self) -> int:
        last = self.session.sql(
            "SELECT coalesce(unix_micros(max(CASE WHEN operation = 'replace' THEN committed_at END)), "
            f"unix_micros(min(committed_at)), 0) AS last FROM {self.quoted}.snapshots"
        )
        return int(last.collect()[0]["last"])

    def compact(self) -> None:
        self._call("rewrite_data_files", "options => map('min-input-files', '2')")

    def _call(self, procedure: str, arguments: str) -> None:
        """Call a procedure of the catalogue of the table with the table, and these ``arguments``."""
        parts = name_parts(self.quoted)
        catalog = parts[0] if len(parts) > _OF_A_CATALOG else quoted_in_spark(self._current_catalog())
        table = self.quoted.replace("\\", "\\\\").replace("'", "\\'")
        statement = f"CALL {catalog}.system.{procedure}(table => '{table}', {arguments})"
        self.session.sql(statement).collect()

    def _current_catalog(self) -> str:
        return str(self.session.sql("SELECT current_catalog() AS name").collect()[0]["name"])


SPARK_TABLES: Mapping[str, type[SparkTable]] = {"delta": SparkDeltaTable, "iceberg": SparkIcebergTable}
"""By what Spark calls the provider of a table."""


def name_parts(name: str) -> list[str]:
    """The parts of a name as Spark's SQL reads them, ``catalog.schema.table``; quoted ones with their quotes."""
    return _PART.findall(name)


def quoted_name(name: str) -> str:
    """The same name with quotes around each part."""
    return ".".join(part if part.startswith("`") else quoted_in_spark(part) for part in name_parts(name))


def provider_of(session: SparkSession, name: str) -> str | None:
    """The provider of a table, such as ``delta``; None where there is no table."""
    if not session.catalog.tableExists(quoted_name(name)):
        return None
    described = session.sql(f"DESCRIBE TABLE EXTENDED {quoted_name(name)}").collect()
    return next((str(row["data_type"]).lower() for row in described if row["col_name"] == "Provider"), "")


@contextmanager
def _session_with(session: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session like this one that has these ``settings`` too. A classic one is a copy: another thread of the user's
    that writes in the meantime would write under our transaction. On Spark Connect it is that of the query's process.
    """
    own = session
    if hasattr(session, "_jsparkSession"):
        own = session.newSession()
        for row in session.sql("SET").collect():
            _try_to_set(own, row[0], row[1])
        names = session.sql("SELECT current_catalog() AS c, current_database() AS d").collect()[0]
        own.sql(f"USE {quoted_in_spark(names['c'])}.{quoted_in_spark(names['d'])}").collect()
    try:
        for name, value in settings.items():
            own.conf.set(name, value)
        yield own
    finally:
        for name in settings:
            own.conf.unset(name)


def _try_to_set(session: SparkSession, name: str, value: str) -> None:
    """Settings that are the same for all sessions cannot be set, and need not be."""
    if session.conf.isModifiable(name):
        session.conf.set(name, value)


@contextmanager
def _view(rows: DataFrame) -> Iterator[str]:
    """A name for rows in statements of any session."""
    name = f"tidestate_{uuid.uuid4().hex}"
    rows.createOrReplaceGlobalTempView(name)
    try:
        yield f"global_temp.{name}"
    finally:
        rows.sparkSession.catalog.dropGlobalTempView(name)


def _noted(delivery: DeliveryId) -> str:
    return f"{_NOTED}{delivery}"


def _delivery_of(text: Any) -> DeliveryId | None:
    run, _, number = str(text).rpartition("-")
    return DeliveryId(run, int(number)) if run and number.isdecimal() else None
