"""Columns of a side where several streams are one: what they are called there, and on the side. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class SideColumns:
    """What the columns of a side are called where several streams are one: with the name of the side in front, but
    for those that are ``shared`` (None: all are).
    """

    side: str
    shared: tuple[str, ...] | None

    def in_stream(self, name: str) -> str:
        """What a column of the side is called there."""
        return name if self.shared is None or name in self.shared else f"{self.side}_{name}"

    def on_side(self, name: str) -> str:
        """What a column there is called on the side: the reverse of `in_stream`."""
        return name if self.shared is None or name in self.shared else name.removeprefix(f"{self.side}_")

    def columns(self, names: Iterable[str]) -> dict[str, str]:
        """The columns of the side among ``names`` there, each with what it is called on the side."""
        names_on_side = {name: self.on_side(name) for name in names}
        # A column of another side keeps its name, which the way back then changes.
        return {name: column for name, column in names_on_side.items() if self.in_stream(column) == name}

    def of_side(self, rows: pa.Table) -> pa.Table:
        """The columns of the side, by the names that they have in its own stream."""
        columns = self.columns(rows.column_names)
        return rows.select([*columns]).rename_columns([*columns.values()])
