"""Watermarks that do not go with what they are of: columns of one side. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidestate.operators.describe.sides import Sides
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns


def check_columns_of_sides(watermarks: Watermarks | None, sides: Sides, schema: pa.Schema) -> None:
    """Check that each side has the columns that its own watermark is claimed by. Raises `UsageError`."""
    if watermarks is None:
        return
    for side, claimant in watermarks.generator.of_sides.items():
        names = [name for name in (*claimant.columns, watermarks.generator.by_of(side)) if name]
        if missing := [sides.own(side, name) for name in names if name not in schema.names]:
            raise missing_columns("a side lacks columns", missing, sides.columns_of(side, schema), side=side)


def check_buffers(watermarks: Watermarks | None, shared: Sequence[str], operator: str) -> None:
    """Check that buffers over all sides, of one set of origins, are in ``shared`` columns. Raises `UsageError`."""
    generator = watermarks.generator if watermarks is not None else None
    if not isinstance(generator, BufferProgress):
        return
    if own_columns := [name for name in generator.columns if name not in shared]:
        raise UsageError(
            "buffers over all sides are in columns that all sides share, and rows of the other side have none of "
            "these: set .watermark(watermark.buffers(…)) on each stream",
            code="watermark",
            operator=operator,
            columns=own_columns,
        )
