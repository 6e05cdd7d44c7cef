"""A table of Delta Lake, by the package ``deltalake`` or by Spark's connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidestate.operators.describe.runnable import root_text
from tidestate.operators.sinks.forms import Form, formed, newest_rows
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.packages import package
from tidestate.operators.sinks.rows import Rows, Tables, tables_of
from tidestate.recovery.log.outputs import DeliveryId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXTENSION = "DeltaSparkSessionExtension"
_GONE = "_gone"
_PASSING_CAUSES = ("java.net.", "java.io.IOException", "SdkClientException", "io.delta.exceptions.Concurrent")
"""Of what Spark's connector raises; another writer that was faster is asked again whether the id is there."""
_OF_COLUMNS = ("Schema error", "Invalid data type", "Duplicate field name")
"""In what ``deltalake`` raises, as a bare `Exception`, for columns that no table of Delta can have."""


class DeltaSink(IncludedSink):
    """Writes each delivery as one version of a Delta table, which is made with the first one.

    The version has the transaction ``appId`` = run and ``version`` = checkpoint, by which every writer of Delta knows
    what is there already, and two at once conflict: each row is there once. ``storage_options`` are those of
    ``deltalake``.

    With ``changes="append"``, on a Spark session that has Delta's connector (``spark.sql.extensions``), the executors
    write the DataFrame. Otherwise the rows pass through the driver: a changelog as a stream, an upsert as one merge
    of the newest panes, which have to fit in its memory.
    """

    def __init__(
        self,
        table: str | PathLike[str],
        *,
        changes: Form = "append",
        key: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        behind: int = 0,
    ) -> None:
        super().__init__(changes, key, behind)
        self._table, self._options = fspath(table), dict(storage_options or {})

    def __str__(self) -> str:
        return f"DeltaSink({root_text(self._table)!r})"

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        if self.changes == "append" and not isinstance(rows, pa.Table) and _has_connector(rows):
            written = rows.write.format("delta").mode("append")
            options = {"txnAppId": delivery.run, "txnVersion": str(delivery.checkpoint)}
            written.options(**options).save(self._table)
            return
        lake = package("deltalake", "delta")
        table = self._opened(lake)
        if table is not None and (table.transaction_version(delivery.run) or 0) >= delivery.checkpoint:
            return
        made = lake.CommitProperties(app_transactions=[lake.Transaction(delivery.run, delivery.checkpoint)])
        tables = tables_of(rows)
        if self.changes == "upsert":
            self._merge(lake, table, tables, made)
        else:
            parts = (part for one in tables.each for part in self.formed(one).rows.to_batches())
            found = pa.RecordBatchReader.from_batches(self.schema(tables.schema), parts)
            self._write(lake, table, found, made)

    def _opened(self, lake: Any) -> Any:
        """The table as it is now: a commit to it fails if another one has the same id meanwhile."""
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
            storage_options=self._options or None,
            commit_properties=made,
        )

    def _merge(self, lake: Any, table: Any, tables: Tables, made: Any) -> None:
        by, held = self.by(tables.schema), tables.schema.empty_table()
        for one in tables.each:
            held = newest_rows(pa.concat_tables([held, one]), by)
        net = formed(held, "upsert", by)
        if table is None:
            self._write(lake, None, net.rows, made)
            return
        flags = [net.rows.append_column(_GONE, pa.array([False] * net.rows.num_rows, pa.bool_()))]
        if net.gone is not None and net.gone.num_rows:
            gone = net.gone.append_column(_GONE, pa.array([True] * net.gone.num_rows, pa.bool_()))
            flags.append(gone)
        source = pa.concat_tables(flags, promote_options="default")
        matches = " AND ".join(f't."{name}" = s."{name}"' for name in by)
        columns = {f'"{name}"': f's."{name}"' for name in net.rows.column_names}
        merging = table.merge(source, matches, source_alias="s", target_alias="t", commit_properties=made)
        merging = merging.when_matched_delete(f's."{_GONE}"').when_matched_update(columns)
        merging.when_not_matched_insert(columns, f'NOT s."{_GONE}"').execute()

    def passes(self, error: BaseException) -> bool | None:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "Py4JJavaError" in kinds:
            return any(cause in str(error) for cause in _PASSING_CAUSES)
        if "DeltaError" in kinds:
            return "CommitFailedError" in kinds or "table already exists" in str(error)
        if type(error) is Exception and any(one in str(error) for one in _OF_COLUMNS):
            return False
        return True if isinstance(error, OSError) else None


def _has_connector(rows: DataFrame) -> bool:
    return _EXTENSION in str(rows.sparkSession.conf.get("spark.sql.extensions", ""))
