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

**Withdrawal.** In Iceberg rows are deleted on a branch too, whose last snapshot says up to which checkpoint the
table then has had the deliveries of each run. In Delta a transaction that is there stays: what counts again one day
would be skipped. So a withdrawal gives the run another name for its transactions. A property of the table decides it:
the old name, the new one, the last checkpoint that stays. Then the rows behind that checkpoint are deleted under the
old name and the highest version there is, after which nobody can store anything under it, also not who stood still
meanwhile. Who dies in between leaves a property whose rows are still there: whoever withdraws or stores a delivery of
this run next deletes them first, and a deletion that was carried out is skipped as any transaction.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidestate.operators.sinks.iceberg import DELIVERY
from tidestate.operators.sinks.spark_forms import GONE
from tidestate.operators.sinks.stored_columns import quoted_in_spark
from tidestate.operators.sinks.withdrawn_runs import (
    NOTED,
    WITHDRAWN,
    WithdrawnRun,
    delivery_of,
    last_checkpoints,
    noted_checkpoint,
    noted_withdrawal,
)
from tidestate.recovery.log.manifest import DeliveryId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART = re.compile(r"`(?:[^`]|``)+`|[^.`/:]+")
_LAST_VERSION = 2**63 - 1
"""The highest version of a transaction: after it none is taken."""
_WITHDRAWN = "tidestate.withdrawn"
"""The property of a snapshot that has the last checkpoints which a withdrawal has left, by run."""
_DELTA_SETTINGS = ("write.txnAppId", "write.txnVersion", "commitInfo.userMetadata")
_OF_A_CATALOG = 2
"""A name with more parts than a schema and a table begins with a catalogue."""
_NEWEST = 64
"""So many versions of a Delta table are looked through before all of them are."""


class SparkTable(ABC):
    """A table of this ``name`` in the catalogue of a ``session``. ``runs`` remembers from call to call what was
    withdrawn of a run, if anything; who asks what is `delivered` forgets it.
    """

    def __init__(self, session: SparkSession, name: str, runs: dict[str, WithdrawnRun | None]) -> None:
        self.session = session
        self.quoted = quoted_name(name)
        self._runs = runs

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
    def withdraw(self, column: str, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        """Delete the rows of these deliveries, whose id is in ``column``. Of the runs in ``last`` the table then has
        had nothing after these checkpoints.
        """

    def count_ids(self, column: str) -> Mapping[str | None, int | None]:
        """How many rows have each id in a column; all have None where there is no such column."""
        rows = self.session.table(self.quoted)
        if column.lower() not in (name.lower() for name in rows.columns):
            return {None: rows.count()}
        counted = rows.groupBy(quoted_in_spark(column)).count().collect()
        return {row[0]: row[1] for row in counted}

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
        if self._was_left(delivery):
            return
        names = ("txnAppId", "txnVersion", "userMetadata")
        made = dict(zip(names, self._transaction(delivery), strict=True))
        rows.write.format("delta").mode("append").options(**made).saveAsTable(self.quoted)

    def merge(self, rows: DataFrame, by: Sequence[str], delivery: DeliveryId) -> None:
        if self._was_left(delivery):
            return
        with self._session_in(*self._transaction(delivery)) as session, _view(rows) as source:
            session.sql(self.merge_statement(self.quoted, source, rows, by)).collect()

    def delivered(self, run: str) -> int | None:
        self._runs.clear()
        withdrawn = self._withdrawn_runs().get(run)
        application = run if withdrawn is None else withdrawn.application
        for limit in (f" LIMIT {_NEWEST}", ""):
            history = self.session.sql(f"DESCRIBE HISTORY {self.quoted}{limit}").select("version", "userMetadata")
            versions = history.collect()  # the newest first
            for row in versions:
                found = noted_checkpoint(str(row["userMetadata"] or ""), run, application)
                if found is not None:
                    return found
        if withdrawn is not None:  # what is there already is skipped when it comes again
            return withdrawn.last
        return 0 if min((row["version"] for row in versions), default=0) == 0 else None

    def withdraw(self, column: str, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        for run in sorted({delivery.run for delivery in deliveries}):
            self._run(run)  # ends what another one has left
        if last:
            with self._session_in("", "0", ""):
                pass  # where a session refuses these settings nothing begins
            runs = {
                run: WithdrawnRun(f"{run}.{uuid.uuid4().hex[:12]}", self._application(run), number, column)
                for run, number in last.items()
            }
            properties = ", ".join(f"{_text(WITHDRAWN + run)} = {_text(new.as_text())}" for run, new in runs.items())
            self.session.sql(f"ALTER TABLE {self.quoted} SET TBLPROPERTIES ({properties})").collect()
            self._runs.clear()
            for run, withdrawn in runs.items():
                self._delete_rows(run, withdrawn)
        if others := [delivery for delivery in deliveries if delivery.run not in last]:
            self.session.sql(f"DELETE FROM {self.quoted} WHERE {_of_deliveries(column, others)}").collect()

    def _transaction(self, delivery: DeliveryId) -> tuple[str, str, str]:
        """The application, its version, and the note of a version of the table."""
        application = self._application(delivery.run)
        return application, str(delivery.checkpoint), f"{NOTED}{DeliveryId(application, delivery.checkpoint)}"

    def _was_left(self, delivery: DeliveryId) -> bool:
        """Whether it is of those that a withdrawal has left in the table, under the name before."""
        withdrawn = self._run(delivery.run)
        return withdrawn is not None and delivery.checkpoint <= withdrawn.last

    def _application(self, run: str) -> str:
        """Under which name the deliveries of a run are stored."""
        withdrawn = self._run(run)
        return run if withdrawn is None else withdrawn.application

    def _run(self, run: str) -> WithdrawnRun | None:
        """What was withdrawn of a run, when the rows of a withdrawal that has not ended are gone."""
        if run not in self._runs:
            withdrawn = self._withdrawn_runs().get(run)
            if withdrawn is not None:
                self._delete_rows(run, withdrawn)
            self._runs[run] = withdrawn
        return self._runs[run]

    def _withdrawn_runs(self) -> dict[str, WithdrawnRun]:
        properties = self.session.sql(f"SHOW TBLPROPERTIES {self.quoted}").collect()
        return {
            str(row["key"]).removeprefix(WITHDRAWN): WithdrawnRun.of_text(row["value"])
            for row in properties
            if str(row["key"]).startswith(WITHDRAWN)
        }

    def _delete_rows(self, run: str, withdrawn: WithdrawnRun) -> None:
        """Delete what a run has stored after its last checkpoint under the name before, once: the name is burnt."""
        column, start = quoted_in_spark(withdrawn.column), f"{run}-"
        behind = f"try_cast(substring({column}, {len(start) + 1}) AS BIGINT) > {withdrawn.last}"
        of_run = f"left({column}, {len(start)}) = {_text(start)}"
        note = noted_withdrawal({run: withdrawn.last})
        with self._session_in(withdrawn.before, str(_LAST_VERSION), note) as session:
            session.sql(f"DELETE FROM {self.quoted} WHERE {of_run} AND {behind}").collect()

    @contextmanager
    def _session_in(self, *values: str) -> Iterator[SparkSession]:
        """A session whose statements are of a transaction: application, version, note."""
        names = [f"spark.databricks.delta.{name}" for name in _DELTA_SETTINGS]
        with _session_with(self.session, dict(zip(names, values, strict=True))) as session:
            yield session

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
        with self._branch(lambda: self._has(delivery)) as branch:
            if branch is not None:
                rows.writeTo(branch).option(f"snapshot-property.{DELIVERY}", str(delivery)).append()

    def merge(self, rows: DataFrame, by: Sequence[str], delivery: DeliveryId) -> None:
        with self._branch(lambda: self._has(delivery)) as branch:
            if branch is not None:
                with _view(rows) as source:
                    self.session.sql(self.merge_statement(branch, source, rows, by)).collect()
                self._append_nothing(branch, DELIVERY, str(delivery))

    def withdraw(self, column: str, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        with self._branch(lambda: False) as branch:
            if branch is not None:
                self.session.sql(f"DELETE FROM {branch} WHERE {_of_deliveries(column, deliveries)}").collect()
                self._append_nothing(branch, _WITHDRAWN, noted_withdrawal(last).removeprefix(NOTED))

    def _append_nothing(self, branch: str, name: str, value: str) -> None:
        """A snapshot without rows that has a property: a statement cannot give its own one. Both are seen at once."""
        none = self.session.table(self.quoted).limit(0)
        none.writeTo(branch).option(f"snapshot-property.{name}", value).append()

    def _has(self, delivery: DeliveryId) -> bool:
        return self.delivered(delivery.run) >= delivery.checkpoint

    @contextmanager
    def _branch(self, is_there: Callable[[], bool]) -> Iterator[str | None]:
        """A branch to write to, whose rows are those of the table afterwards; None if what is to be written
        ``is_there``.
        """
        self.session.sql(f"REFRESH TABLE {self.quoted}").collect()  # catalogues keep tables for a while
        # The head first: what comes between both questions is in the ids, and not in the branch.
        heads = self.session.sql(f"SELECT snapshot_id FROM {self.quoted}.refs WHERE name = 'main'").collect()
        if is_there():
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
        columns = f"summary['{DELIVERY}'] AS id, summary['{_WITHDRAWN}'] AS withdrawn"
        snapshots = self.session.sql(f"SELECT snapshot_id, parent_id, {columns} FROM {self.quoted}.snapshots")
        by_id = {row["snapshot_id"]: row for row in snapshots.collect()}
        heads = self.session.sql(f"SELECT snapshot_id FROM {self.quoted}.refs WHERE name = 'main'").collect()
        snapshot = by_id.get(heads[0]["snapshot_id"]) if heads else None
        while snapshot is not None:  # from the newest one back, and not by their times: each writer has a clock
            delivery, withdrawn = delivery_of(str(snapshot["id"])), last_checkpoints(snapshot["withdrawn"] or "")
            if delivery is not None and delivery.run == run:
                return delivery.checkpoint
            if run in withdrawn:
                return withdrawn[run]
            snapshot = by_id.get(snapshot["parent_id"])
        return 0

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
        statement = f"CALL {catalog}.system.{procedure}(table => {_text(self.quoted)}, {arguments})"
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


def _of_deliveries(column: str, deliveries: Iterable[DeliveryId]) -> str:
    """The condition of the rows of these deliveries."""
    return f"{quoted_in_spark(column)} IN ({', '.join(_text(str(delivery)) for delivery in deliveries)})"


def _text(value: str) -> str:
    """A value as a literal of SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
