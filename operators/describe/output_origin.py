"""An operator whose output comes in numbered buffers: the stored setting, and the columns that say them. Pure."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tidestate.statestore.spec.tables import TIME

ORIGIN_ID, SEQUENCE, CHUNK, LAST_CHUNK, ORIGIN_WATERMARK = ORIGIN_COLUMNS = (
    "origin_id",
    "sequence",
    "chunk",
    "last_chunk",
    "origin_watermark",
)
"""The columns of a row's buffer, behind those of the operator."""
ORIGIN_FIELDS = [
    pa.field(name, kind)
    for name, kind in zip(ORIGIN_COLUMNS, (pa.int64(), pa.int64(), pa.int64(), pa.bool_(), TIME), strict=True)
]
"""These columns with their types."""


class OutputOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As which origin an operator numbers the buffers of its output, and of which column of it they tell the
    watermark. None: as `tidestate.operators.bind.output_origin` chooses; what is stored has both.
    """

    origin: int | None = None
    time: str | None = None
