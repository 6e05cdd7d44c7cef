"""Which columns of rows a target gets, under which names, and next to them the id of the delivery. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidestate.operators.expressions.sql_types import quoted
from tidestate.statestore.errors import UsageError

ColumnChoice = Sequence[str] | Mapping[str, str] | None
"""Columns of rows in the form of a sink: these, or these as others are named in the target; None for all."""


@dataclass(frozen=True)
class StoredColumns:
    """``names``: the columns that are stored, with their names in the target; None for all, as they are.
    ``delivery``: the column for the id of the delivery, None for no such column.
    """

    names: Mapping[str, str] | None = None
    delivery: str | None = None

    def check(self, columns: Sequence[str], needed: Sequence[str]) -> None:
        """Raise `UsageError` (``sink-columns``) where rows with these ``columns`` cannot be stored so, or lack what
        readers ``needed`` to know what a row is.
        """
        if self.names is not None:
            if missing := [name for name in self.names if name not in columns]:
                raise _wrong("the rows do not have these columns", found=missing, columns=list(columns))
            if left := [name for name in needed if name not in self.names]:
                raise _wrong(
                    "without these columns the rows in the target cannot be interpreted: add them", missing=left
                )
        if self.delivery is not None:
            stored = columns if self.names is None else list(self.names.values())
            if taken := [name for name in stored if name.casefold() == self.delivery.casefold()]:
                raise _wrong("delivery_column= is already the name of another column: choose a new one", found=taken)

    def target_names(self, columns: Sequence[str]) -> list[str]:
        """The names in the target."""
        return list(columns) if self.names is None else [self.names[name] for name in columns]

    def chosen(self, rows: pa.Table, delivery: str) -> pa.Table:
        """``rows`` of a delivery as they are stored."""
        if self.names is not None:
            rows = rows.select(list(self.names)).rename_columns(list(self.names.values()))
        if self.delivery is not None:
            rows = rows.append_column(self.delivery, pa.repeat(pa.scalar(delivery, pa.string()), rows.num_rows))
        return rows

    def expressions(self, delivery: str) -> list[str]:
        """The same as expressions of Spark's SQL."""
        names = self.names
        columns = (
            ["*"]
            if names is None
            else [f"{quoted_in_spark(one)} AS {quoted_in_spark(name)}" for one, name in names.items()]
        )
        text = delivery.replace("\\", "\\\\").replace("'", "\\'")
        return columns if self.delivery is None else [*columns, f"'{text}' AS {quoted_in_spark(self.delivery)}"]


def stored_columns(columns: ColumnChoice, delivery_column: str | None) -> StoredColumns:
    """The settings of a sink. Raises `UsageError` (``sink-columns``)."""
    if delivery_column is not None and not _is_name(delivery_column):
        raise _wrong("delivery_column= must be the name of a column", found=repr(delivery_column))
    return StoredColumns(None if columns is None else _target_names(columns), delivery_column)


def _target_names(columns: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(columns, str) or not isinstance(columns, Sequence | Mapping) or not columns:
        raise _wrong("columns= must be a list of names, or {column: name in the target}", found=repr(columns))
    pairs = list(columns.items()) if isinstance(columns, Mapping) else [(name, name) for name in columns]
    if wrong := [name for pair in pairs for name in pair if not _is_name(name)]:
        raise _wrong("columns= has a value that is not a name", found=repr(wrong[0]))
    spelled = Counter(target.casefold() for _, target in pairs)
    if twice := [target for _, target in pairs if spelled[target.casefold()] > 1]:
        raise _wrong("columns= has the same name twice", found=twice)
    return dict(pairs)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name)


def quoted_in_spark(name: str) -> str:
    """A name of a column as Spark's SQL takes it. Raises `UsageError` (``sink-columns``) where it cannot."""
    if "${" in name:
        # Between backticks too Spark puts the value of a variable there, and nothing keeps it from that: the name
        # would be that of no column, or of another one.
        raise _wrong("Spark takes ${…} in a name for a variable: give it another name in the job", columns=[name])
    return quoted(name)


def _wrong(message: str, **facts: object) -> UsageError:
    return UsageError(message, code="sink-columns", **facts)
