"""Watermarks from the buffers that rows came in: an origin's is that of its longest complete prefix. Pure,
vectorised.

Pieces of input claim which buffers they contain; `tidestate.operators.progress.origins` combines the claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.cut_buffers import (
    ArrivedBuffers,
    arrived_buffers,
    buffers_of,
    distinct_buffers,
)
from tidestate.operators.progress.origins import (
    SEEN,
    Buffers,
    BufferState,
    Origins,
    advance_origins,
    buffers,
    end,
    origins,
    restore_waiting,
    save,
    wait,
    with_new_origins,
)
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    Reports,
    SourceReport,
    WatermarkGenerator,
    merged,
    source_column,
)
from tidestate.operators.progress.watermarks import BEGINNING_US, SideColumns, Sources, Watermarks
from tidestate.statestore.arrays import Flags, counted_flags
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    Patience = Span
else:
    Patience = str  # as it is stored, whatever is given

GIVEN_UP = "gap_given_up"
"""Reason of a row whose buffer arrived after the gap that it belongs to was given up."""
DUPLICATE = "duplicate_buffer"
"""Reason of a row whose buffer arrived in an earlier batch."""


class BufferProgress(
    WatermarkGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="buffers"
):
    """Progress by buffers: the columns that name the buffer, and the chunk of it, in which each row arrived.

    Without ``chunk`` a buffer is one chunk; without ``last`` every chunk is the last one. All rows of a chunk arrive
    in one batch, unless ``whole`` names a column with the number of its rows, or a flag on its last row: then it is
    waited for until they are there. Rows of a repeated buffer are rejected. A row in which ``empty`` is true is no
    event: it announces a chunk without rows. ``end`` is true on the rows of an origin's last buffer: once
    everything up to it has arrived, the origin no longer holds W.

    Each origin is a source. A gap holds its watermark for ``patience`` (default: forever); rows that arrive for the
    gap later are rejected. Raises `UsageError` for a patience that is not positive.
    """

    origin: str
    sequence: str
    watermark: str
    chunk: str | None = None
    last: str | None = None
    patience: Patience | None = None
    end: str | None = None
    whole: str | msgspec.UnsetType = msgspec.UNSET
    empty: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.patience is None:
            return
        if span_us(self.patience) <= 0:
            raise UsageError("patience= must be above 0", code="watermark", patience=self.patience)
        msgspec.structs.force_setattr(self, "patience", text_of(span_us(self.patience)))

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return "watermark.buffers", (), {n: value for n, value in values.items() if value is not msgspec.UNSET}

    @property
    def filters_rows(self) -> bool:
        """Rows that announce empty buffers are no events, and those of buffers that came before are refused."""
        return True

    @property
    def waits(self) -> bool:
        """Whether its watermark can move without input."""
        return self.patience is not None

    @property
    def columns(self) -> list[str]:
        """The input columns it reads."""
        of_buffer = (self.origin, self.sequence, self.watermark, self.chunk, self.last)
        return [name for name in (*of_buffer, self.end, self.whole, self.empty) if isinstance(name, str)]

    @property
    def patience_us(self) -> int | None:
        """`patience` in microseconds, None where there is no limit."""
        return None if self.patience is None else span_us(self.patience)

    def watermarks(self, by: str | None, declared: Sources) -> Watermarks:
        """The settings in which each origin is a source. Raises `UsageError` if ``by`` is another column, or a source
        is not a whole number.
        """
        if by not in (None, self.origin):
            raise UsageError(
                "with buffers each origin is a source: remove by=", code="watermark", by=by, origin=self.origin
            )
        if wrong := [name for name in declared.names if not re.fullmatch("0|-?[1-9][0-9]*", name)]:
            raise UsageError("the origins of buffers must be integers", code="progress-source", found=wrong)
        return Watermarks(self, declared, self.origin)

    def of_side(self, columns: SideColumns) -> BufferProgress:
        """The same over the columns of several sides: the origins are those of this side alone."""
        names = {field: getattr(self, field) for field in _COLUMNS}
        columns_there = {field: columns.in_stream(name) for field, name in names.items() if isinstance(name, str)}
        return msgspec.structs.replace(self, **columns_there)

    def begin(self, names: Iterable[str], side: str = "") -> GeneratorState:
        """Nothing has arrived from these origins."""
        return GeneratorState(buffers={side: begin_buffers(name.removeprefix(_front(side)) for name in names)})

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading:
        """The rows of buffers that are new in this micro-batch; those of others are refused."""
        all_rows = buffers(
            rows[self.origin],
            rows[self.sequence],
            0 if self.chunk is None else rows[self.chunk],
            True if self.last is None else rows[self.last],
            rows[self.watermark],
        )
        state, empty = began.buffers.get(source) or begin_buffers(()), _flagged(rows, self.empty)
        distinct, owner = distinct_buffers(all_rows)
        late = _within(distinct, state.given_up)
        seen = (advance_origins(restore_waiting(state), distinct).reasons == SEEN) & ~late
        duplicate, refused = seen[owner], (seen[owner] | late[owner]) & ~empty
        reasons = pa.array(np.where(duplicate, DUPLICATE, GIVEN_UP)[refused], pa.string())
        whole = source_column(rows, self.whole) if isinstance(self.whole, str) else None
        claims = Claims(
            _named(_rows_by_origin(all_rows), source),
            buffers={source: arrived_buffers(distinct, owner, whole, empty).packed()},
            ends={source: {} if self.end is None else _ends(all_rows, rows[self.end])},
        )
        counters = counted_flags(control_rows=empty)
        going, out = rows.filter(pa.array(~refused & ~empty)), rows.filter(pa.array(refused))
        return InputReading(going, claims, counters, (out, reasons))

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int, side: str = ""
    ) -> tuple[GeneratorState, Reports]:
        """The buffers so far, and the watermark of each origin's longest complete prefix."""
        if side not in began.buffers:
            return super().combine(began, claims, known, now_us, side)
        arrived = [piece.buffers[side] for piece in claims if side in piece.buffers]
        ends = [piece.ends[side] for piece in claims if side in piece.ends]
        buffers, by_origin = buffers_after(self, began.buffers[side], arrived, ends, now_us)
        reports = _named(by_origin, side)
        # Rows of an unusable buffer, or of an origin that had ended, add no source.
        present = {*known, *reports}
        rows = [{name: one for name, one in piece.reports.items() if name in present} for piece in claims]
        if side:
            # Origins of a side join at the watermark of all sides, which the tracker has, not at that of the side.
            buffers = msgspec.structs.replace(
                buffers, origins=msgspec.structs.replace(buffers.origins, watermark_us=BEGINNING_US)
            )
        return GeneratorState(buffers={side: buffers}), merged([reports, *rows])


_COLUMNS = ("origin", "sequence", "watermark", "chunk", "last", "end", "whole", "empty")


def _front(side: str) -> str:
    """What is in front of an origin in the name of its source."""
    return f"{side}/" if side else ""


def _named(by_origin: Mapping[str, SourceReport], side: str) -> dict[str, SourceReport]:
    """The reports of origins by the names of these as sources."""
    return {_front(side) + origin: report for origin, report in by_origin.items()}


def begin_buffers(names: Iterable[str]) -> BufferState:
    """The state before the first batch, with these origins declared."""
    return BufferState(save(origins(int(name) for name in names)))


def buffers_after(
    settings: BufferProgress,
    state: BufferState,
    arrived: Iterable[bytes],
    ends: Iterable[Mapping[str, int]],
    now_us: int,
) -> tuple[BufferState, dict[str, SourceReport]]:
    """The state after the buffers and declared ends of all pieces of a batch, at processing time ``now_us``; and the
    report of each origin, also of those that ended in this batch.
    """
    came = ArrivedBuffers.unpacked(arrived).then(state.cut).merged()
    known = with_new_origins(restore_waiting(state), came.buffers)
    waits = ~came.whole & ~came.buffers.unusable
    waits &= advance_origins(known, came.buffers).reasons != SEEN if waits.any() else False
    known = advance_origins(known, buffers_of(came.buffers, ~waits)).origins
    known = _ended(known, ends)
    known, gaps = wait(known, now_us, settings.patience_us)
    given_up = [*state.given_up, *((gap.origin, gap.first, gap.last) for gap in gaps if gap.given_up)]
    pairs = zip(known.ids.tolist(), known.waiting_since_us.tolist(), strict=True)
    waiting = [(origin, since) for origin, since in pairs if since != BEGINNING_US]
    present = set(known.ids.tolist())
    prefixes = dict(zip(known.ids.tolist(), known.prefixes.tolist(), strict=True))
    cut = [one for one in came.cut(waits) if one[0] in present and one[1] > prefixes[one[0]]]
    after = BufferState(save(known), waiting, [gap for gap in given_up if gap[0] in present], cut)
    return after, _reports(after, known.left)


def _ends(given: Buffers, flags: pa.ChunkedArray) -> dict[str, int]:
    """The last sequence number of origins that declare one: the largest, if there are several."""
    where = np.asarray(pc.fill_null(flags, False)).astype(bool) & ~given.unusable
    pairs = set(zip(given.origins[where].tolist(), given.sequences[where].tolist(), strict=True))
    return {str(origin): sequence for origin, sequence in sorted(pairs)}


def _ended(known: Origins, ends: Iterable[Mapping[str, int]]) -> Origins:
    """``known`` with the declared ends, but those before an origin's prefix."""
    declared: dict[int, int] = {}
    for piece in ends:
        for origin, last in piece.items():
            declared[int(origin)] = max(last, declared.get(int(origin), 0))
    present = set(known.ids.tolist())
    valid = {n: last for n, last in declared.items() if n in present and known.prefix_of(n) <= last}
    return end(known, valid)


def _reports(state: BufferState, left: Mapping[int, int]) -> dict[str, SourceReport]:
    ended = {str(origin): SourceReport(watermark, generated=True, ended=True) for origin, watermark in left.items()}
    return ended | {
        str(origin): SourceReport(watermark, generated=True) for origin, _, watermark, _ in state.origins.origins
    }


def _flagged(events: pa.Table, name: str | msgspec.UnsetType) -> Flags:
    """The rows in which this column is true; none without a column."""
    if not isinstance(name, str):
        return np.zeros(events.num_rows, bool)
    flags = source_column(events, name)
    if not pa.types.is_boolean(flags.type):
        raise UsageError("empty= must be a boolean column", code="progress-column", column=name, found=flags.type)
    return np.asarray(pc.fill_null(flags, False)).astype(bool)


def _within(given: Buffers, ranges: list[tuple[int, int, int]]) -> Flags:
    """Which buffers lie in one of these ranges of an origin's sequence numbers."""
    inside = np.zeros(len(given), bool)
    for origin, first, last in ranges:
        inside |= (given.origins == origin) & (given.sequences >= first) & (given.sequences <= last)
    return inside & ~given.unusable


def _rows_by_origin(given: Buffers) -> dict[str, SourceReport]:
    ids, counts = np.unique(given.origins[~given.unusable], return_counts=True)
    return {str(origin): SourceReport(rows=rows) for origin, rows in zip(ids.tolist(), counts.tolist(), strict=True)}
