"""Progress of origins whose buffers arrive in any order: the longest complete prefix of each. Pure, vectorised.

A buffer has an origin, a sequence number (from 1, without gaps), a chunk number (from 0), a flag on the last chunk,
and a watermark. A sequence number is complete when all chunks up to the last have arrived; its watermark is their
largest. The watermark of an origin is the largest in its longest complete prefix, the overall one W the smallest over
origins. The result does not depend on the order of arrival. The state of an origin is its prefix and the buffers
after the first gap. After NebulaStream, "Watermarking and Progress".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from tidestate.operators.progress.buffer_state import BufferState, OriginCounters, OriginsState
from tidestate.operators.progress.buffers import Buffers, buffers
from tidestate.operators.progress.figures import Gap
from tidestate.operators.progress.units import BufferRows, Units, absorbed_of, no_numbers, no_rows, units_of
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.arrays import Flags, Numbers, Reasons, Times
from tidestate.statestore.errors import UsageError, invariant

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
    watermark_refused: Flags


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
    return OriginsStep(replace(after, counters=counters), reasons, arrived.watermark_refused)


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
            ended_ids=_with_ids(known.ended_ids, marks),
            left={**known.left, **marks},
        )
    reached = int(known.watermarks_us.min()) if len(known.ids) else known.ended_us
    return replace(known, watermark_us=max(known.watermark_us, reached))


def _with_ids(ranges: ChunkRanges, ids: Iterable[int]) -> ChunkRanges:
    """``ranges`` with these ids; adjacent ones are merged."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, *((one, one) for one in ids)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged[-ENDED_RANGES:])


def _add(counters: OriginCounters, counts: list[int], refused: int = 0) -> OriginCounters:
    names = ("counted", *ORIGIN_REASONS[1:])
    more = {name: getattr(counters, name) + count for name, count in zip(names, counts, strict=True)}
    return msgspec.structs.replace(counters, **more, watermark_refused=counters.watermark_refused + refused)
