"""A table that Spark's catalogue has, of Delta Lake or Iceberg, written by Spark's executors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tidestate.operators.describe.sinks import Refused, runner_error
from tidestate.operators.sinks.columns import ColumnChanges, checked_changes, new_columns
from tidestate.operators.sinks.compaction import Compaction
from tidestate.operators.sinks.forms import Form, null_in_identity
from tidestate.operators.sinks.rows import Rows
from tidestate.operators.sinks.spark_forms import GONE, formed_in_spark, has_null
from tidestate.operators.sinks.spark_tables import SPARK_TABLES, SparkTable, name_parts, provider_of
from tidestate.operators.sinks.stored_columns import ColumnChoice, quoted_in_spark, stored_columns
from tidestate.operators.sinks.target_columns import TargetColumns, not_of_delta
from tidestate.operators.sinks.withdrawing import WithdrawingSink
from tidestate.operators.sinks.withdrawn_runs import WithdrawnRun
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TableFormat = Literal["delta", "iceberg"]
_PASSING = (
    "java.net.",
    "java.io.IOException",
    "SdkClientException",
    "io.delta.exceptions.Concurrent",
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "MetadataChanged",
    "CommitFailedException",
    "CommitStateUnknownException",
    "ServiceUnavailable",
    "Cannot fast-forward",
)
"""In what Spark raises where the same write may succeed later: the network, or another writer that was faster."""
_MOST_PARTS = 4
_TO_WITHDRAW = UsageError(
    "rows are taken out of a table of Spark's catalogue by Spark: give --spark, or make a session in this process "
    "first",
    code="sink-runner",
)


class TableSink(WithdrawingSink):
    """Writes each delivery to a table of Spark's catalogue, ``catalog.schema.table``, of Delta Lake or Iceberg.

    The executors write, by Spark's own writers, so the session needs the connector of the format. A delivery is one
    version of a Delta table with the transaction ``txnAppId`` = run and ``txnVersion`` = checkpoint, or a move of
    ``main`` of an Iceberg table to snapshots whose last has the property ``tidestate.delivery``: each row is there
    once. An upsert is a ``MERGE``, and needs no memory in the driver.

    The table keeps its partitions, clustering and properties. ``format`` is for one that is not there yet: the first
    delivery makes it, without partitions. It may have columns that the rows have not, which are null then; with
    ``schema="merge"`` it gets those that it has not. ``compact="1 hour"`` calls ``OPTIMIZE``, or the procedure
    ``rewrite_data_files``, once an hour.

    A withdrawal deletes rows by SQL, so it needs a session of Spark too: the one of this process, or for the command
    ``--spark``.

    On Spark alone: other runners refuse it (``sink-runner``).
    """

    target_columns = TargetColumns(ignores_case=True, lacks=not_of_delta, in_spark=True)
    needs_spark = True

    @checked
    def __init__(
        self,
        table: str,
        *,
        changes: Form = "append",
        key: str | Sequence[str] | None = None,
        columns: ColumnChoice = None,
        delivery_column: str | None = None,
        schema: ColumnChanges = "refuse",
        format: TableFormat | None = None,
        compact: Span | None = None,
        behind: int = 0,
    ) -> None:
        if not 0 < len(name_parts(table)) <= _MOST_PARTS or ".".join(name_parts(table)) != table:
            raise UsageError(
                'the table of a sink must be a name of Spark\'s catalogue, such as "catalog.schema.table": for a '
                "path use DeltaSink",
                code="sink-form",
                found=table[:100],
            )
        if format is not None and format not in SPARK_TABLES:
            raise UsageError(
                "format= is of a table that Spark writes in transactions",
                code="sink-form",
                found=format,
                formats=[*SPARK_TABLES],
            )
        self._table, self._format, self._schema = table, format, checked_changes(schema)
        super().__init__(changes, key, behind, columns=stored_columns(columns, delivery_column))
        self._compaction = Compaction(compact, str(self), self._secrets)
        self._runs: dict[str, WithdrawnRun | None] = {}

    def __str__(self) -> str:
        return f"TableSink({self._table!r})"

    def check_settings(self) -> None:
        """The table is there, or can be made, if its catalogue answers. Raises `UsageError` (``sink-target``)."""
        with suppress(Refused):
            found = self._tried(lambda: self._found(_session()), "the catalogue does not know this table")
            if found is None and self._format is None:
                raise self._missing()

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        if isinstance(rows, pa.Table):
            raise runner_error(str(self))
        from tidestate.operators.spark.compat import arrow_schema_of

        schema, session = arrow_schema_of(rows.schema), rows.sparkSession
        by = self.by(schema)
        self.schema(schema)  # what its form cannot have is an error, and so is a column that is missing
        if has_null(rows, by):
            raise null_in_identity(by)
        formed = formed_in_spark(rows, self.changes, by, self.columns, str(delivery), is_plain=self.is_plain)
        target = self._target(session, formed)
        stored = self._as_stored(target, formed, self.columns.target_names(by))
        if self.changes == "upsert":
            target.merge(stored, self.columns.target_names(by), delivery)
        else:
            target.append(stored, delivery)
        self._compaction.run_if_due(target.compacted_us, lambda _time_us: target.compact())

    def stored(self, run: str) -> int | None:
        target = self._found(_session())
        return 0 if target is None else target.delivered(run)

    def count_rows(self) -> Mapping[str | None, int | None]:
        target = self._found(_session(_TO_WITHDRAW))
        if target is None and self._format is None:
            raise self._missing()
        return {} if target is None else target.count_ids(self.id_column)

    def remove(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        target = self._found(_session(_TO_WITHDRAW))
        if target is None:
            raise self._missing()
        target.withdraw(self.id_column, deliveries, last)

    def _found(self, session: SparkSession) -> SparkTable | None:
        provider = provider_of(session, self._table)
        if provider is None:
            return None
        if provider not in SPARK_TABLES:
            raise UsageError(
                "the table is none of Delta Lake or Iceberg, so no writer of Spark knows which rows it has",
                code="sink-target",
                sink=str(self),
                found=provider or "a view",
                formats=[*SPARK_TABLES],
            )
        return SPARK_TABLES[provider](session, self._table, self._runs)

    def _target(self, session: SparkSession, formed: DataFrame) -> SparkTable:
        """The table, made if it is not there."""
        target = self._found(session)
        if target is not None:
            return target
        if self._format is None:
            raise self._missing()
        columns = ", ".join(_defined(field) for field in formed.schema.fields if field.name != GONE)
        table = SPARK_TABLES[self._format](session, self._table, self._runs)
        try:
            session.sql(f"CREATE TABLE IF NOT EXISTS {table.quoted} ({columns}) USING {self._format}").collect()
        except Exception:
            if self._found(session) is None:  # else another driver was faster
                raise
        return table

    def _missing(self) -> UsageError:
        return UsageError(
            'there is no such table: create it, or let the sink do it with format="delta" or format="iceberg"',
            code="sink-target",
            sink=str(self),
        )

    def _as_stored(self, target: SparkTable, formed: DataFrame, by: Sequence[str]) -> DataFrame:
        """The rows in the columns of the table, in its order; it gets those that it has not."""
        from tidestate.operators.spark.compat import arrow_schema_of

        there = target.session.table(target.quoted).schema
        folded = {field.name.lower(): field for field in there.fields}
        given = {field.name.lower(): field.name for field in formed.schema.fields if field.name != GONE}
        rows = arrow_schema_of(formed.select(*map(quoted_in_spark, given.values())).schema)
        shared = type(there)([field for field in there.fields if field.name.lower() in given])
        columns = arrow_schema_of(shared)
        spelled = pa.schema([field.with_name(given[field.name.lower()]) for field in columns])
        if moved := [field.name for field in spelled if _other_clock(field.type, rows.field(field.name).type)]:
            raise UsageError(
                "a column of the table has times without a zone, or these rows have, so Spark would store what the "
                "clock of its session shows, where an hour comes twice; none of these rows were stored: change the "
                "type of the column",
                code="sink-target",
                sink=str(self),
                columns=moved,
            )
        if new := new_columns(spelled, rows, self._schema, str(self), by, own=True).names:
            added = ", ".join(_defined(formed.schema[name]) for name in new)
            target.session.sql(f"ALTER TABLE {target.quoted} ADD COLUMNS ({added})").collect()
            there = target.session.table(target.quoted).schema
            folded = {field.name.lower(): field for field in there.fields}
        selected = [
            f"{quoted_in_spark(given[name])} AS {quoted_in_spark(field.name)}"
            if name in given
            else f"CAST(NULL AS {field.dataType.simpleString()}) AS {quoted_in_spark(field.name)}"
            for name, field in folded.items()
        ]
        return formed.selectExpr(*selected, *([GONE] if self.changes == "upsert" else []))

    def passes(self, error: BaseException) -> bool | None:
        kinds = [*type(error).__mro__]
        if any(kind.__name__ == "Py4JJavaError" or kind.__module__.startswith("pyspark.errors") for kind in kinds):
            return any(cause in str(error) for cause in _PASSING)
        return True if isinstance(error, OSError) else None


def _other_clock(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether one of two types of times has a zone and the other has not."""
    return pa.types.is_timestamp(stored) and pa.types.is_timestamp(kind) and (stored.tz is None) != (kind.tz is None)


def _defined(field: Any) -> str:
    return f"{quoted_in_spark(field.name)} {field.dataType.simpleString()}"


def _session(without: UsageError | None = None) -> SparkSession:
    """The session of this process. Raises `UsageError` (``sink-runner``) where there is no Spark."""
    kind = sys.modules["pyspark.sql"].SparkSession if "pyspark.sql" in sys.modules else None
    if kind is None:
        raise without or runner_error("TableSink")
    found: SparkSession = kind.getActiveSession() or kind.builder.getOrCreate()
    return found
