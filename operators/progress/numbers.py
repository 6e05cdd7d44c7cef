"""Messages of one origin, as offsets of two are not comparable; and their numbers, in the order of their offsets, as
the axis of windows. Pure, vectorised.

The first message of the stream has the number 0, and each further one the next, whatever its key and however far its
offset is ahead. A number is given once: so a message must come after all of smaller offset, and one that does not is
refused, since the numbers behind it are in use. What comes again is refused for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    Numbering,
    Observer,
    Progress,
    Reports,
    SourceReport,
    WatermarkGenerator,
    merged,
    rows_per_source,
)
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.arrays import with_column
from tidestate.statestore.errors import UsageError


@dataclass(frozen=True)
class LoneOrigin(Observer):
    """Columns that may have only one value, as offsets of two origins are not comparable: by what stands in front of
    their values in a manifest.
    """

    columns: Mapping[str, str]

    def read(self, accepted: pa.Table, so_far: Progress) -> Claims:
        return Claims(origins=self.only_origin(accepted, so_far.generator.origins))

    def only_origin(self, rows: pa.Table, known: Sequence[str]) -> tuple[str, ...]:
        """The one origin that these rows have in each column, those ``known`` before included. Raises `UsageError`
        for a second one.
        """
        # Two values of a column are as wrong as a hundred.
        origins = [
            f"{front}{origin}"
            for front, column in self.columns.items()
            for origin in pc.unique(rows[column].drop_null()).slice(0, 2).to_pylist()
        ]
        self._one_of_each([*known, *origins])
        return tuple(sorted(origins))

    def after(self, progress: Progress, claims: Sequence[Claims]) -> Progress:
        state = progress.generator
        origins = self._one_of_each([*state.origins, *(origin for piece in claims for origin in piece.origins)])
        return msgspec.structs.replace(progress, generator=msgspec.structs.replace(state, origins=origins))

    def _one_of_each(self, seen: Iterable[str]) -> tuple[str, ...]:
        """The different ones, in order. Raises `UsageError` for a second one of a column."""
        origins = tuple(sorted({*seen}))
        for front, column in self.columns.items():
            of_column = [origin.removeprefix(front) for origin in origins if origin.startswith(front)]
            if len(of_column) > 1:
                raise UsageError(
                    "windows of offsets, and each side of a join, can read only one origin, as offsets of two "
                    "origins cannot be compared: run a job for each origin, or count messages instead, "
                    "count_windows(…)",
                    code="several-origins",
                    column=column,
                    found=tuple(of_column[:2]),
                )
        return origins


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
        numbered_rows = with_column(numbered_rows, MESSAGE_NUMBER, numbers)
        after = Numbering(messages, int(offsets[-1])) if numbered_rows.num_rows else before
        rows_of_source = rows_per_source(rows_by_offset, source=source, by=by)
        claims = Claims(rows_of_source, origins=origins, numbering=after)
        reasons = pa.array([PASSED_OFFSET] * refused_rows.num_rows, pa.string())
        return InputReading(numbered_rows, claims, refused=(refused_rows, reasons))

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int, side: str = ""
    ) -> tuple[GeneratorState, Reports]:
        """The messages so far, of all pieces."""
        numberings = [began.numbering, *(piece.numbering for piece in claims)]
        newest = max(filter(None, numberings), key=lambda numbering: numbering.messages, default=None)
        watermark = newest.messages if newest is not None and newest.messages else BEGINNING_US
        sources = dict.fromkeys([*known, *(name for piece in claims for name in piece.reports)])
        reports = dict.fromkeys(sources, SourceReport(watermark, generated=True))
        state = msgspec.structs.replace(began, numbering=newest)
        return state, merged([reports, *(piece.reports for piece in claims)])
