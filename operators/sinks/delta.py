"""A table of Delta Lake, by the package ``deltalake`` or by Spark's connector."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidestate.operators.expressions.sql_types import double_quoted
from tidestate.operators.sinks.columns import ColumnChanges, checked_changes, new_columns, without_unsigned
from tidestate.operators.sinks.compaction import Compaction
from tidestate.operators.sinks.forms import Form, Formed
from tidestate.operators.sinks.local_delta import LocalDelta
from tidestate.operators.sinks.packages import package
from tidestate.operators.sinks.partitions import PartitionChoice, other_partitions, target_partitions
from tidestate.operators.sinks.rows import Rows, Tables, newest_of, tables_of
from tidestate.operators.sinks.stored_columns import ColumnChoice, stored_columns
from tidestate.operators.sinks.target_columns import TargetColumns, not_of_delta
from tidestate.operators.sinks.withdrawing import WithdrawingSink
from tidestate.operators.sinks.withdrawn_runs import WITHDRAWN, noted_withdrawal
from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.arguments import checked
from tidestate.statestore.arrays import padded
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError
from tidestate.statestore.roots import checked_place
from tidestate.statestore.secrets import GivenOptions, public_url, secrets_of_options, secrets_of_url
from tidestate.statestore.storage.local import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidestate")

_COMPACTED = "tidestate.compacted"
"""What a version that is a compaction of ours has noted: its time, in microseconds since 1970."""
_COMPACTOR = "tidestate.compactor"
"""The property of a table that says which sink compacts it: a random name, new in each process."""
_RECENT = 200
"""So many versions are looked through for the last compaction, once in a process."""
_EXTENSION = "DeltaSparkSessionExtension"
_GONE = ".gone"
"""A name that no column of a job has."""
_PASSING_CAUSES = (
    "java.net.",
    "java.io.IOException",
    "SdkClientException",
    "io.delta.exceptions.Concurrent",
    "MetadataChanged",
)
"""Of what Spark's connector raises; another writer that was faster is asked again whether the id is there."""
_OF_COLUMNS = ("Schema error", "Invalid data type", "Duplicate field name")
"""In what ``deltalake`` raises, as a bare `Exception`, for columns that no table of Delta can have."""


class DeltaSink(WithdrawingSink):
    """Writes each delivery as one version of a Delta table, which is made with the first one.

    The version has the transaction ``appId`` = run and ``version`` = checkpoint, by which every writer of Delta knows
    what is there already, and two at once conflict: each row is there once. ``storage_options`` are those of
    ``deltalake``. A table in a local folder is synced before a delivery counts.

    Rows with other columns than the table are refused; with ``schema="merge"`` it gets those that it has not, and
    those that the rows have not are null in them.

    A table that is made gets the partitions ``partition_by``, such as ``["k", sinks.day("window_start")]``; days and
    hours are columns of it, ``window_start_day``. A table that is there keeps its own, which must be the same.

    ``compact="1 hour"`` lets Delta rewrite the small files of each partition once an hour, after a delivery. Readers
    see the same rows before and after; the old files stay for readers of older versions, until ``VACUUM``.

    With ``changes="append"``, on a Spark session that has Delta's connector (``spark.sql.extensions``), the executors
    write the DataFrame. Otherwise the rows pass through the driver: a changelog as a stream, an upsert as one merge
    of the newest panes, which have to fit in its memory.
    """

    target_columns = TargetColumns(ignores_case=True, lacks=not_of_delta)

    @checked
    def __init__(
        self,
        table: str | PathLike[str],
        *,
        changes: Form = "append",
        key: str | Sequence[str] | None = None,
        columns: ColumnChoice = None,
        delivery_column: str | None = None,
        schema: ColumnChanges = "refuse",
        partition_by: PartitionChoice = None,
        compact: Span | None = None,
        storage_options: Mapping[str, str] | None = None,
        behind: int = 0,
    ) -> None:
        self._table, self._options = checked_place(table, "a Delta table"), GivenOptions(storage_options or {})
        secrets = secrets_of_url(self._table) + secrets_of_options(self._options)
        stored = stored_columns(columns, delivery_column)
        super().__init__(changes, key, behind, secrets, stored)
        self._local, self._schema = LocalDelta(self._table), checked_changes(schema)
        self._partitions = target_partitions(partition_by, stored)
        self._compaction = Compaction(compact, str(self), secrets)
        self._compactor = uuid.uuid4().hex

    def __str__(self) -> str:
        return f"DeltaSink({public_url(self._table)!r})"

    def check_settings(self) -> None:
        """The package is there, unless Spark's connector may write all of it, and can open the table. Raises
        `UsageError`.
        """
        if self.changes != "append" or self._compaction or "pyspark.sql" not in sys.modules:
            package("deltalake", "delta")
        if find_spec("deltalake") is not None:  # which reads a local table even where the connector writes it
            self._local.check_path()

    def formed(self, rows: pa.Table, delivery: DeliveryId) -> Formed:
        made = super().formed(rows, delivery)
        self._partitions.check(made.rows.schema)
        self._partitions.check_values(made.rows)
        stored = self._partitions.added(without_unsigned(made.rows))
        return Formed(stored, None if made.gone is None else self._partitions.added(without_unsigned(made.gone)))

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        if self.changes == "append" and not isinstance(rows, pa.Table) and _extended(rows.sparkSession):
            self.check_columns(rows.columns, [])
            chosen = rows.selectExpr(*self.columns.expressions(str(delivery)))
            if self._partitions:
                from tidestate.operators.spark.compat import arrow_schema_of

                self._partitions.check(arrow_schema_of(chosen.schema))
                chosen = chosen.selectExpr(*self._partitions.expressions(chosen.dtypes))
            written = chosen.write.format("delta").mode("append").partitionBy(*self._partitions.names)
            options = {"txnAppId": delivery.run, "txnVersion": str(delivery.checkpoint)}
            options |= {"mergeSchema": "true"} if self._schema == "merge" else {}
            written.options(**options).save(self._table)
        else:
            self._store(rows, delivery)
        self._local.settle()  # also what is there already: who wrote it may have died before
        self._compaction.run_if_due(self._compacted_us, self._compact)

    def stored(self, run: str) -> int | None:
        if self.changes == "append" and (find_spec("deltalake") is None or self._needs_connector()):
            return None
        table = self._opened(package("deltalake", "delta"))
        self._local.check_whole(table)
        return 0 if table is None else self._version_of(table, run)

    def _version_of(self, table: Any, run: str) -> int:
        """The version of the transaction of a run, 0 for none. Raises `UsageError` (``sink-target``) where it has
        another name since a withdrawal by `TableSink`.
        """
        if WITHDRAWN + run in table.metadata().configuration:
            raise UsageError(
                "TableSink has withdrawn deliveries of this run from the table, so it alone knows which are there: "
                "go on with TableSink",
                code="sink-target",
                sink=str(self),
                run=run,
            )
        return table.transaction_version(run) or 0

    def _compacted_us(self) -> int:
        """When the table was compacted last; else when the oldest version was made that is looked at."""
        table = self._opened(package("deltalake", "delta"))
        versions = [] if table is None else table.history(_RECENT)
        if not versions:
            return now_us()
        compactions = (version for version in versions if version.get("operation") == "OPTIMIZE")
        last = next(compactions, versions[-1])
        return int(last.get(_COMPACTED, last["timestamp"] * 1000))

    def _compact(self, time_us: int) -> None:
        """Rewrite the small files of each partition: one version, which says of itself that no row has changed.

        ``deltalake`` commits it also over another compaction that has rewritten the same files meanwhile, and the
        rows would be there twice. Over a change of properties it commits nothing. So a sink compacts a version that
        has its own name in a property: if another sink puts its name there meanwhile, nothing is committed.
        """
        lake = package("deltalake", "delta")
        table = self._opened(lake)
        if table.metadata().configuration.get(_COMPACTOR) != self._compactor:
            table.alter.set_table_properties({_COMPACTOR: self._compactor}, raise_if_not_exists=False)
        begun = table.version()
        noted = lake.CommitProperties(custom_metadata={_COMPACTED: str(time_us)})
        table.optimize.compact(commit_properties=noted)
        self._local.settle()
        self._tell_of_others(table.history(max(table.version() - begun, 1)), begun, time_us)

    def _tell_of_others(self, versions: Sequence[Mapping[str, Any]], begun: int, time_us: int) -> None:
        """Log a compaction that no sink has made, and that came between: nothing that it knows could refuse it."""
        for version in versions:
            is_own = version.get(_COMPACTED) == str(time_us)
            if version["version"] > begun and version.get("operation") == "OPTIMIZE" and not is_own:
                log.error(
                    "%s has rows twice: somebody else compacted the table at the same moment. Go back to version %d "
                    "(RESTORE TABLE), deliver what came later again, and leave compact= out, or the other compaction",
                    self,
                    version["version"],
                )

    def _needs_connector(self) -> bool:
        """Whether Spark's connector writes it, to where it may have credentials of its own."""
        if is_local(self._table) or "pyspark.sql" not in sys.modules:
            return False
        session = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
        return session is not None and _extended(session)

    def _store(self, rows: Rows, delivery: DeliveryId) -> None:
        lake = package("deltalake", "delta")
        table, names = self._opened(lake), self._partitions.names
        if table is not None and names and (found := table.metadata().partition_columns) != names:
            raise other_partitions(found, names, str(self))
        if table is not None and self._version_of(table, delivery.run) >= delivery.checkpoint:
            return
        made = lake.CommitProperties(app_transactions=[lake.Transaction(delivery.run, delivery.checkpoint)])
        tables = tables_of(rows)
        schema = self.schema(tables.schema) if table is None else self._widened(lake, table, tables.schema)
        if self.changes == "upsert":
            self._merge(lake, table, tables, schema, made, delivery)
        else:
            formed_each = (self.formed(one, delivery).rows for one in tables.each)
            padded_each = (padded(one, schema).select(schema.names) for one in formed_each)
            parts = (part for one in padded_each for part in one.to_batches())
            self._write(lake, table, pa.RecordBatchReader.from_batches(schema, parts), made)

    def _widened(self, lake: Any, table: Any, schema: pa.Schema) -> pa.Schema:
        """The columns to store: those of the rows, then what the table has more. It gets those that it has not."""
        rows, there = self.schema(schema), pa.schema(table.schema())
        if new := list(new_columns(there, rows, self._schema, str(self), self.target_names(schema))):
            table.alter.add_columns(lake.Schema.from_arrow(pa.schema(new)).fields)
        return pa.schema([*rows, *(field for field in there if field.name not in rows.names)])

    def _opened(self, lake: Any) -> Any:
        """The table as it is now: a commit to it fails if another one has the same id meanwhile."""
        self._local.check_path()
        options = self._options or None
        there = lake.DeltaTable.is_deltatable(self._table, options)
        return lake.DeltaTable(self._table, storage_options=options) if there else None

    def _write(self, lake: Any, table: Any, rows: pa.Table | pa.RecordBatchReader, made: Any) -> None:
        where = self._table if table is None else table
        # A table that is new is made by this commit, which fails if there is one meanwhile.
        lake.write_deltalake(
            where,
            rows,
            mode="error" if table is None else "append",
            partition_by=self._partitions.names or None,
            storage_options=self._options or None,
            commit_properties=made,
        )

    def _merge(
        self, lake: Any, table: Any, tables: Tables, schema: pa.Schema, made: Any, delivery: DeliveryId
    ) -> None:
        net = self.formed(newest_of(tables, self.by(tables.schema)), delivery)
        if table is None:
            self._write(lake, None, net.rows, made)
            return
        flags = [net.rows.append_column(_GONE, pa.array([False] * net.rows.num_rows, pa.bool_()))]
        if net.gone is not None and net.gone.num_rows:
            gone = net.gone.append_column(_GONE, pa.array([True] * net.gone.num_rows, pa.bool_()))
            flags.append(gone)
        source = pa.concat_tables(flags, promote_options="default")
        by = self.target_names(tables.schema)
        # The partitions of the rows too, though they follow from the others: what is in others is not read then.
        by = [*by, *self._partitions.made_of(by)]
        matches = " AND ".join(f"t.{double_quoted(name)} = s.{double_quoted(name)}" for name in by)
        columns = {
            double_quoted(n): f"s.{double_quoted(n)}" if n in net.rows.column_names else "NULL" for n in schema.names
        }
        merging = table.merge(source, matches, source_alias="s", target_alias="t", commit_properties=made)
        merging = merging.when_matched_delete(f's."{_GONE}"').when_matched_update(columns)
        merging.when_not_matched_insert(columns, f'NOT s."{_GONE}"').execute()

    def count_rows(self) -> Mapping[str | None, int | None]:
        lake = package("deltalake", "delta")
        table, column = self._opened(lake), self.id_column
        if table is None:
            return {}
        # Not `to_pyarrow_dataset`: Arrow's threads wait in its file system, which may abort a process that ends.
        reading = lake.QueryBuilder().register("target", table)
        if column not in pa.schema(table.schema()).names:
            return {None: pa.table(reading.execute("SELECT count(*) AS n FROM target"))["n"][0].as_py()}
        counted = reading.execute(f"SELECT {double_quoted(column)} AS id, count(*) AS n FROM target GROUP BY 1")
        return {row["id"]: row["n"] for row in pa.table(counted).to_pylist()}

    def remove(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        lake = package("deltalake", "delta")
        table = self._opened(lake)
        for delivery in deliveries:
            self._version_of(table, delivery.run)
        made = lake.CommitProperties(
            # Spark shows this note, and does not show transactions.
            custom_metadata={"userMetadata": noted_withdrawal(last)},
            app_transactions=[lake.Transaction(run, number) for run, number in last.items()],
        )
        ids = ", ".join("'" + str(one).replace("'", "''") + "'" for one in deliveries)
        table.delete(f"{double_quoted(self.id_column)} IN ({ids})", commit_properties=made)
        self._local.settle()

    def passes(self, error: BaseException) -> bool | None:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "Py4JJavaError" in kinds:
            return any(cause in str(error) for cause in _PASSING_CAUSES)
        if "DeltaError" in kinds:
            return "CommitFailedError" in kinds or "table already exists" in str(error)
        if type(error) is Exception and any(one in str(error) for one in _OF_COLUMNS):
            return False
        return True if isinstance(error, OSError) else None


def _extended(session: SparkSession) -> bool:
    return _EXTENSION in str(session.conf.get("spark.sql.extensions", ""))
