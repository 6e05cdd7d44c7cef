"""Which files of a table to fold before one more is added. Pure.

The files of a table lie in levels, oldest first: a changelog segment is one, and so are the files, disjoint and in
key order, that a fold wrote. The young ones are folded when there are ``max_levels`` of them, so what a checkpoint
folds is, on the average, a few times what it wrote. Where rows expire in key order only levels that overlap count:
large ones of different times are not read together, do not become smaller in a fold, and expire as they are. What is
more than `WORK_BYTES` is folded in pieces, ranges of keys, one with each checkpoint: the files themselves tell how
far it has come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from tidestate.statestore.files.refs import FileRef, Level, taken_over
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TableSpec

WORK_BYTES = 256 << 20
"""What one checkpoint folds at once; and a table larger than this has no snapshot written whole."""

WORK_SHARE = 64
"""Of a huge table a checkpoint folds this share at once, or its levels would become many."""

YOUNG_FILES = 4
"""Levels that are folded at least, when there are too many."""

CLEARLY_LARGER = 1.5
"""An older file is folded with younger ones unless it is larger than they are together by this factor."""

GROWTH = 4
"""The log may grow to this many times its snapshot before the next one: a fifth of what is written is snapshots."""

APART = 4
"""Large levels that do not overlap may be so many times ``max_levels``: a manifest names them all."""

SMALL_BYTES = 1 << 20
"""Files that are together smaller than this are folded into one without further thought."""

_GOLDEN = 0.6180339887498949


class Fold(NamedTuple):
    """Levels ``[first, last)`` to fold into one: whole, or a piece of about so many bytes of them."""

    first: int
    last: int
    piece: int | None = None


def live_levels(levels: Sequence[Level], spec: TableSpec, expired: int | None) -> list[Level]:
    """Without the files whose every row has expired: an expired window is a dropped file.

    Where rows expire by a value, a file may hide older rows of its keys, so only the oldest files can go.
    """
    kept: list[Level] = []
    for level in levels:
        if kept and not spec.expires_by_key:
            kept.append(level)
        elif left := tuple(ref for ref in level if not (_gone(ref, expired) or _gone(ref, ref.expired))):
            kept.append(left)
    return kept


def _gone(ref: FileRef, expired: int | None) -> bool:
    return expired is not None and ref.expiry_max is not None and ref.expiry_max <= expired


def plan(levels: Sequence[Level], config: StoreConfig, partition: int, spec: TableSpec) -> list[Fold]:
    """What to fold of one table before a segment is added: disjoint, the younger levels first.

    A fold of everything is a snapshot: when a few times as much has been logged since the last one as it holds, or
    when reading all files would take longer than the recovery budget. The thresholds differ by partition, so that the
    partitions of a job do not all write theirs in the same checkpoint.
    """
    count, sizes = len(levels), [_bytes(level) for level in levels]
    if not count or _at_rest(levels, sum(sizes), config):
        return []
    overlap = _overlap(levels, spec)
    if old := taken_over(levels):
        return _over_others(levels, old, config, partition)
    pays = overlap >= min(count, GROWTH)  # a table does not become smaller by more than what overlaps
    if pays and sum(sizes) <= WORK_BYTES and _snapshot_due(levels, config, partition):
        return [Fold(0, count)]
    work = max(WORK_BYTES, sum(sizes) // WORK_SHARE)
    begun = under_way(levels)
    full = overlap >= config.max_levels or count >= APART * config.max_levels
    level_0 = _level_0(levels)
    large = _overlap(levels[level_0:], spec, in_bytes=True) > config.budget_bytes // 4
    folds = _young_folds(levels, begun[1] if begun else 0, work, full=full, large=large)
    if begun is None and folds and full:
        # Whatever else would be folded now, if one checkpoint could do it all.
        begun = _young(sizes, 0), folds[0].first
    if begun is not None and begun[1] - begun[0] > 1:
        folds.append(Fold(*begun, work + GROWTH * sizes[-1]))
    return folds


def _at_rest(levels: Sequence[Level], size: int, config: StoreConfig) -> bool:
    """Whether there is nothing to fold, as of nearly every table in a small batch: few levels of few bytes, of whole
    files that follow each other.
    """
    due = min(SMALL_BYTES, config.budget_bytes // 4, config.snapshot_bytes // 2)
    if len(levels) >= config.max_levels or size > due or size > config.recovery_s * config.restore_bytes_per_s:
        return False
    whole = all(len(level) == 1 and not level[0].share for level in levels)
    return whole and all(below[0].last < above[0].first for below, above in pairwise(levels))


def _over_others(levels: Sequence[Level], old: int, config: StoreConfig, partition: int) -> list[Fold]:
    """What to fold while the oldest levels are shares of other partitions' files: these all at once, or not yet.

    That makes a snapshot of our own, and nobody reads more of those files than is ours any more. A share counts with
    the bytes of the whole file; when it is due is no more than a guess then.
    """
    count, sizes = len(levels), [_bytes(level) for level in levels]
    base, logged = sum(sizes[:old]), sum(sizes[old:])
    small = base + logged <= WORK_BYTES
    if (small and count >= config.max_levels) or _grown(base, logged, config, partition):
        return [Fold(0, count)]
    full, level_0 = count - old >= config.max_levels, _level_0(levels)
    large = sum(sizes[level_0:]) > config.budget_bytes // 4
    work = max(WORK_BYTES, (base + logged) // WORK_SHARE)
    own = _young_folds(levels[old:], 0, work, full=full, large=large)
    return [Fold(fold.first + old, fold.last + old) for fold in own]


def under_way(levels: Sequence[Level]) -> tuple[int, int] | None:
    """The levels of which a piece has been folded: what they became reaches up to the last of them."""
    for first, level in enumerate(levels):
        reached = max(ref.last for ref in level)
        last = first + 1
        while last < len(levels) and levels[last][0].first <= reached:
            last += 1
        if last > first + 1:
            return first, last
    return None


def _young_folds(levels: Sequence[Level], begin: int, work: int, *, full: bool, large: bool) -> list[Fold]:
    """``full``: too many levels; ``large``: level 0 is more than memory should hold."""
    count, level_0, sizes = len(levels), _level_0(levels), [_bytes(level) for level in levels]
    first = _young(sizes, begin, work) if full else count
    if count - first > 1:
        return [Fold(first, count)]
    return [Fold(level_0, count)] if large and level_0 < count else []


def _snapshot_due(levels: Sequence[Level], config: StoreConfig, partition: int) -> bool:
    base = _bytes(levels[0]) if levels[0][0].kind == "snapshot" else 0
    return _grown(base, sum(map(_bytes, levels)) - base, config, partition)


def _grown(base: int, logged: int, config: StoreConfig, partition: int) -> bool:
    """Whether the log over ``base`` is long enough for a snapshot."""
    stagger = 0.75 + (partition * _GOLDEN) % 1 / 2
    slow = (base + logged) > config.recovery_s * config.restore_bytes_per_s and logged > base / 4
    return logged > 0 and (logged >= stagger * max(config.snapshot_bytes, GROWTH * base) or slow)


def _level_0(levels: Sequence[Level]) -> int:
    """Where the changelog segments at the young end begin."""
    first = len(levels)
    while first and levels[first - 1][0].kind == "changelog":
        first -= 1
    return first


def _young(sizes: Sequence[int], begin: int, limit: int | None = None) -> int:
    """Where the young levels begin that are folded together: up to an older one that is clearly larger than they are.

    So sizes stay geometric, and each byte is folded a few times in its life however large the table grows. Levels
    before ``begin`` are left out, and what would make it more than ``limit`` bytes.
    """
    first, folded = len(sizes), 0
    while first > begin and (len(sizes) - first < YOUNG_FILES or sizes[first - 1] <= CLEARLY_LARGER * folded):
        if limit is not None and folded and folded + sizes[first - 1] > limit:
            return first
        first -= 1
        folded += sizes[first]
    return begin if sum(sizes[begin:first]) <= SMALL_BYTES else first


def _overlap(levels: Sequence[Level], spec: TableSpec, *, in_bytes: bool = False) -> int:
    """How many levels, or bytes of them, hold one value of the leading key column at most, where rows expire by it.
    Small levels are counted everywhere.
    """
    if not in_bytes and sum(map(_bytes, levels)) < SMALL_BYTES:
        return len(levels)
    changes = []
    for level in levels:
        for low, high, size in _spans(level, spec):
            weight = size if in_bytes else 1
            changes += [(low, 0, weight), (high, 1, -weight)]
    return max(accumulate(weight for *_, weight in sorted(changes)), default=0)


def _spans(level: Level, spec: TableSpec) -> list[tuple[float, float, int]]:
    """Ranges of the leading key column that a level has rows in, with their bytes; files that touch are one."""
    if not spec.expires_in_order or _bytes(level) < SMALL_BYTES:
        return [(-math.inf, math.inf, _bytes(level))]
    spans: list[tuple[float, float, int]] = []
    for ref in level:
        low = -math.inf if ref.expiry_min is None else ref.expiry_min
        high, size = math.inf if ref.expiry_max is None else ref.expiry_max, ref.bytes
        if spans and low <= spans[-1][1]:
            before = spans.pop()
            low, high, size = before[0], max(high, before[1]), size + before[2]
        spans.append((low, high, size))
    return spans


def _bytes(level: Level) -> int:
    return sum(ref.bytes for ref in level)
