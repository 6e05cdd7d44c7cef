"""The numbers of a stream's messages, in the order of their offsets, as the axis of windows. Pure, vectorised.

The first message of the stream has the number 0, and each further one the next, whatever its key and however far its
offset is ahead. A number is given once: so a message must come after all of smaller offset, and one that does not is
refused, since the numbers behind it are in use. What comes again is refused for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.lone_origin import LoneOrigin
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    Numbering,
    WatermarkGenerator,
)
from tidestate.operators.progress.tracker import Reports, SourceReport, merged, rows_per_source

MESSAGE_NUMBER = "message_number"
"""The column that numbered messages get."""
PASSED_OFFSET = "passed_offset"
"""The reason of a message whose offset is not above those of all messages that have a number."""


class MessageNumbers(
    WatermarkGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="numbers"
):
    """Gives messages of one origin their numbers, in `MESSAGE_NUMBER`. The watermark is how many there are: no later
    message has a smaller number.
    """

    offset: str
    origin: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that order messages."""
        return tuple(self.order)

    @property
    def order(self) -> Sequence[str]:
        """Messages are numbered by their offsets, so all of them are read in one place."""
        return (self.offset,) if self.origin is None else (self.origin, self.offset)

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """No user makes it: windows of numbers do."""
        return "message_sessions", (), {}

    @property
    def filters_rows(self) -> bool:
        """Messages that get no number are refused."""
        return True

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading:
        """The messages with their numbers, in order; those behind one that has a number are refused."""
        origins: tuple[str, ...] = ()
        if self.origin is not None:
            origins = LoneOrigin({"": self.origin}).only_origin(rows, so_far.origins)
        before = so_far.numbering or Numbering()
        rows_by_offset = rows.sort_by(self.offset)
        offsets = rows_by_offset[self.offset].to_numpy()
        above = offsets > np.maximum(np.append(before.offset, offsets[:-1]), before.offset)
        numbered_rows, refused_rows = rows_by_offset.filter(pa.array(above)), rows_by_offset.filter(pa.array(~above))
        messages = before.messages + numbered_rows.num_rows
        numbers = pa.array(np.arange(before.messages, messages))
        numbered_rows = numbered_rows.set_column(
            numbered_rows.schema.get_field_index(MESSAGE_NUMBER), MESSAGE_NUMBER, numbers
        )
        after = Numbering(messages, int(offsets[-1])) if numbered_rows.num_rows else before
        rows_of_source = rows_per_source(rows_by_offset, source=source, by=by)
        claims = Claims(rows_of_source, origins=origins, numbering=after)
        reasons = pa.array([PASSED_OFFSET] * refused_rows.num_rows, pa.string())
        return InputReading(numbered_rows, claims, refused=(refused_rows, reasons))

    def combine(
        self,
        began: GeneratorState,
        claims: Sequence[Claims],
        known: Iterable[str],
        now_us: int,
        side: str = "",
    ) -> tuple[GeneratorState, Reports]:
        """The messages so far, of all pieces."""
        numberings = [began.numbering, *(piece.numbering for piece in claims)]
        newest = max(filter(None, numberings), key=lambda numbering: numbering.messages, default=None)
        watermark = newest.messages if newest is not None and newest.messages else BEGINNING_US
        sources = dict.fromkeys([*known, *(name for piece in claims for name in piece.reports)])
        reports = dict.fromkeys(sources, SourceReport(watermark, generated=True))
        state = msgspec.structs.replace(began, numbering=newest)
        return state, merged([reports, *(piece.reports for piece in claims)])
