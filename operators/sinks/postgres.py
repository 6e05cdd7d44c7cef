"""A table of PostgreSQL, by the driver of Arrow's ADBC, which copies batches without a Python object a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from tidestate.operators.expressions.sql_types import double_quoted
from tidestate.operators.sinks.columns import ColumnChanges, check_identity, checked_changes
from tidestate.operators.sinks.connection import check_connection
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.packages import package
from tidestate.operators.sinks.rows import Rows, tables_of
from tidestate.operators.sinks.stored_columns import ColumnChoice, stored_columns
from tidestate.operators.sinks.target_columns import TargetColumns, not_of_postgres
from tidestate.operators.sinks.withdrawing import WithdrawingSink
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import public_connection, secrets_of

DELIVERIES = "tidestate_deliveries"
"""The table that remembers, next to the table of the rows."""
LOCK_S = 10.0
"""How long another transaction with the same run is waited for."""
_ROWS, _GONE = "tidestate_rows", "tidestate_gone"
_BEGINNING = """
SELECT set_config('lock_timeout', $1, true),
CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""
"""An older self is waited for; and what was committed survives a power cut, also where a server does not wait."""
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = ''
AND coalesce(pg_get_expr(adbin, adrelid), '') NOT LIKE 'nextval(%'
ORDER BY attnum
"""
_WHOLE = pa.decimal128(20, 0)
"""Has room for unsigned numbers of 64 bits."""
_PASSING = ("08", "40", "53", "55", "57", "58", "42P07")
"""States of SQL that pass: connection, deadlock, resources, locks, shutdown, system; a table that was just made."""

_LONGEST_NAME = 63
"""The bytes of a name, which is cut where it has more."""
_OWN_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
"""That every table has."""
_UNREAD = ('for connection option "', "could not match")
"""What the driver says where it reads an option or the numbers of hosts and ports only as it connects."""


class PostgresSink(WithdrawingSink):
    """Writes each delivery to a table in one transaction, with its id in the table ``tidestate_deliveries``: each
    row is there once.

    ``uri`` is as in ``postgresql://user@host/database``, ``table`` may have a schema before a point. A table that is
    not there is made; for the form ``upsert`` (the default) its primary key is window and key, and one of your own
    needs a unique constraint on these columns. Values are cast to the types of its columns. A row that is replaced
    gets the defaults of columns that the new one has not, but of those that number rows. With ``schema="merge"`` the
    table gets columns that it has not. On Spark the rows pass through the driver, a partition at a time.
    """

    target_columns = TargetColumns(longest=_LONGEST_NAME, taken=_OWN_COLUMNS, lacks=not_of_postgres)

    @checked
    def __init__(
        self,
        uri: str,
        table: str,
        *,
        changes: Form = "upsert",
        key: str | Sequence[str] | None = None,
        columns: ColumnChoice = None,
        delivery_column: str | None = None,
        schema: ColumnChanges = "refuse",
        behind: int = 0,
    ) -> None:
        super().__init__(changes, key, behind, secrets_of(uri), stored_columns(columns, delivery_column))
        self._uri, self._table, self._merges = uri, table, checked_changes(schema) == "merge"
        place, _, self._name = table.rpartition(".")
        self._schema, self._readable = place or None, False

    def __str__(self) -> str:
        return f"PostgresSink({public_connection(self._uri)!r}, {self._table!r})"

    def check_settings(self) -> None:
        """The package is there, and can read the connection string. Raises `UsageError`."""
        self._driver()

    def _driver(self) -> Any:
        """The package, which can read the connection string."""
        driver = package("adbc_driver_postgresql.dbapi", "postgres")
        if not self._readable:
            check_connection(driver, self._uri, self._secrets, str(self))
            self._readable = True
        return driver

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        # What is not committed is gone when the connection is closed.
        with closing(self._driver().connect(self._uri)) as connection, closing(connection.cursor()) as cursor:
            _one(cursor, _BEGINNING, (str(int(LOCK_S * 1000)),))
            if not self._remember(cursor, delivery):
                return
            tables = tables_of(rows)
            by = self.target_names(tables.schema)
            if not self._exists(cursor, self._name):
                self._make(cursor, _signed(self.schema(tables.schema).empty_table()).schema, by)
            for table in tables.each:
                found = self.formed(_signed(table), delivery)
                if found.gone is not None:
                    self._delete(cursor, found.gone)
                self._insert(cursor, found.rows, by)
            connection.commit()

    def stored(self, run: str) -> int:
        with closing(self._driver().connect(self._uri)) as connection, closing(connection.cursor()) as cursor:
            if not (self._exists(cursor, self._name) and self._exists(cursor, DELIVERIES)):
                return 0
            noted = f"SELECT checkpoint FROM {self._place(DELIVERIES)} WHERE target = $1 AND run = $2"
            return _one(cursor, noted, (self._name, run)) or 0

    def count_rows(self) -> Mapping[str | None, int | None]:
        with closing(self._driver().connect(self._uri)) as connection, closing(connection.cursor()) as cursor:
            if not self._exists(cursor, self._name):
                return {}
            place = self._place(self._name)
            names = [name for name, _ in self._columns(cursor, place)]
            text = f"{double_quoted(self.id_column)}::text" if self.id_column in names else "NULL::text"
            cursor.execute(f"SELECT {text}, count(*) FROM {place} GROUP BY 1")
            return dict(cursor.fetchall())

    def remove(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        with closing(self._driver().connect(self._uri)) as connection, closing(connection.cursor()) as cursor:
            _one(cursor, _BEGINNING, (str(int(LOCK_S * 1000)),))
            noted = (
                f"UPDATE {self._place(DELIVERIES)} SET checkpoint = $3 WHERE target = $1 AND run = $2 RETURNING run"
            )
            for run, number in last.items():  # first: who stores a delivery of this run is waited for
                _one(cursor, noted, (self._name, run, number))
            self._delete(cursor, pa.table({self.id_column: [*map(str, deliveries)]}))
            connection.commit()

    def _remember(self, cursor: Any, delivery: DeliveryId) -> bool:
        """Note the id; False if it is there, or a later one. Another transaction with its run is waited for."""
        there = self._place(DELIVERIES)
        if not self._exists(cursor, DELIVERIES):
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {there} (target text, run text, checkpoint bigint NOT NULL, "
                "PRIMARY KEY (target, run))"
            )
        noted = (
            f"INSERT INTO {there} AS had VALUES ($1, $2, $3) ON CONFLICT (target, run) DO UPDATE "
            "SET checkpoint = excluded.checkpoint WHERE had.checkpoint < excluded.checkpoint RETURNING checkpoint"
        )
        return _one(cursor, noted, (self._name, delivery.run, delivery.checkpoint)) is not None

    def _exists(self, cursor: Any, name: str) -> bool:
        return _one(cursor, "SELECT to_regclass($1)::text", (self._place(name),)) is not None

    def _make(self, cursor: Any, schema: pa.Schema, by: Sequence[str]) -> None:
        cursor.adbc_ingest(self._name, schema.empty_table(), mode="create", db_schema_name=self._schema)
        if self.changes == "upsert":
            cursor.execute(f"ALTER TABLE {self._place(self._name)} ADD PRIMARY KEY ({_names(by)})")

    def _delete(self, cursor: Any, gone: pa.Table) -> None:
        if gone.num_rows:
            cursor.adbc_ingest(_GONE, gone, mode="create", temporary=True)
            same = " AND ".join(f"t.{double_quoted(name)} = s.{double_quoted(name)}" for name in gone.column_names)
            cursor.execute(f"DELETE FROM {self._place(self._name)} t USING pg_temp.{_GONE} s WHERE {same}")
            cursor.execute(f"DROP TABLE pg_temp.{_GONE}")

    def _insert(self, cursor: Any, rows: pa.Table, by: Sequence[str]) -> None:
        if not rows.num_rows:
            return
        cursor.adbc_ingest(_ROWS, rows, mode="create", temporary=True)
        if self._merges:
            self._widen(cursor, by)
        columns, conflict = _names(rows.column_names), ""
        if self.changes == "upsert":
            others = {
                double_quoted(name): f"excluded.{double_quoted(name)}" for name in rows.column_names if name not in by
            }
            for name, _ in self._columns(cursor, self._place(self._name)):
                if name not in rows.column_names:  # else it would be of the pane before
                    others[double_quoted(name)] = "DEFAULT"
            update = (
                f"UPDATE SET {', '.join(f'{name} = {value}' for name, value in others.items())}"
                if others
                else "NOTHING"
            )
            conflict = f" ON CONFLICT ({_names(by)}) DO {update}"
        cursor.execute(
            f"INSERT INTO {self._place(self._name)} ({columns}) SELECT {columns} FROM pg_temp.{_ROWS}{conflict}"
        )
        cursor.execute(f"DROP TABLE pg_temp.{_ROWS}")

    def _widen(self, cursor: Any, by: Sequence[str]) -> None:
        """Give the table the columns that it has not."""
        there = [name for name, _ in self._columns(cursor, self._place(self._name))]
        columns = self._columns(cursor, f"pg_temp.{_ROWS}")
        check_identity([name for name, _ in columns if name not in there], by, str(self))
        for name, kind in columns:
            if name not in there:
                table = self._place(self._name)
                cursor.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {double_quoted(name)} {kind}")

    def _columns(self, cursor: Any, place: str) -> list[tuple[str, str]]:
        """The columns of a table with their types, without those that number its rows."""
        cursor.execute(_COLUMNS, (place,))
        return list(cursor.fetchall())

    def _place(self, name: str) -> str:
        return ".".join(double_quoted(one) for one in (self._schema, name) if one)

    def passes(self, error: BaseException) -> bool | None:
        if type(error).__module__ != "adbc_driver_manager":
            return None
        state = getattr(error, "sqlstate", None)
        if state is not None:
            return bool(state.startswith(_PASSING))
        unread = any(part in str(error) for part in _UNREAD)
        return type(error).__name__ == "OperationalError" and not unread


def _signed(rows: pa.Table) -> pa.Table:
    """The rows with decimals for unsigned numbers of 64 bits, which the driver stores as if they had a sign. Raises
    `UsageError` for such numbers inside of lists and structs.
    """
    for place, field in enumerate(rows.schema):
        if pa.types.is_uint64(field.type):
            rows = rows.set_column(place, field.name, rows[field.name].cast(_WHOLE))
        elif "uint64" in str(field.type):
            raise UsageError(
                "PostgreSQL has no unsigned 64-bit integers inside lists and structs: cast them",
                code="sink-target",
                column=field.name,
                type=str(field.type),
            )
    return rows


def _one(cursor: Any, statement: str, values: tuple[object, ...]) -> Any:
    """The one value that it gives, or None."""
    cursor.execute(statement, values)
    found = cursor.fetchone()
    return found[0] if found is not None else None


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(double_quoted, columns))
