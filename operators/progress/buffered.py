"""Watermarks from the buffers that rows came in: an origin's is that of its longest complete prefix. Pure,
vectorised.

Pieces of input claim which buffers they contain; `tidestate.operators.progress.origins` combines the claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.buffers import Buffers, buffers
from tidestate.operators.progress.figures import Gap
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.origins import (
    SEEN,
    Origins,
    OriginsState,
    advance_origins,
    end,
    origins,
    restore,
    save,
    wait,
)
from tidestate.operators.progress.watermarks import BufferProgress, SourceReport
from tidestate.statestore.arrays import Flags, Numbers

GIVEN_UP = "gap_given_up"
"""Reason of a row whose buffer arrived after the gap that it belongs to was given up."""
DUPLICATE = "duplicate_buffer"
"""Reason of a row whose buffer arrived in an earlier batch."""


class BufferState(msgspec.Struct, frozen=True):
    """Plain data for the manifest. ``waiting``: origins that wait for a gap, and since which processing time (not
    kept across a restart). ``given_up``: origin, first and last sequence number of the gaps that were given up.
    """

    origins: OriginsState
    waiting: list[tuple[int, int]] = []
    given_up: list[tuple[int, int, int]] = []

    def restored(self) -> Origins:
        """The columns of `tidestate.operators.progress.origins`."""
        restored, since = restore(self.origins), dict(self.waiting)
        waiting = [since.get(origin, BEGINNING_US) for origin in restored.ids.tolist()]
        return replace(restored, waiting_since_us=np.array(waiting, np.int64))

    def gaps(self, now_us: int) -> list[Gap]:
        """The gaps that origins wait for at processing time ``now_us``."""
        return wait(self.restored(), now_us)[1]


@dataclass(frozen=True)
class BufferReading:
    """The rows of a piece: ``events`` go on, ``refused`` do not, for these ``reasons``.

    ``arrived`` are the distinct buffers, packed; ``rows`` the row counts of origins; ``ends`` the last sequence
    number of origins that declare it.
    """

    events: pa.Table
    refused: pa.Table
    reasons: pa.Array
    arrived: bytes
    rows: dict[str, SourceReport]
    ends: dict[str, int]


def begin_buffers(names: Iterable[str]) -> BufferState:
    """The state before the first batch, with these origins declared."""
    return BufferState(save(origins(int(name) for name in names)))


def read_buffers(settings: BufferProgress, events: pa.Table, state: BufferState) -> BufferReading:
    """The buffers of a piece. Rows of a buffer that arrived before this batch are refused."""
    all_rows = buffers(
        events[settings.origin],
        events[settings.sequence],
        0 if settings.chunk is None else events[settings.chunk],
        True if settings.last is None else events[settings.last],
        events[settings.watermark],
    )
    distinct, owner = distinct_buffers(all_rows)
    late = _within(distinct, state.given_up)
    seen = (advance_origins(state.restored(), distinct).reasons == SEEN) & ~late
    duplicate, refused = seen[owner], seen[owner] | late[owner]
    return BufferReading(
        events.filter(pa.array(~refused)),
        events.filter(pa.array(refused)),
        pa.array(np.where(duplicate, DUPLICATE, GIVEN_UP)[refused], pa.string()),
        pack(distinct),
        _rows_by_origin(all_rows),
        {} if settings.end is None else _ends(all_rows, events[settings.end]),
    )


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
    known = advance_origins(state.restored(), distinct_buffers(unpack(arrived))[0]).origins
    known = _ended(known, ends)
    known, gaps = wait(known, now_us, settings.patience_us)
    given_up = [*state.given_up, *((gap.origin, gap.first, gap.last) for gap in gaps if gap.given_up)]
    pairs = zip(known.ids.tolist(), known.waiting_since_us.tolist(), strict=True)
    waiting = [(origin, since) for origin, since in pairs if since != BEGINNING_US]
    present = set(known.ids.tolist())
    after = BufferState(save(known), waiting, [gap for gap in given_up if gap[0] in present])
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


def distinct_buffers(given: Buffers) -> tuple[Buffers, Numbers]:
    """Each buffer once, with the largest watermark of its rows; and for each row the index of its buffer."""
    if not len(given):
        return given, np.zeros(0, np.int64)
    keys = (given.chunks, given.sequences, given.origins, given.unusable)
    order = np.lexsort(keys)
    new = np.zeros(len(order), bool)
    new[0] = True
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    heads, owner = np.flatnonzero(new), np.empty(len(order), np.int64)
    owner[order] = np.cumsum(new) - 1
    first = order[heads]
    return Buffers(
        given.origins[first],
        given.sequences[first],
        given.chunks[first],
        np.logical_or.reduceat(given.last[order], heads),
        np.maximum.reduceat(given.watermarks_us[order], heads),
        given.behind[first],
        np.logical_and.reduceat(given.watermark_refused[order], heads),
        given.unusable[first],
    ), owner


_COLUMNS = ("origins", "sequences", "chunks", "last", "watermarks_us", "behind", "watermark_refused", "unusable")
_FLAGS = ("last", "watermark_refused", "unusable")


def pack(given: Buffers) -> bytes:
    """As bytes, for claims: int64, column by column."""
    return np.stack([getattr(given, name).astype(np.int64) for name in _COLUMNS]).tobytes()


def unpack(packed: Iterable[bytes]) -> Buffers:
    """The buffers of all pieces, from their bytes."""
    tables = [np.frombuffer(piece, np.int64).reshape(len(_COLUMNS), -1) for piece in packed]
    whole = np.concatenate([np.zeros((len(_COLUMNS), 0), np.int64), *tables], axis=1)
    columns = dict(zip(_COLUMNS, whole, strict=True))
    return Buffers(**{name: column.astype(bool) if name in _FLAGS else column for name, column in columns.items()})


def _within(given: Buffers, ranges: list[tuple[int, int, int]]) -> Flags:
    """Which buffers lie in one of these ranges of an origin's sequence numbers."""
    inside = np.zeros(len(given), bool)
    for origin, first, last in ranges:
        inside |= (given.origins == origin) & (given.sequences >= first) & (given.sequences <= last)
    return inside & ~given.unusable


def _rows_by_origin(given: Buffers) -> dict[str, SourceReport]:
    ids, counts = np.unique(given.origins[~given.unusable], return_counts=True)
    return {str(origin): SourceReport(rows=rows) for origin, rows in zip(ids.tolist(), counts.tolist(), strict=True)}
