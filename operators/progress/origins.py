"""Progress of origins whose buffers arrive in any order: the longest complete prefix of each. Pure, vectorised.

A buffer has an origin, a sequence number (from 1, without gaps), a chunk number (from 0), a flag on the last chunk,
and a watermark. A sequence number is complete when all chunks up to the last have arrived; its watermark is their
largest. The watermark of an origin is the largest in its longest complete prefix, the overall one W the smallest over
origins. The result does not depend on the order of arrival. The state of an origin is its prefix and the buffers
after the first gap. After NebulaStream, "Watermarking and Progress".

A unit is all chunks of one sequence number; with ``behind`` k it covers the numbers ``sequence - k`` to ``sequence``.
Chunks become units, and those the longest prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.figures import Gap
from tidestate.operators.progress.watermarks import BEGINNING_US, instants, is_watermark
from tidestate.recovery.log.ranges import merged_ranges
from tidestate.statestore.arrays import Flags, Numbers, Reasons, Times
from tidestate.statestore.errors import UsageError, invariant

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
    if len(keys) == 1 and bool(np.all(keys[0][1:] >= keys[0][:-1])):
        return None
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


@dataclass(frozen=True)
class Buffers:
    """Buffers in the order of arrival; all columns of shape ``(buffers,)``, int64 but for the flags.

    Chunks count from 0. A buffer with ``behind`` k covers the sequence numbers ``sequence - k`` to ``sequence``.
    ``watermark_refused``: its watermark is not valid, so it moves progress without one. ``unusable``: the origin,
    sequence or chunk number is null or not a whole number.
    """

    origins: Numbers
    sequences: Numbers
    chunks: Numbers
    last: Flags
    watermarks_us: Times
    behind: Numbers
    watermark_refused: Flags
    unusable: Flags

    def __len__(self) -> int:
        return len(self.origins)


def buffers(
    origins: Any, sequences: Any, chunks: Any = 0, last: Any = True, watermarks: Any = None, behind: Any = 0
) -> Buffers:
    """Buffers from Arrow or numpy columns of equal length; a single number applies to all rows.

    Watermarks are timestamps, or microseconds as integers or floats; those that are null, NaN or outside of the years
    1 to 9999 (except the ends of time) are refused row by row. Raises `UsageError` for other types or lengths.
    """
    ids, no_id = _numbers(origins, "origins", None)
    rows = len(ids)
    numbers, no_number = _numbers(sequences, "sequences", rows)
    parts, no_part = _numbers(chunks, "chunks", rows)
    ranges, no_range = _numbers(behind, "behind", rows)
    marks, no_mark = (
        (np.full(rows, BEGINNING_US, np.int64), np.ones(rows, bool))
        if watermarks is None
        else instants(_sized(watermarks, "watermarks", rows), "watermarks")
    )
    refused = no_mark | ~is_watermark(marks)
    if refused.any():
        marks = np.where(refused, BEGINNING_US, marks)
    unusable = no_id | no_number | no_part | no_range
    return Buffers(ids, numbers, parts, _flags(last, rows), marks, ranges, refused, unusable)


def _sized(column: Any, name: str, rows: int | None) -> Any:
    """``column`` as an array of ``rows`` values; a single number is repeated."""
    if isinstance(column, int | float) and rows is not None:
        return np.full(rows, column)
    array = column if isinstance(column, pa.ChunkedArray | pa.Array | np.ndarray) else pa.array(column)
    if rows is not None and len(array) != rows:
        raise UsageError(
            "the columns of buffers must have the same length",
            code="progress-column",
            column=name,
            expected=rows,
            found=len(array),
        )
    return array


def _numbers(column: Any, name: str, rows: int | None) -> tuple[Numbers, Flags]:
    column = _sized(column, name, rows)
    if isinstance(column, np.ndarray) and column.dtype == np.int64:
        return column, np.zeros(len(column), bool)
    return instants(column, name)


def _flags(column: Any, rows: int) -> Flags:
    if isinstance(column, bool):
        return np.full(rows, column)
    column = _sized(column, "last", rows)
    array = column if isinstance(column, pa.ChunkedArray | pa.Array) else pa.array(column)
    if not pa.types.is_boolean(array.type):
        raise UsageError(
            "the column that marks the last chunk must be boolean",
            code="progress-column",
            column="last",
            found=array.type,
        )
    return np.asarray(pc.fill_null(array, False)).astype(bool, copy=False)


CutRow = tuple[int, int, int, int, int, int, int]
"""Of a buffer that is not whole: origin, sequence and chunk number, whether it is the last chunk, watermark, rows so
far, rows that it has (`UNKNOWN` where a flag says so).
"""
UNKNOWN = -1
"""How many rows a buffer has whose last row has not arrived."""


class OriginCounters(msgspec.Struct, frozen=True):
    """Buffers over the life of a job, by reason. ``gave_up`` counts sequence numbers of gaps that were given up."""

    counted: int = 0
    seen_before: int = 0
    bad_sequence: int = 0
    bad_chunk: int = 0
    chunk_after_last: int = 0
    two_last_chunks: int = 0
    sequence_after_end: int = 0
    watermark_refused: int = 0
    backward: int = 0
    gave_up: int = 0


class OriginsState(msgspec.Struct, frozen=True):
    """Plain data for the manifest: id, prefix, watermark and last sequence number (or `OPEN`) of each origin, by id;
    and the ``pending`` buffers as columns.

    Of origins that have ended: how many, their largest watermark, and their ids as ranges (see `ENDED_RANGES`).
    """

    origins: list[tuple[int, int, int, int]]
    pending: dict[str, list[int]]
    watermark_us: int = BEGINNING_US
    ended: int = 0
    counters: OriginCounters = OriginCounters()
    ended_us: int = BEGINNING_US
    ended_ids: list[tuple[int, int]] = []


class BufferState(msgspec.Struct, frozen=True):
    """Plain data for the manifest. ``waiting``: origins that wait for a gap, and since which processing time (not
    kept across a restart). ``given_up``: origin, first and last sequence number of the gaps that were given up.
    ``cut``: buffers of which rows are still to come. ``ids``: the origin of each source by name, where the engine
    gives them.
    """

    origins: OriginsState
    waiting: list[tuple[int, int]] = []
    given_up: list[tuple[int, int, int]] = []
    cut: list[CutRow] = []
    ids: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


OPEN = -1
"""The last sequence number of an origin that has not declared one."""
ORIGIN_REASONS = (
    "",
    "seen_before",
    "bad_sequence",
    "bad_chunk",
    "chunk_after_last",
    "two_last_chunks",
    "sequence_after_end",
)
"""Why a buffer does not count; the first means that it does. `seen_before`: a duplicate, or within the prefix."""
SEEN, BAD_SEQUENCE, BAD_CHUNK, AFTER_LAST, TWO_LAST, AFTER_END = range(1, len(ORIGIN_REASONS))
ChunkRanges = tuple[tuple[int, int], ...]
ENDED_RANGES = 1_000
"""This many ranges of ids of ended origins are kept, the highest ones; consecutive ids make one range."""


@dataclass(frozen=True)
class Origins:
    """All origins so far; columns of shape ``(origins,)``, sorted by ``ids``, and W.

    ``watermark_us`` is `BEGINNING_US` until all declared origins have a watermark; once all have ended it is their
    largest, ``ended_us``. ``ended_ids`` are ranges of ids whose buffers no longer count; ``left`` has the watermarks
    of origins that ended since they were restored. ``waiting_since_us`` is the processing time since which an origin
    has waited for a gap, `BEGINNING_US` if it does not.
    """

    ids: Numbers
    prefixes: Numbers
    watermarks_us: Times
    finals: Numbers
    waiting_since_us: Times
    pending: BufferRows = field(default_factory=no_rows)
    watermark_us: int = BEGINNING_US
    ended: int = 0
    counters: OriginCounters = field(default_factory=OriginCounters)
    ended_us: int = BEGINNING_US
    ended_ids: ChunkRanges = ()
    left: Mapping[int, int] = field(default_factory=dict)

    def have_ended(self, ids: Numbers) -> Flags:
        """Which of these origins have ended."""
        if not self.ended_ids:
            return np.zeros(len(ids), bool)
        first, last = np.array(self.ended_ids, np.int64).T
        at = np.searchsorted(first, ids, "right") - 1
        ended: Flags = (at >= 0) & (ids <= last[at])
        return ended

    def prefix_of(self, origin: int) -> int:
        """The longest complete prefix of an origin; 0 for an unknown one."""
        return int(self.prefixes[self.ids == origin].sum())


@dataclass(frozen=True)
class OriginsStep:
    """The origins after a batch, and the reason of each buffer (int8, indices of `ORIGIN_REASONS`)."""

    origins: Origins
    reasons: Reasons


def origins(declared: Iterable[int] = ()) -> Origins:
    """Declared origins, which hold W from the start; any other joins at W with its first buffer."""
    ids = np.array(sorted(set(declared)), np.int64)
    zeros = np.zeros(len(ids), np.int64)
    none = np.full(len(ids), BEGINNING_US, np.int64)
    return Origins(ids, zeros, none, np.full(len(ids), OPEN, np.int64), none)


def assigned(names: Iterable[str], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """An origin id for each source or stateful operator, from 1; those in ``known`` keep theirs."""
    ids = dict(known or {})
    for name in names:
        ids.setdefault(name, max(ids.values(), default=0) + 1)
    return ids


def save(known: Origins) -> OriginsState:
    """As plain data. How long an origin has waited is not kept: only time while the job runs counts."""
    rows = zip(*(c.tolist() for c in (known.ids, known.prefixes, known.watermarks_us, known.finals)), strict=True)
    held = known.pending
    pending = {
        "origin": known.ids[held.owners].tolist(),
        "sequence": held.sequences.tolist(),
        "chunk": held.chunks.tolist(),
        "last": held.last.astype(np.int64).tolist(),
        "watermark_us": held.watermarks_us.tolist(),
        "behind": held.behind.tolist(),
    }
    totals = known.watermark_us, known.ended, known.counters, known.ended_us, list(known.ended_ids)
    return OriginsState(list(rows), pending if len(held) else {}, *totals)


def restore(saved: OriginsState) -> Origins:
    """The origins of a checkpoint."""
    ids, prefixes, marks, finals = np.array(saved.origins, np.int64).reshape(len(saved.origins), 4).T
    held = {name: np.array(column, np.int64) for name, column in saved.pending.items()}
    pending = no_rows()
    if held:
        owners = np.searchsorted(ids, held["origin"])
        last = held["last"].astype(bool)
        pending = BufferRows(owners, held["sequence"], held["chunk"], last, held["watermark_us"], held["behind"])
    none = np.full(len(ids), BEGINNING_US, np.int64)
    totals = saved.watermark_us, saved.ended, saved.counters, saved.ended_us, tuple(saved.ended_ids)
    return Origins(ids, prefixes, marks, finals, none, pending, *totals)


def restore_waiting(saved: BufferState) -> Origins:
    """The origins of saved buffers, with since when they wait for a gap."""
    restored, since = restore(saved.origins), dict(saved.waiting)
    waiting = [since.get(origin, BEGINNING_US) for origin in restored.ids.tolist()]
    return replace(restored, waiting_since_us=np.array(waiting, np.int64))


def gaps_waited_for(saved: BufferState, now_us: int, side: str = "") -> list[Gap]:
    """The gaps that origins wait for at processing time ``now_us``; of one ``side``, where each has its own."""
    return [replace(gap, side=side) for gap in wait(restore_waiting(saved), now_us)[1]]


def origin_sources(saved: OriginsState, side: str) -> set[str]:
    """The origins as sources. Those of a ``side`` are named ``side/origin``; the side stands for them until the first
    is there.
    """
    if not side:
        return {str(origin) for origin, *_ in saved.origins}
    if not saved.origins and not saved.ended:
        return {side}
    return {f"{side}/{origin}" for origin, *_ in saved.origins}


def declare_origins(saved: OriginsState, new: OriginsState) -> OriginsState:
    """``saved`` with the origins of ``new`` that are unknown and have not ended: from now on they hold W."""
    ids, ended = {origin for origin, *_ in saved.origins}, restore(saved)
    rows = [row for row in new.origins if row[0] not in ids and not ended.have_ended(np.array([row[0]]))[0]]
    return msgspec.structs.replace(saved, origins=sorted([*saved.origins, *rows]))


def register_sources(names: Iterable[str], saved: BufferState | None = None) -> BufferState:
    """The state in which these sources, and no others, are origins: those of ``saved`` go on, the others get the next
    ids in this order, and no buffer of them has arrived. A source that is no origin any more keeps its id.
    """
    present = list(names)
    ids = assigned(present, saved.ids if saved is not None and saved.ids else None)
    fresh = save(origins(ids[name] for name in present))
    if saved is None:
        return BufferState(fresh, ids=ids)
    kept = {row[0]: row for row in saved.origins.origins}
    rows = [kept.get(row[0], row) for row in fresh.origins]
    return BufferState(msgspec.structs.replace(saved.origins, origins=rows), ids=ids)


def advance_origins(known: Origins, arrived: Buffers) -> OriginsStep:
    """The origins after these buffers. Bad buffers never raise: each has a reason.

    Costs a sort of the batch and of the pending buffers.
    """
    known = with_new_origins(known, arrived)
    owners = _places(known.ids, arrived.origins)
    reasons = _reasons(known, arrived, owners)
    fresh = np.flatnonzero(reasons == 0)
    new = BufferRows(owners, arrived.sequences, arrived.chunks, arrived.last, arrived.watermarks_us, arrived.behind)
    rows = known.pending.then(new if len(fresh) == len(new) else new.of(fresh))
    units = units_of(rows)
    old = len(known.pending)
    late = units.rejected[units.rejected >= old]
    reasons[fresh[late - old]] = np.where(rows.last[late], TWO_LAST, AFTER_LAST)
    again = units.repeated[units.repeated >= old]
    reasons[fresh[again - old]] = SEEN
    after = _absorb(known, units)
    withdrawn = units.rejected[units.rejected < old]
    counts = np.bincount(reasons, minlength=len(ORIGIN_REASONS))
    # A chunk counted until a lower last chunk arrived: now it has another reason.
    counts += np.bincount(np.where(rows.last[withdrawn], TWO_LAST, AFTER_LAST), minlength=len(ORIGIN_REASONS))
    counts[0] -= len(withdrawn)
    counters = _add(after.counters, counts.tolist(), refused=int(np.count_nonzero(arrived.watermark_refused)))
    return OriginsStep(replace(after, counters=counters), reasons)


def end(known: Origins, last_sequences: Mapping[int, int]) -> Origins:
    """Declare the last sequence number of origins (0: it had none). Each leaves once it is complete up to there.

    Raises `UsageError` for an origin that is unknown or has a longer prefix; nothing has changed then.
    """
    finals = known.finals.copy()
    for origin, last in last_sequences.items():
        place = np.flatnonzero(known.ids == origin)
        if not len(place) or last < 0 or known.prefixes[place[0]] > last:
            raise UsageError(
                "an origin must be known, and must not end before the prefix that has already arrived",
                code="origin-end",
                origin=origin,
                last=last,
                seen=known.prefix_of(origin),
            )
        finals[place[0]] = last
    held = known.pending
    beyond = (finals[held.owners] != OPEN) & (held.sequences > finals[held.owners])
    dropped = int(np.count_nonzero(beyond))
    counters = _add(known.counters, [-dropped, *[0] * (AFTER_END - 1), dropped])
    return _leave(replace(known, finals=finals, pending=held.of(~beyond), counters=counters))


def wait(known: Origins, now_us: int, patience_us: int | None = None) -> tuple[Origins, list[Gap]]:
    """The origins and all gaps they wait for, at processing time ``now_us``; call it once per batch or tick.

    A gap older than ``patience_us`` is given up as soon as a complete sequence number follows it: the prefix goes on
    there, and buffers that arrive for the gap later count as seen before.
    """
    gaps = _gaps(known, now_us, patience_us)
    places = np.searchsorted(known.ids, np.array([gap.origin for gap in gaps], np.int64))
    since = np.full(len(known.ids), BEGINNING_US, np.int64)
    since[places] = [gap.since_us for gap in gaps]
    given_up = [(place, gap) for place, gap in zip(places.tolist(), gaps, strict=True) if gap.given_up]
    if not given_up:
        return replace(known, waiting_since_us=since), gaps
    prefixes = known.prefixes.copy()
    for place, gap in given_up:
        prefixes[place] = gap.last
    skipped = sum(gap.last - gap.first + 1 for _, gap in given_up)
    counters = msgspec.structs.replace(known.counters, gave_up=known.counters.gave_up + skipped)
    held = known.pending.of(known.pending.sequences > prefixes[known.pending.owners])
    known = replace(known, prefixes=prefixes, waiting_since_us=since, pending=held, counters=counters)
    return advance_origins(known, buffers(no_numbers(), no_numbers())).origins, gaps


def _gaps(known: Origins, now_us: int, patience_us: int | None) -> list[Gap]:
    """The first gap of each origin with pending buffers: it ends before the first complete unit, if there is one."""
    units = units_of(known.pending)
    owners, heads = np.unique(units.owners, return_index=True)
    if not len(owners):
        return []
    nowhere = np.iinfo(np.int64).max
    whole = np.minimum.reduceat(np.where(units.whole, units.first, nowhere), heads)
    until = np.where(whole == nowhere, np.maximum.reduceat(units.sequences, heads), whole - 1)
    began = known.waiting_since_us[owners]
    since = np.where(began == BEGINNING_US, now_us, began)
    given_up = (whole != nowhere) & (now_us - since > (nowhere if patience_us is None else patience_us))
    counts = np.bincount(known.pending.owners, minlength=len(known.ids))[owners]
    columns = (known.ids[owners], known.prefixes[owners] + 1, until, counts, since, given_up)
    return [Gap(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def with_new_origins(known: Origins, arrived: Buffers) -> Origins:
    """``known`` with each new origin of these buffers that has not ended: it joins at W."""
    places = _places(known.ids, arrived.origins)
    new = _valid_sequence(arrived) & (arrived.chunks >= 0) & ~known.have_ended(arrived.origins)
    if len(known.ids):
        new &= known.ids[places] != arrived.origins
    if not new.any():
        return known
    joining = np.unique(arrived.origins[new])
    ids = np.concatenate([known.ids, joining])
    order = np.argsort(ids, kind="stable")
    moved_to = np.argsort(order, kind="stable")

    def grown(column: Numbers, value: int) -> Numbers:
        joined: Numbers = np.concatenate([column, np.full(len(joining), value, np.int64)])[order]
        return joined

    return replace(
        known,
        ids=ids[order],
        prefixes=grown(known.prefixes, 0),
        watermarks_us=grown(known.watermarks_us, known.watermark_us),
        finals=grown(known.finals, OPEN),
        waiting_since_us=grown(known.waiting_since_us, BEGINNING_US),
        pending=replace(known.pending, owners=moved_to[known.pending.owners]),
    )


def _places(ids: Numbers, wanted: Numbers) -> Numbers:
    """The index of each origin in ``ids``; any index for one that is not there."""
    if len(ids) <= 1:
        return np.zeros(len(wanted), np.int64)
    places: Numbers = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return places


def _reasons(known: Origins, arrived: Buffers, owners: Numbers) -> Reasons:
    """The reason of each buffer, without regard to the others; 0 if there is none."""
    reasons = np.zeros(len(arrived), np.int8)
    ended = known.have_ended(arrived.origins)
    if not len(known.ids):
        reasons[:] = np.where(ended & ~arrived.unusable, SEEN, BAD_SEQUENCE)
        return reasons
    finals = known.finals[owners]
    for mask, reason in (
        ((finals != OPEN) & (arrived.sequences > finals), AFTER_END),
        (arrived.sequences <= known.prefixes[owners], SEEN),
        (arrived.chunks < 0, BAD_CHUNK),
        (ended, SEEN),
        (~_valid_sequence(arrived), BAD_SEQUENCE),
    ):
        reasons[mask] = reason
    return reasons


def _valid_sequence(arrived: Buffers) -> Flags:
    """Whether all sequence numbers of each buffer are at least 1."""
    return ~arrived.unusable & (arrived.behind >= 0) & (arrived.sequences > arrived.behind)


def _absorb(known: Origins, units: Units) -> Origins:
    """Extend each prefix by the units that follow it without a gap; the rows of later ones stay pending."""
    grown = absorbed_of(units, known.prefixes, known.watermarks_us)
    prefixes, marks = known.prefixes.copy(), known.watermarks_us.copy()
    prefixes[grown.owners], marks[grown.owners] = grown.prefixes, grown.watermarks_us
    since = known.waiting_since_us.copy()
    since[grown.owners] = BEGINNING_US
    beyond = units.rows.sequences > prefixes[units.rows.owners]
    counters = msgspec.structs.replace(known.counters, backward=known.counters.backward + grown.backward)
    after = replace(
        known,
        prefixes=prefixes,
        watermarks_us=marks,
        waiting_since_us=since,
        pending=units.rows if bool(beyond.all()) else units.rows.of(beyond),
        counters=counters,
    )
    return _leave(after)


def _leave(known: Origins) -> Origins:
    """``known`` without the origins that are complete up to their end, and with the W of the others."""
    done = (known.finals != OPEN) & (known.prefixes >= known.finals)
    if done.any():
        stays = ~done
        marks = dict(zip(known.ids[done].tolist(), known.watermarks_us[done].tolist(), strict=True))
        places = np.cumsum(stays) - 1
        invariant(bool(stays[known.pending.owners].all()), "an origin that has ended has no pending buffers")
        known = replace(
            known,
            ids=known.ids[stays],
            prefixes=known.prefixes[stays],
            watermarks_us=known.watermarks_us[stays],
            finals=known.finals[stays],
            waiting_since_us=known.waiting_since_us[stays],
            pending=replace(known.pending, owners=places[known.pending.owners]),
            ended=known.ended + len(marks),
            ended_us=max(known.ended_us, *marks.values()),
            ended_ids=merged_ranges([*known.ended_ids, *((one, one) for one in marks)])[-ENDED_RANGES:],
            left={**known.left, **marks},
        )
    reached = int(known.watermarks_us.min()) if len(known.ids) else known.ended_us
    return replace(known, watermark_us=max(known.watermark_us, reached))


def _add(counters: OriginCounters, counts: list[int], refused: int = 0) -> OriginCounters:
    names = ("counted", *ORIGIN_REASONS[1:])
    more = {name: getattr(counters, name) + count for name, count in zip(names, counts, strict=True)}
    return msgspec.structs.replace(counters, **more, watermark_refused=counters.watermark_refused + refused)
