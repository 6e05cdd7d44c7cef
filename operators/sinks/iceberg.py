"""A table of Apache Iceberg, by the package ``pyiceberg``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from errno import ENAMETOOLONG
from typing import Any

import pyarrow as pa

from tidestate.operators.sinks.columns import (
    ColumnChanges,
    checked_changes,
    new_columns,
    with_signed,
    without_unsigned,
)
from tidestate.operators.sinks.compaction import Compaction
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.packages import package
from tidestate.operators.sinks.partitions import PartitionChoice, PartitionUnit, other_partitions, target_partitions
from tidestate.operators.sinks.rows import Rows, newest_of, tables_of
from tidestate.operators.sinks.stored_columns import ColumnChoice, stored_columns
from tidestate.operators.sinks.target_columns import TargetColumns, not_of_iceberg
from tidestate.operators.sinks.withdrawing import WithdrawingSink, counted_ids
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import GivenOptions, secrets_of_options
from tidestate.statestore.storage.local import is_local

DELIVERED = "tidestate.delivered."
"""What the property of a table begins with that has the highest checkpoint of a run."""
DELIVERY = "tidestate.delivery"
"""The property of a snapshot that has the id of its delivery."""
_COMPACTED = "tidestate.compacted"
"""The property of a table that has the time of the last compaction, in microseconds since 1970."""
_TRANSFORMS: dict[PartitionUnit, str] = {"value": "identity", "day": "day", "hour": "hour"}
SYNCED = "tidestate.operators.sinks.local_iceberg.SyncedIO"
_LASTING = {"BadRequestError", "ForbiddenError", "NotInstalledError", "UnauthorizedError", "ValidationError"}
_LASTING |= {"UnsupportedPyArrowTypeException"}


class IcebergSink(WithdrawingSink):
    """Writes each delivery as one commit to an Iceberg table, ``namespace.table``, which is made with the first one.

    The commit sets the property ``tidestate.delivered.<run>`` of the table too, which outlives its snapshots, and its
    snapshots have the id as ``tidestate.delivery``: each row is there once. ``catalog`` is the name of a catalogue,
    with the ``properties`` that pyiceberg's configuration does not have. In a local warehouse each file is synced
    before it is committed. The table may have columns that the rows have not, which are null then; with
    ``schema="merge"`` it gets those that it has not.

    A table that is made gets the partitions ``partition_by``, such as ``["k", sinks.day("window_start")]``, in
    Iceberg's own transforms; a table that is there keeps its own, which must be the same. ``compact="1 hour"``
    rewrites the small files of each partition once an hour, after a delivery, in a snapshot of its own.

    The rows pass through the driver and have to fit in its memory, those of an upsert as the newest panes. An upsert
    finds what it replaces by an expression that names each window and key, which takes seconds from some thousand on.
    """

    target_columns = TargetColumns(lacks=not_of_iceberg)

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        changes: Form = "append",
        key: str | Sequence[str] | None = None,
        columns: ColumnChoice = None,
        delivery_column: str | None = None,
        schema: ColumnChanges = "refuse",
        partition_by: PartitionChoice = None,
        compact: Span | None = None,
        behind: int = 0,
    ) -> None:
        if not isinstance(catalog, str):
            raise UsageError(
                "catalog= must be the name of a catalogue, which each process loads for itself: give its settings "
                "as properties=…",
                code="sink-form",
                found=type(catalog).__name__,
            )
        stored = stored_columns(columns, delivery_column)
        super().__init__(changes, key, behind, secrets_of_options(properties or {}), stored)
        self._partitions = target_partitions(partition_by, stored)
        spans = [field.column for field in self._partitions.fields if field.unit != "value"]
        if twice := [column for column in spans if spans.count(column) > 1]:
            raise UsageError(
                "Iceberg has days or hours of a column, not both: leave the days out, as each hour has its day",
                code="sink-partition",
                found=twice[0],
            )
        self._table, self._catalog, self._properties = table, catalog, GivenOptions(properties or {})
        self._schema, self._compaction = checked_changes(schema), Compaction(compact, str(self), self._secrets)

    @property
    def target(self) -> object:
        """The table, and the catalogue that it is in."""
        return self._table, self._catalog

    def __str__(self) -> str:
        return f"IcebergSink({self._table!r})"

    def check_settings(self) -> None:
        """The package is there. Raises `UsageError`."""
        package("pyiceberg.catalog", "iceberg")

    def schema(self, schema: pa.Schema) -> pa.Schema:
        columns = without_unsigned(super().schema(schema).empty_table()).schema
        self._partitions.check(columns)
        return columns

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        tables = tables_of(rows)
        table, noted = self._opened(self.schema(tables.schema)), f"{DELIVERED}{delivery.run}"
        if int(table.properties.get(noted, 0)) >= delivery.checkpoint:
            return
        if self.changes == "upsert":
            found = newest_of(tables, self.by(tables.schema))
        else:
            found = pa.concat_tables([tables.schema.empty_table(), *tables.each])
        formed, by = self.formed(found, delivery), self.target_names(tables.schema)
        columns = table.schema().as_arrow()
        stored = with_signed(formed.rows, columns, str(self))
        gone = None if formed.gone is None else with_signed(formed.gone, columns, str(self))
        new = new_columns(columns, stored.schema, self._schema, str(self), by, own=True)
        with table.transaction() as changing:
            changing.set_properties({noted: str(delivery.checkpoint)})
            if new.names:
                with changing.update_schema() as changes:
                    changes.union_by_name(new)
            self._change(changing, stored, gone, by, {DELIVERY: str(delivery)})
        self._compaction.run_if_due(self._compacted_us, self._compact)

    def _compacted_us(self) -> int:
        """When the table was compacted last, or got its first rows."""
        table = self._loaded().load_table(self._table)
        noted = table.properties.get(_COMPACTED)
        return int(noted) if noted else min((entry.timestamp_ms for entry in table.history()), default=0) * 1000

    def _compact(self, time_us: int) -> None:
        """Rewrite small files in one commit, which fails if there is another one meanwhile."""
        table = _never_repeated(self._loaded().load_table(self._table))
        package("tidestate.operators.sinks.iceberg_files", "iceberg").rewrite_small_files(
            table, {_COMPACTED: str(time_us)}
        )

    def _change(
        self, changing: Any, rows: pa.Table, gone: pa.Table | None, by: Sequence[str], properties: dict[str, str]
    ) -> None:
        if gone is None:
            changing.append(rows, snapshot_properties=properties)
            return
        matching = package("pyiceberg.table.upsert_util", "iceberg")
        named = pa.concat_tables([rows.select(list(by)), gone])
        matches = matching.create_match_filter(named, list(by))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Delete operation did not match")  # the windows are new
            changing.overwrite(rows, overwrite_filter=matches, snapshot_properties=properties)

    def stored(self, run: str) -> int:
        catalog = self._loaded()
        if not catalog.table_exists(self._table):
            return 0
        return int(catalog.load_table(self._table).properties.get(f"{DELIVERED}{run}", 0))

    def count_rows(self) -> Mapping[str | None, int | None]:
        catalog, column = self._loaded(), self.id_column
        if not catalog.table_exists(self._table):
            return {}
        table = catalog.load_table(self._table)
        if column not in table.schema().column_names:
            return {None: table.scan().count()}
        return counted_ids(part[column] for part in table.scan(selected_fields=(column,)).to_arrow_batch_reader())

    def remove(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        table = _never_repeated(self._loaded().load_table(self._table))
        matches = package("pyiceberg.expressions", "iceberg").In(self.id_column, [*map(str, deliveries)])
        with table.transaction() as changing:
            changing.delete(matches)
            changing.set_properties({f"{DELIVERED}{run}": str(number) for run, number in last.items()})

    def _loaded(self) -> Any:
        """The catalogue, which syncs the files that it writes to this host."""
        catalog = package("pyiceberg.catalog", "iceberg").load_catalog(self._catalog, **self._properties)
        if is_local(catalog.properties.get("warehouse", "elsewhere://")):
            catalog.properties.setdefault("py-io-impl", SYNCED)
        return catalog

    def _opened(self, schema: pa.Schema) -> Any:
        """The table as it is now; a commit to it fails if there is another one meanwhile."""
        catalog = self._loaded()
        if not catalog.table_exists(self._table):
            catalog.create_namespace_if_not_exists(self._table.rpartition(".")[0])
            if not self._partitions:
                return _never_repeated(catalog.create_table_if_not_exists(self._table, schema=schema))
            making = catalog.create_table_transaction(self._table, schema=schema)
            with making, making.update_spec() as spec:
                for field, name in zip(self._partitions.fields, self._partitions.names, strict=True):
                    spec.add_field(field.column, _TRANSFORMS[field.unit], name)
        table = catalog.load_table(self._table)
        if self._partitions:
            self._check_partitions(table)
        return _never_repeated(table)

    def _check_partitions(self, table: Any) -> None:
        """Raise `UsageError` (``sink-partition``) for a table with others."""
        columns, spec = table.schema(), table.spec()
        found = [(columns.find_column_name(field.source_id), str(field.transform)) for field in spec.fields]
        if found != [(field.column, _TRANSFORMS[field.unit]) for field in self._partitions.fields]:
            raise other_partitions([f"{how}({name})" for name, how in found], self._partitions.names, str(self))

    def passes(self, error: BaseException) -> bool | None:
        kind = type(error)
        if kind.__module__.startswith(("pyiceberg", "requests", "sqlalchemy")):
            return kind.__name__ not in _LASTING
        # A partition whose value is too long for the name of a folder never fits.
        return error.errno != ENAMETOOLONG if isinstance(error, OSError) else None


def _never_repeated(table: Any) -> Any:
    """pyiceberg repeats a commit that lost to another one; that one may have been this delivery."""
    table.metadata.properties["commit.retry.num-retries"] = "0"
    return table
