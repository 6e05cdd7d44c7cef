"""Watermarks from the buffers that rows came in: each origin's is that of its longest whole prefix. Pure, vectorised.

Pieces of input say which buffers they have; `tidestate.operators.progress.origins` puts them together.
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
"""Why a row is refused: its buffer came after the gap that it belongs to was given up."""
DUPLICATE = "duplicate_buffer"
"""Why a row is refused: its buffer was there in an earlier batch."""


class BufferState(msgspec.Struct, frozen=True):
    """Plain data for a manifest. ``waiting``: origins that wait for a gap, and since which processing time (not
    across a restart). ``given_up``: origin, first and last sequence number of gaps no longer waited for.
    """

    origins: OriginsState
    waiting: list[tuple[int, int]] = []
    given_up: list[tuple[int, int, int]] = []

    def known(self) -> Origins:
        """As `tidestate.operators.progress.origins` takes them."""
        found = restore(self.origins)
        since = dict(self.waiting)
        waited = [since.get(origin, BEGINNING_US) for origin in found.ids.tolist()]
        return replace(found, waiting_since_us=np.array(waited, np.int64))

    def gaps(self, now_us: int) -> list[Gap]:
        """What is waited for at processing time ``now_us``."""
        return wait(self.known(), now_us)[1]


@dataclass(frozen=True)
class Sorted:
    """Rows by what becomes of their buffers: ``events`` go on, ``refused`` do not, for these ``reasons``.

    ``arrived`` are the distinct buffers, packed; ``rows`` how many rows each origin gave; ``ends`` the last sequence
    number of origins that say so.
    """

    events: pa.Table
    refused: pa.Table
    reasons: pa.Array
    arrived: bytes
    rows: dict[str, SourceReport]
    ends: dict[str, int]


def begin_buffers(names: Iterable[str]) -> BufferState:
    """With these origins declared."""
    return BufferState(save(origins(int(name) for name in names)))


def sort_rows(settings: BufferProgress, events: pa.Table, state: BufferState) -> Sorted:
    """Leave out rows of buffers that were there before this batch, and say which buffers these are."""
    all_rows = buffers(
        events[settings.origin],
        events[settings.sequence],
        0 if settings.chunk is None else events[settings.chunk],
        True if settings.last is None else events[settings.last],
        events[settings.watermark],
    )
    distinct, owner = once(all_rows)
    late = _within(distinct, state.given_up)
    seen = (advance_origins(state.known(), distinct).reasons == SEEN) & ~late
    out, refused = seen[owner], late[owner]
    return Sorted(
        events.filter(pa.array(~(out | refused))),
        events.filter(pa.array(out | refused)),
        pa.array(np.where(out, DUPLICATE, GIVEN_UP)[out | refused], pa.string()),
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
    """After the buffers of all pieces of a batch and the ends they tell of, at processing time ``now_us``; and
    what each origin claims, those that have ended too, if they were there before this batch or not.
    """
    known = advance_origins(state.known(), once(unpack(arrived))[0]).origins
    known = _ended(known, ends)
    known, gaps = wait(known, now_us, settings.patience_us)
    given_up = [*state.given_up, *((gap.origin, gap.first, gap.last) for gap in gaps if gap.given_up)]
    pairs = zip(known.ids.tolist(), known.waiting_since_us.tolist(), strict=True)
    waiting = [(origin, since) for origin, since in pairs if since != BEGINNING_US]
    there = set(known.ids.tolist())
    after = BufferState(save(known), waiting, [gap for gap in given_up if gap[0] in there])
    return after, _reports(after, known.left)


def _ends(given: Buffers, flags: pa.ChunkedArray) -> dict[str, int]:
    """The last sequence number of origins that have one."""
    where = np.asarray(pc.fill_null(flags, False)).astype(bool) & ~given.unusable
    found: dict[str, int] = {}
    for origin, sequence in sorted(
        set(zip(given.origins[where].tolist(), given.sequences[where].tolist(), strict=True))
    ):
        found[str(origin)] = sequence
    return found


def _ended(known: Origins, ends: Iterable[Mapping[str, int]]) -> Origins:
    """With the ends that can be: not before what has been seen."""
    told: dict[int, int] = {}
    for one in ends:
        for origin, last in one.items():
            told[int(origin)] = max(last, told.get(int(origin), 0))
    there = set(known.ids.tolist())
    can = {origin: last for origin, last in told.items() if origin in there and known.prefix_of(origin) <= last}
    return end(known, can)


def _reports(state: BufferState, left: Mapping[int, int]) -> dict[str, SourceReport]:
    gone = {str(origin): SourceReport(watermark, generated=True, ended=True) for origin, watermark in left.items()}
    return gone | {
        str(origin): SourceReport(watermark, generated=True) for origin, _, watermark, _ in state.origins.origins
    }


def once(given: Buffers) -> tuple[Buffers, Numbers]:
    """Each buffer once, with the largest watermark of its rows; and of which of them each row is."""
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
    """As bytes, to travel: int64, column by column."""
    return np.stack([getattr(given, name).astype(np.int64) for name in _COLUMNS]).tobytes()


def unpack(packed: Iterable[bytes]) -> Buffers:
    """The buffers of all pieces."""
    tables = [np.frombuffer(piece, np.int64).reshape(len(_COLUMNS), -1) for piece in packed]
    whole = np.concatenate([np.zeros((len(_COLUMNS), 0), np.int64), *tables], axis=1)
    columns = dict(zip(_COLUMNS, whole, strict=True))
    return Buffers(**{name: found.astype(bool) if name in _FLAGS else found for name, found in columns.items()})


def _within(given: Buffers, ranges: list[tuple[int, int, int]]) -> Flags:
    """Which buffers are of one of these ranges of sequence numbers."""
    found = np.zeros(len(given), bool)
    for origin, first, last in ranges:
        found |= (given.origins == origin) & (given.sequences >= first) & (given.sequences <= last)
    return found & ~given.unusable


def _rows_by_origin(given: Buffers) -> dict[str, SourceReport]:
    ids, counts = np.unique(given.origins[~given.unusable], return_counts=True)
    return {str(origin): SourceReport(rows=rows) for origin, rows in zip(ids.tolist(), counts.tolist(), strict=True)}
