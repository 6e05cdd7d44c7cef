"""Partitions of a target: by the values of columns, and by the day or hour of a column of times. Pure.

Iceberg has days and hours of its own. For the others a column is added that has them as values, named after its
source: ``window_start_day``, a date, and ``window_start_hour``, a text such as ``2026-01-01-05``. Both are in UTC, of
times without a zone as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidestate.operators.sinks.stored_columns import StoredColumns, quoted_in_spark
from tidestate.statestore.arguments import called
from tidestate.statestore.errors import UsageError

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""What stands for null in the path of a file."""
PartitionUnit = Literal["value", "day", "hour"]


@called("a partition", 'sinks.day("window_start")')
@dataclass(frozen=True)
class PartitionField:
    """One level of the partitions of a target: a ``column`` of the job, by its values or its days or hours."""

    column: str
    unit: PartitionUnit = "value"


PartitionChoice = str | PartitionField | Sequence[str | PartitionField] | None
"""Columns, and days or hours of columns, from the outermost partition in; None for a target without partitions."""


def day(column: str) -> PartitionField:
    """A partition for each day, in UTC, of a column of times or dates: ``partition_by=sinks.day("window_start")``."""
    return PartitionField(column, "day")


def hour(column: str) -> PartitionField:
    """A partition for each hour, in UTC, of a column of times: ``partition_by=sinks.hour("window_start")``."""
    return PartitionField(column, "hour")


@dataclass(frozen=True)
class TargetPartitions:
    """The ``fields`` of a target by their ``columns`` there, of which some are named otherwise in the job."""

    fields: tuple[PartitionField, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def names(self) -> list[str]:
        """The columns of the target that have the values of its partitions."""
        return [_name(field) for field in self.fields]

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` (``sink-partition``) where rows with this ``schema`` have no such partitions."""
        for field in self.fields:
            if field.column not in schema.names:
                raise _wrong("a column of partition_by= is not stored", field.column, columns=schema.names)
            kind, fits = schema.field(field.column).type, _FITS[field.unit]
            if not fits(kind):
                raise _wrong(_KINDS[field.unit], field.column, type=str(kind))
            if field.unit != "value" and _name(field).casefold() in map(str.casefold, schema.names):
                raise _wrong(
                    "partition_by= needs this name for a column of its own: give the other another name, columns=…",
                    _name(field),
                )

        if self.fields and {field.column for field in self.fields if field.unit == "value"} >= {*schema.names}:
            raise _wrong("partition_by= has all columns that are stored, and files would have none", schema.names[0])

    def check_values(self, rows: pa.Table) -> None:
        """Raise `UsageError` (``sink-partition``) for texts that folders of partitions take for null."""
        for field in self.fields:
            if not _is_text(rows.schema.field(field.column).type):
                continue
            texts = rows[field.column]
            if pc.any(pc.or_kleene(pc.equal(texts, ""), pc.equal(texts, NULL_FOLDER))).as_py():
                raise _wrong(
                    "a partition has an empty text as its value, or __HIVE_DEFAULT_PARTITION__, which readers would "
                    "take for null: partition by another column",
                    field.column,
                )

    def added(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the columns that are made of others, of those that they have."""
        for field in self.fields:
            if field.unit != "value" and field.column in rows.column_names:
                rows = rows.append_column(_name(field), _values(rows[field.column], field.unit))
        return rows

    def made_of(self, columns: Sequence[str]) -> list[str]:
        """The columns that are made of some of these, and so say nothing new."""
        return [_name(field) for field in self.fields if field.unit != "value" and field.column in columns]

    def expressions(self, columns: Sequence[tuple[str, str]]) -> list[str]:
        """All columns as expressions of Spark's SQL, given their names and types there, with what is made of them.
        A text in a partition that readers take for null is an error of the query, see `check_values`.
        """
        kinds, by_value = dict(columns), {field.column for field in self.fields if field.unit == "value"}
        selected = []
        for name, kind in columns:
            quoted = quoted_in_spark(name)
            if name in by_value and kind == "string":
                message = "raise_error('readers would take the value of a partition for null [sink-partition]')"
                is_null = f"{quoted} IN ('', '{NULL_FOLDER}')"
                selected.append(f"CASE WHEN {is_null} THEN {message} ELSE {quoted} END AS {quoted}")
            else:
                selected.append(quoted)
        made = [field for field in self.fields if field.unit != "value"]
        return [*selected, *(_expression(field, kinds[field.column]) for field in made)]


def target_partitions(partition_by: PartitionChoice, columns: StoredColumns) -> TargetPartitions:
    """The partitions of a target that stores these ``columns``. Raises `UsageError` (``sink-partition``)."""
    if partition_by is None:
        return TargetPartitions()
    listed = [partition_by] if isinstance(partition_by, str | PartitionField) else partition_by
    if not isinstance(listed, Sequence) or not listed or not all(isinstance(f, str | PartitionField) for f in listed):
        raise _wrong(
            'partition_by= must be columns, or days and hours of columns, as ["k", sinks.day("window_start")]',
            repr(partition_by)[:100],
        )
    fields = [PartitionField(field) if isinstance(field, str) else field for field in listed]
    if columns.names is not None and (left := [f.column for f in fields if f.column not in columns.names]):
        raise _wrong("a column of partition_by= is not among columns=: add it", left[0])
    named = tuple(PartitionField(columns.target_names([field.column])[0], field.unit) for field in fields)
    if len(set(named)) < len(named):
        raise _wrong("partition_by= has the same partition twice", repr(partition_by)[:100])
    return TargetPartitions(named)


def other_partitions(found: Sequence[str], names: Sequence[str], sink: str) -> UsageError:
    """The error for a target that has other partitions than its sink."""
    return UsageError(
        "the target has other partitions than partition_by= of the sink: give it those that are there, or write to a "
        "new target",
        code="sink-partition",
        sink=sink,
        found=list(found),
        partition_by=list(names),
    )


def _name(field: PartitionField) -> str:
    return field.column if field.unit == "value" else f"{field.column}_{field.unit}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_value(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date32(kind))


def _has_days(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) or pt.is_date32(kind))


_FITS: dict[str, Callable[[pa.DataType], bool]] = {"value": _is_value, "day": _has_days, "hour": pt.is_timestamp}
_KINDS = {
    "value": "partitions are by texts, whole numbers, booleans or dates: use sinks.day(…) or sinks.hour(…) for times",
    "day": "a column without times or dates has no days",
    "hour": "a column without times has no hours",
}


def _values(times: pa.ChunkedArray, unit: PartitionUnit) -> pa.ChunkedArray:
    if pt.is_date32(times.type):
        return times
    plain = times.cast(pa.timestamp("us"))  # of a time with a zone what it is in UTC
    return plain.cast(pa.date32(), safe=False) if unit == "day" else pc.strftime(plain, format="%Y-%m-%d-%H")


def _expression(field: PartitionField, kind: str) -> str:
    """The same in Spark, whatever the time zone of its session is."""
    column, name = quoted_in_spark(field.column), quoted_in_spark(_name(field))
    micros = f"unix_micros({column})"
    date = f"date_from_unix_date(CAST(({micros} - pmod({micros}, 86400000000)) div 86400000000 AS INT))"
    clock = f"pmod({micros}, 86400000000) div 3600000000"
    if kind in ("date", "timestamp_ntz"):
        date, clock = f"CAST({column} AS DATE)", f"extract(HOUR FROM {column})"
    if field.unit == "day":
        return f"{date} AS {name}"
    return f"concat(CAST({date} AS STRING), '-', lpad(CAST({clock} AS STRING), 2, '0')) AS {name}"


def _wrong(message: str, column: str, **facts: object) -> UsageError:
    return UsageError(message, code="sink-partition", found=column, **facts)
