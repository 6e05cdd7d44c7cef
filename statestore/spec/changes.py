"""The change set: everything one step wants changed, applied whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

MERGE, PUT, DELETE = 0, 1, 2
"""Values of the ``__op`` column of a changelog segment."""


@dataclass(frozen=True)
class TableChanges:
    """Changes to one table, applied in this order: ``delete``, ``put``, ``merge``, ``expire``.

    ``delete`` holds key columns only. ``put`` replaces the row, so a key stands in it once. ``merge`` combines
    with what is there; a key may repeat in it. ``expire`` is an inclusive bound in the unit of the expiry column
    (microseconds for our times): rows at or below it are never seen again.
    """

    delete: pa.Table | None = None
    put: pa.Table | None = None
    merge: pa.Table | None = None
    expire: int | None = None

    def layers(self) -> list[Layer]:
        """The non-empty parts as layers, oldest first."""
        parts = ((DELETE, self.delete), (PUT, self.put), (MERGE, self.merge))
        return [Layer(op, rows) for op, rows in parts if rows is not None and rows.num_rows]


@dataclass(frozen=True)
class Layer:
    """Rows of one table that all mean the same: merged, put or deleted. A newer layer is laid over older ones.

    ``ordered`` rows are sorted by the whole key, so a range of keys is two bisections away.
    """

    op: int
    rows: pa.Table
    ordered: bool = False


ChangeSet = Mapping[str, TableChanges]
"""Table name to its changes."""


@dataclass(frozen=True)
class Applied:
    """How far a store has come: the sequence of the last change set and the lineage id it left behind."""

    sequence: int = 0
    lineage: str = ""


@dataclass(frozen=True)
class Lookup:
    """Rows aligned with the keys asked for: ``rows[i]`` is null in all values where ``found[i]`` is false."""

    found: pa.Array = field(repr=False)  # bool
    rows: pa.Table = field(repr=False)


KeyBound: TypeAlias = pa.Array | pa.ChunkedArray | None
"""A bound for each row of prefixes; null, or no array at all, is none."""


@dataclass(frozen=True)
class Ranges:
    """Rows found for many requests at once, by request and in key order. Row i is of request ``request_index[i]``."""

    request_index: pa.Array = field(repr=False)  # int64
    rows: pa.Table = field(repr=False)
