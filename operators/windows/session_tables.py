"""Tables of sessions that wait in parts: by cell and key, see `tidestate.operators.windows.parts.cells`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tidestate.operators.describe.windows import Sessions
from tidestate.operators.windows.names import CELL, END, PARTS, START
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import EXTREMES, Column, Group, TableSpec


@dataclass(frozen=True)
class SessionTables(GroupTables):
    """The columns and tables of a plan, with those of sessions."""

    @property
    def in_cells(self) -> bool:
        """Whether sessions may wait in parts: those of a constant gap."""
        return isinstance(self.kind, Sessions) and self.kind.gap_column is None

    @property
    def has_parts(self) -> bool:
        return super().has_parts or self.in_cells

    @cached_property
    def lazy(self) -> bool:
        """As of other windows; and sessions only if their state does not grow, as it is copied from part to part."""
        appends = any(column.combiner == "append" for column in self.state)
        grows = appends or not all(_bounded(group) for group in self.state_groups)
        return self.waits and not (self.in_cells and grows)

    @property
    def gap(self) -> int:
        """The gap of all sessions, in microseconds or offsets."""
        return of_type(self.kind, Sessions).gap

    @cached_property
    def parts(self) -> TableSpec:
        if not self.in_cells:
            return self.parts_of_slices
        kind = type_text(self.bound_type)
        bounds = (Column(START, kind, START, "min"), Column(END, kind, END, "max"))
        key = (Column(CELL, "int64"), *self.key_columns)
        return TableSpec(PARTS, key, (*bounds, *self.part_values), CELL, self.state_groups, self.partition_by)

    @cached_property
    def chained(self) -> TableSpec:
        """Parts combined by session; not stored."""
        return TableSpec("chained", self.bare.key, self.part_values, None, self.state_groups)


def _bounded(group: Group) -> bool:
    """Whether columns do not become longer as more rows are combined."""
    return group.combiner in (*EXTREMES, "moments") or (group.combiner in ("smallest", "largest") and group.limit > 0)
