"""Buffers whose rows arrive in several batches, because the input was cut there: each waits until it is whole.
Pure and vectorised.

Its rows are processed as they come. Only the buffer waits: until all its rows are there it does not count, nor does
its watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.origins import UNKNOWN, Buffers, CutRow
from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.errors import UsageError


@dataclass(frozen=True)
class ArrivedBuffers:
    """Buffers with the number of their ``rows`` that have arrived, and how many are ``needed``: 0 where the buffer is
    whole whatever came, `UNKNOWN` where only a later row says so. Parallel to the columns of ``buffers``.
    """

    buffers: Buffers
    rows: Numbers
    needed: Numbers

    @property
    def whole(self) -> Flags:
        """Which of them have all their rows."""
        found: Flags = (self.needed != UNKNOWN) & (self.rows >= self.needed)
        return found

    def merged(self) -> ArrivedBuffers:
        """Each buffer once: rows added up, the largest watermark."""
        distinct, owner = distinct_buffers(self.buffers)
        rows, needed = np.zeros(len(distinct), np.int64), np.full(len(distinct), UNKNOWN, np.int64)
        np.add.at(rows, owner, self.rows)
        np.maximum.at(needed, owner, self.needed)
        return ArrivedBuffers(distinct, rows, needed)

    def packed(self) -> bytes:
        """As bytes, for claims: int64, column by column."""
        columns = [*(getattr(self.buffers, name) for name in _COLUMNS), self.rows, self.needed]
        return np.stack([column.astype(np.int64) for column in columns]).tobytes()

    @classmethod
    def unpacked(cls, packed: Iterable[bytes]) -> ArrivedBuffers:
        """The buffers of all pieces, from their bytes."""
        width = len(_COLUMNS) + 2
        tables = [np.frombuffer(piece, np.int64).reshape(width, -1) for piece in packed]
        *columns, rows, needed = np.concatenate([np.zeros((width, 0), np.int64), *tables], axis=1)
        named = zip(_COLUMNS, columns, strict=True)
        made = Buffers(**{name: one.astype(bool) if name in _FLAGS else one for name, one in named})
        return cls(made, rows, needed)

    def then(self, stored: Sequence[CutRow]) -> ArrivedBuffers:
        """These and what arrived of the ``stored`` ones before."""
        if not stored:
            return self
        origins, sequences, chunks, last, marks, rows, needed = np.array(stored, np.int64).T
        no = np.zeros(len(stored), bool)
        before = Buffers(
            origins, sequences, chunks, last.astype(bool), marks, np.zeros(len(stored), np.int64), no, no
        )
        return ArrivedBuffers(
            Buffers(*(np.concatenate([getattr(before, n), getattr(self.buffers, n)]) for n in _COLUMNS)),
            np.concatenate([rows, self.rows]),
            np.concatenate([needed, self.needed]),
        )

    def cut(self, mask: Flags) -> list[CutRow]:
        """The buffers of a mask as they are stored."""
        columns = [*(getattr(self.buffers, name) for name in _STORED), self.rows, self.needed]
        return list(zip(*(column[mask].astype(np.int64).tolist() for column in columns), strict=True))


_COLUMNS = ("origins", "sequences", "chunks", "last", "watermarks_us", "behind", "watermark_refused", "unusable")
_FLAGS = ("last", "watermark_refused", "unusable")
_STORED = ("origins", "sequences", "chunks", "last", "watermarks_us")
"""With which a `CutRow` begins."""


def buffers_of(found: Buffers, mask: Flags) -> Buffers:
    """The buffers of a mask."""
    return Buffers(*(getattr(found, name)[mask] for name in _COLUMNS))


def arrived_buffers(distinct: Buffers, owner: Numbers, whole: pa.ChunkedArray | None, empty: Flags) -> ArrivedBuffers:
    """The ``distinct`` buffers of rows; ``owner`` has for each row the index of its buffer. ``whole``: the number of
    rows of its buffer, or a flag on the last row; None if all rows of a buffer arrive in one batch. ``empty``: rows
    that are none, and announce their buffer.
    """
    rows = np.bincount(owner[~empty], minlength=len(distinct)).astype(np.int64)
    if whole is None:
        return ArrivedBuffers(distinct, rows, np.zeros(len(distinct), np.int64))
    needed = np.full(len(distinct), UNKNOWN, np.int64)
    np.maximum.at(needed, owner, _needed(whole))
    return ArrivedBuffers(distinct, rows, needed)


def _needed(whole: pa.ChunkedArray) -> Numbers:
    if pa.types.is_boolean(whole.type):
        last = np.asarray(pc.fill_null(whole, False)).astype(bool)
        return np.where(last, 0, UNKNOWN)
    if not pa.types.is_integer(whole.type):
        raise UsageError(
            "whole= must be a column with the number of rows of a buffer, or a boolean column that marks its last "
            "row",
            code="progress-column",
            found=whole.type,
        )
    # Without a number the buffer is taken for whole: nothing else would ever complete it.
    found: Numbers = np.maximum(np.asarray(pc.fill_null(whole.cast(pa.int64()), 0)), 0)
    return found


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
