"""From chunks to complete sequence numbers, and from those to the longest prefix. Pure and vectorised.

A unit is all chunks of one sequence number; with ``behind`` k it covers the numbers ``sequence - k`` to ``sequence``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.arrays import Flags, Numbers, Times

_MORE_THAN_ANY = np.iinfo(np.int64).max


@dataclass(frozen=True)
class BufferRows:
    """Buffers by owner (index of an origin); parallel columns of shape ``(rows,)``."""

    owners: Numbers
    sequences: Numbers
    chunks: Numbers
    last: Flags
    watermarks_us: Times
    behind: Numbers

    def __len__(self) -> int:
        return len(self.owners)

    def of(self, rows: Flags | Numbers) -> BufferRows:
        """The rows of a mask, or of these indices."""
        return BufferRows(*(column[rows] for column in self._columns))

    def then(self, other: BufferRows) -> BufferRows:
        """The rows of both, in this order."""
        if not len(self):
            return other
        return BufferRows(*map(np.concatenate, zip(self._columns, other._columns, strict=True)))

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self.owners, self.sequences, self.chunks, self.last, self.watermarks_us, self.behind


def no_numbers() -> Numbers:
    """A column of int64 without rows."""
    return np.zeros(0, np.int64)


def no_rows() -> BufferRows:
    """The rows of buffers that hold none."""
    nothing = no_numbers()
    return BufferRows(nothing, nothing, nothing, np.zeros(0, bool), nothing, nothing)


@dataclass(frozen=True)
class Units:
    """Units by owner, then sequence number; parallel columns.

    ``first`` is the smallest sequence number of each. ``rows`` are the buffers that count, by owner, sequence and
    chunk. ``repeated`` (duplicate chunks) and ``rejected`` (chunks above the last one) are indices of the others. A
    unit is ``whole`` when all chunks up to its last have arrived; of two last chunks the lower counts.
    """

    owners: Numbers
    sequences: Numbers
    first: Numbers
    watermarks_us: Times
    whole: Flags
    rows: BufferRows
    repeated: Numbers
    rejected: Numbers


@dataclass(frozen=True)
class Absorbed:
    """Owners whose prefix has grown, with the new prefix and watermark; ``backward`` counts units that step back."""

    owners: Numbers
    prefixes: Numbers
    watermarks_us: Times
    backward: int


def units_of(rows: BufferRows) -> Units:
    """Group buffers, in the order of arrival, into units."""
    single = bool(rows.last.all()) and not bool(rows.chunks.any())
    order = _order(rows, by_chunk=not single)
    rows = rows if order is None else rows.of(order)
    places = np.arange(len(rows)) if order is None else order
    new_unit = _changes(rows.owners, rows.sequences)
    if single and bool(new_unit.all()):
        first = rows.sequences - rows.behind
        whole = np.ones(len(rows), bool)
        return Units(rows.owners, rows.sequences, first, rows.watermarks_us, whole, rows, no_numbers(), no_numbers())
    new_row = new_unit | _changes(rows.chunks)
    repeated = places[~new_row]
    if len(repeated):
        rows, places, new_unit = _once(rows, np.flatnonzero(new_row)), places[new_row], new_unit[new_row]
    starts = np.flatnonzero(new_unit)
    unit = np.cumsum(new_unit) - 1
    last_chunks = np.minimum.reduceat(np.where(rows.last, rows.chunks, _MORE_THAN_ANY), starts)
    counts = rows.chunks <= last_chunks[unit]
    seen = np.add.reduceat(counts.astype(np.int64), starts)
    return Units(
        owners=rows.owners[starts],
        sequences=rows.sequences[starts],
        first=np.maximum.reduceat(rows.sequences - rows.behind, starts),
        watermarks_us=np.maximum.reduceat(np.where(counts, rows.watermarks_us, BEGINNING_US), starts),
        whole=(last_chunks != _MORE_THAN_ANY) & (seen == last_chunks + 1),
        rows=rows if bool(counts.all()) else rows.of(counts),
        repeated=repeated,
        rejected=places[~counts],
    )


def _once(rows: BufferRows, heads: Numbers) -> BufferRows:
    """Sorted buffers without duplicates. Where duplicates differ, the result does not depend on their order."""
    return BufferRows(
        rows.owners[heads],
        rows.sequences[heads],
        rows.chunks[heads],
        np.logical_or.reduceat(rows.last, heads),
        np.maximum.reduceat(rows.watermarks_us, heads),
        np.minimum.reduceat(rows.behind, heads),
    )


def absorbed_of(units: Units, prefixes: Numbers, watermarks_us: Times) -> Absorbed:
    """Extend each owner's prefix by whole units. ``prefixes`` and ``watermarks_us`` are those so far, by owner."""
    owners, sequences, first, marks = units.owners, units.sequences, units.first, units.watermarks_us
    if not bool(units.whole.all()):
        owners, sequences, first, marks = (c[units.whole] for c in (owners, sequences, first, marks))
    if not len(owners):
        return Absorbed(no_numbers(), no_numbers(), no_numbers(), 0)
    heads = np.flatnonzero(_changes(owners))
    reached = np.append(0, sequences[:-1])
    reached[heads] = prefixes[owners[heads]]
    if np.any(first < sequences):
        first = _earliest_from(first, heads)
    gap = first > reached + 1
    if gap.any():
        gaps = np.cumsum(gap)
        before: Numbers = gaps[heads] - gap[heads]
        joined = gaps == np.repeat(before, np.diff(np.append(heads, len(owners))))
        owners, sequences, marks = owners[joined], sequences[joined], marks[joined]
        heads = np.flatnonzero(_changes(owners))
    if not len(owners):
        return Absorbed(no_numbers(), no_numbers(), no_numbers(), 0)
    grown, ends = owners[heads], np.append(heads[1:], len(owners)) - 1
    before_us = watermarks_us[grown]
    largest = np.maximum(np.maximum.reduceat(marks, heads), before_us)
    return Absorbed(grown, sequences[ends], largest, _steps_back(marks, heads, before_us))


def _order(rows: BufferRows, by_chunk: bool) -> Numbers | None:
    """The stable order by owner, sequence and chunk; None if the rows are in that order."""
    keys = [rows.sequences]
    if by_chunk:
        keys.insert(0, rows.chunks)
    if rows.owners.any():
        keys.append(rows.owners)
    if len(keys) == 1:
        if bool(np.all(keys[0][1:] >= keys[0][:-1])):
            return None
        order: Numbers = np.argsort(keys[0], kind="stable")
        return order
    return np.lexsort(keys)


def _changes(*columns: Numbers) -> Flags:
    """Whether each row differs from the one before in any column; the first one does."""
    changed = np.zeros(len(columns[0]), bool)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed


def _earliest_from(first: Numbers, heads: Numbers) -> Numbers:
    """The smallest ``first`` of each unit and the later ones of its owner: a later unit may contain it."""
    earliest = np.empty_like(first)
    for head, end in zip(heads.tolist(), [*heads[1:].tolist(), len(first)], strict=True):
        earliest[head:end] = np.minimum.accumulate(first[head:end][::-1])[::-1]
    return earliest


def _steps_back(marks: Times, heads: Numbers, before_us: Times) -> int:
    """The number of units whose watermark is below an earlier one of their owner; units without one do not count."""
    previous = np.append(BEGINNING_US, marks[:-1])
    previous[heads] = before_us
    if not np.any(marks < previous):
        return 0
    steps = 0
    ends = [*heads[1:].tolist(), len(marks)]
    for head, end, before in zip(heads.tolist(), ends, before_us.tolist(), strict=True):
        reached = np.maximum(np.maximum.accumulate(marks[head:end]), before)
        known = marks[head:end] != BEGINNING_US
        steps += int(np.count_nonzero(known & (marks[head:end] < reached)))
    return steps
