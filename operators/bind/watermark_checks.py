"""Watermarks that do not go with what they are of: columns and buffers of one side. Pure."""

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
    """Check that buffers are of rows of all sides. Raises `UsageError`."""
    generator = watermarks.generator if watermarks is not None else None
    if not isinstance(generator, BufferProgress):
        return
    if own_columns := [name for name in generator.columns if name not in shared]:
        raise UsageError(
            "rows of the other side have no buffers in these columns, so that side would not hold back the "
            "watermark: give the streams a watermark_delay=, or set watermark.bounded(…) over all sides",
            code="watermark-sides",
            operator=operator,
            columns=own_columns,
        )
