"""Origins that the engine gives: a source gets the next id, from 1, when it is registered, and each batch with rows
of it is its next buffer. Pure, vectorised.

After NebulaStream, "Watermarking and Progress", which numbers buffers where they are made. Here the job makes them:
what one step takes of a source is a buffer, with the largest time in it as its watermark. As steps are taken once and
in order, an origin has no gaps, and its longest complete prefix ends with its newest buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.origins import (
    BufferState,
    advance_origins,
    assigned,
    buffers,
    register_sources,
    restore,
    save,
)
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    Reports,
    SourceReport,
    WatermarkGenerator,
    merged,
)
from tidestate.operators.progress.watermarks import Claimant, SideColumns
from tidestate.statestore.arrays import Counters
from tidestate.statestore.errors import UsageError


class GivenOrigins(
    WatermarkGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="given_origins"
):
    """Progress by buffers that the engine numbers. The watermark of a buffer is the largest time in ``column`` of its
    accepted rows: the event time, where none is named.

    Declared sources are registered at the start, in their order; others with their first accepted row, those of one
    batch by name. An id belongs to its source for the life of the job. A batch with rows of a source is its next
    buffer, also if all of them are rejected: that buffer has no watermark.
    """

    column: str = ""
    needs: ClassVar[tuple[str, ...]] = ("given-origins/1",)

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        return "watermark.buffers", (), {"watermark": self.column or None}

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column that is read: that of the times."""
        return (self.column,) if self.column else ()

    def of_side(self, columns: SideColumns) -> Claimant:
        """Raises `UsageError`: the origins of several streams are given together."""
        raise UsageError(
            "origins are given to all streams of an operator together: remove .watermark(watermark.buffers()) from "
            "the streams, and set watermark=watermark.over(watermark.buffers()) on what combines them, or of a merge "
            ".watermark(watermark.over(watermark.buffers())): each stream is an origin then",
            code="given-origins",
            side=columns.side,
        )

    def explains(self, event_us: int, watermark_us: int) -> bool:
        """Whether the watermark is this event's time."""
        return event_us == watermark_us

    def begin(self, names: Iterable[str], side: str = "") -> GeneratorState:
        """The declared sources have ids, and nothing has arrived from them."""
        return GeneratorState(buffers={side: register_sources(names)})

    def after_checks(
        self, accepted: pa.Table, rejected: pa.Table | None, source: str, by: str | None, now_us: int
    ) -> tuple[Claims, Counters]:
        """The largest time of each source in the accepted rows of a piece."""
        return MaxEventTime(self.column).after_checks(accepted, rejected, source, by, now_us)

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int, side: str = ""
    ) -> tuple[GeneratorState, Reports]:
        """One more buffer of each source that has rows in the batch, and the watermarks that follow."""
        so_far = {*known}
        state = began.buffers.get(side) or register_sources(sorted(so_far, key=_order))
        reported = merged(piece.reports for piece in claims)
        accepted = {name: report for name, report in reported.items() if report.rows}
        refused_sources = {name for piece in claims for name, report in piece.rejected.items() if report.rows}
        # Rejected rows register no source: a damaged name would hold the watermark forever.
        names = sorted({*accepted, *(refused_sources & so_far)}, key=_order)
        if not names:
            return GeneratorState(buffers={side: state}), {}
        ids = assigned(names, state.ids or None)
        before = restore(state.origins)
        prefixes = dict(zip(before.ids.tolist(), before.prefixes.tolist(), strict=True))
        numbers = np.array([ids[name] for name in names], np.int64)
        # Steps are taken once and in order, so an origin has no gaps: the next number follows its prefix.
        sequences = np.array([prefixes.get(number, 0) + 1 for number in numbers.tolist()], np.int64)
        marks = np.array([accepted.get(name, SourceReport()).watermark_us for name in names], np.int64)
        after = advance_origins(before, buffers(numbers, sequences, watermarks=marks)).origins
        watermarks_us = dict(zip(after.ids.tolist(), after.watermarks_us.tolist(), strict=True))
        reports = {
            name: SourceReport(watermarks_us[ids[name]], rows=accepted.get(name, SourceReport()).rows, generated=True)
            for name in names
        }
        return GeneratorState(buffers={side: BufferState(save(after), ids=ids)}), reports


def _order(name: str) -> tuple[bool, int, str]:
    """Names that are numbers, as those of partitions, by value; then the others, by text."""
    number = re.fullmatch("[0-9]+", name) is not None
    return (not number, int(name) if number else 0, name)
