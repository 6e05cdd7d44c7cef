"""Which files of a table to fold before one more is added. Pure.

The files of a table lie in levels, oldest first: a changelog segment is one, and so are the files, disjoint and in
key order, that a fold wrote. The young ones are folded when there are ``max_levels`` of them, so what a checkpoint
folds is, on the average, a few times what it wrote. What is more than `WORK_BYTES` is folded in pieces, ranges of
keys, one with each checkpoint: the files themselves tell how far it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def plan(levels: Sequence[Level], config: StoreConfig, partition: int) -> list[Fold]:
    """What to fold of one table before a segment is added: disjoint, the younger levels first.

    A fold of everything is a snapshot: when a few times as much has been logged since the last one as it holds, or
    when reading all files would take longer than the recovery budget. The thresholds differ by partition, so that the
    partitions of a job do not all write theirs in the same checkpoint.
    """
    count, sizes = len(levels), [_bytes(level) for level in levels]
    if not count:
        return []
    if old := taken_over(levels):
        return _over_others(levels, old, config, partition)
    if sum(sizes) <= WORK_BYTES and _snapshot_due(levels, config, partition):
        return [Fold(0, count)]
    work = max(WORK_BYTES, sum(sizes) // WORK_SHARE)
    begun = under_way(levels)
    folds = _young_folds(levels, sizes, begun[1] if begun else 0, work, config)
    if begun is None and folds and count >= config.max_levels:
        # Whatever else would be folded now, if one checkpoint could do it all.
        begun = _young(sizes, 0), folds[0].first
    if begun is not None and begun[1] - begun[0] > 1:
        folds.append(Fold(*begun, work + GROWTH * sizes[-1]))
    return folds


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
    own = _young_folds(levels[old:], sizes[old:], 0, max(WORK_BYTES, (base + logged) // WORK_SHARE), config)
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


def _young_folds(
    levels: Sequence[Level], sizes: Sequence[int], begin: int, work: int, config: StoreConfig
) -> list[Fold]:
    count, level_0 = len(levels), _level_0(levels)
    full, large = count >= config.max_levels, sum(sizes[level_0:]) > config.budget_bytes // 4
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


def _bytes(level: Level) -> int:
    return sum(ref.bytes for ref in level)
