"""From chunks to whole sequence numbers, and from those to the longest prefix. Pure and vectorised.

A unit is what one sequence number stands for: with ``behind`` k the numbers ``sequence - k`` to ``sequence``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.statestore.arrays import Flags, Numbers, Times

_MORE_THAN_ANY = np.iinfo(np.int64).max


@dataclass(frozen=True)
class BufferRows:
    """Buffers of owners (indices of origins); parallel columns of shape ``(rows,)``."""

    owners: Numbers
    sequences: Numbers
    chunks: Numbers
    last: Flags
    watermarks_us: Times
    behind: Numbers

    def __len__(self) -> int:
        return len(self.owners)

    def of(self, rows: Flags | Numbers) -> BufferRows:
        """Some of them."""
        return BufferRows(
            self.owners[rows],
            self.sequences[rows],
            self.chunks[rows],
            self.last[rows],
            self.watermarks_us[rows],
            self.behind[rows],
        )

    def then(self, other: BufferRows) -> BufferRows:
        """These, then those."""
        if not len(self):
            return other
        return BufferRows(
            np.concatenate([self.owners, other.owners]),
            np.concatenate([self.sequences, other.sequences]),
            np.concatenate([self.chunks, other.chunks]),
            np.concatenate([self.last, other.last]),
            np.concatenate([self.watermarks_us, other.watermarks_us]),
            np.concatenate([self.behind, other.behind]),
        )


def no_numbers() -> Numbers:
    """An empty column."""
    return np.zeros(0, np.int64)


def no_rows() -> BufferRows:
    """No buffers."""
    nothing = no_numbers()
    return BufferRows(nothing, nothing, nothing, np.zeros(0, bool), nothing, nothing)


@dataclass(frozen=True)
class Units:
    """Units in the order of owner, then sequence number; parallel columns.

    ``rows`` are the buffers that count, sorted by owner, sequence and chunk. ``repeated`` and ``rejected`` are
    indices of those that do not: a chunk that was there, a chunk above the last. A unit is ``whole`` when all chunks
    up to its last are there; of two last chunks the lower counts.
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
    """Owners whose prefix has grown, with the new prefix and watermark; ``backward``: units that stepped back."""

    owners: Numbers
    prefixes: Numbers
    watermarks_us: Times
    backward: int


def units_of(rows: BufferRows) -> Units:
    """Group buffers, given in the order of their arrival, into units."""
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
    """Sorted buffers, each once. Equals should be equal altogether; where not, which came first must not matter."""
    return BufferRows(
        rows.owners[heads],
        rows.sequences[heads],
        rows.chunks[heads],
        np.logical_or.reduceat(rows.last, heads),
        np.maximum.reduceat(rows.watermarks_us, heads),
        np.minimum.reduceat(rows.behind, heads),
    )


def absorbed_of(units: Units, prefixes: Numbers, watermarks_us: Times) -> Absorbed:
    """How far whole units carry each owner's prefix. ``prefixes`` and ``watermarks_us``: those so far, by owner."""
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
    """Rows by owner, sequence and chunk, equal ones as they were; None when they are so already."""
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
    """Where a row differs from the one before in any column; the first one does."""
    changed = np.zeros(len(columns[0]), bool)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed


def _earliest_from(first: Numbers, heads: Numbers) -> Numbers:
    """The smallest ``first`` of a unit and those after it of its owner: a unit may lie within a later, wider one."""
    found = np.empty_like(first)
    for head, end in zip(heads.tolist(), [*heads[1:].tolist(), len(first)], strict=True):
        found[head:end] = np.minimum.accumulate(first[head:end][::-1])[::-1]
    return found


def _steps_back(marks: Times, heads: Numbers, before_us: Times) -> int:
    """Units whose watermark is below one before it of their owner; those without one do not step."""
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
