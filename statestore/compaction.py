"""Which files of a partition to fold, decided purely, and the folding itself.

A partition never names more than ``max_files`` files of a table: the step that would name one more first folds
some. Every ``snapshot_every`` checkpoints, staggered over the partitions, the whole table becomes one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from statestore.changes import PUT, Layer
from statestore.fold import fold, fold_run
from statestore.layers import live
from statestore.objects import Objects
from statestore.segments import FileKind, FileRef, SegmentName, read_segment, write_segment
from statestore.tables import TableSpec

MIN_RUN = 2


def live_files(files: Sequence[FileRef], expired: dict[str, int]) -> tuple[FileRef, ...]:
    """Without the files whose every row has expired: an expired window is a dropped file."""
    return tuple(f for f in files if f.expiry_max is None or f.expiry_max > expired.get(f.table, f.expiry_max - 1))


def plan(
    files: Sequence[FileRef], *, max_files: int, snapshot_every: int, sequence: int, partition: int
) -> tuple[int, int] | None:
    """Which files ``[first, last)`` of one table (oldest first) to fold before one more is added, or None.

    A range from 0 to the end is a snapshot. Otherwise, when the table is full, the cheapest run of
    neighbours, half the limit long: small young files are folded often, large old ones seldom.
    """
    count = len(files)
    if count and (sequence + partition) % snapshot_every == 0 and (count > 1 or files[0].kind != "snapshot"):
        return 0, count
    if count < max_files:
        return None
    length = min(count, max(MIN_RUN, max_files // 2))
    costs = [sum(f.bytes for f in files[i : i + length]) for i in range(count - length + 1)]
    # The youngest of the cheapest: it is the one most likely still in the page cache.
    first = max(range(len(costs)), key=lambda i: (-costs[i], i))
    return first, first + length


def compact(
    objects: Objects,
    spec: TableSpec,
    files: Sequence[FileRef],
    chosen: tuple[int, int],
    expired: int | None,
    name: Callable[[FileRef, FileRef], SegmentName],
    *,
    mapped: bool,
) -> tuple[FileRef, ...]:
    """``files`` with the chosen range replaced by one file, or by none when no row is left."""
    first, last = chosen
    picked = files[first:last]
    layers = [layer for ref in picked for layer in read_segment(objects, spec, ref, mapped=mapped)]
    layers = live(spec, layers, expired)
    # Nothing lies below the oldest file, so nothing there needs hiding: all that is left are puts.
    folded = [Layer(PUT, fold(spec, layers))] if first == 0 else fold_run(spec, layers)
    if not any(layer.rows.num_rows for layer in folded):
        return (*files[:first], *files[last:])
    kind: FileKind = "snapshot" if last - first == len(files) else "run"
    ref = write_segment(objects, spec, folded, kind, name(picked[0], picked[-1]))
    return (*files[:first], ref, *files[last:])
