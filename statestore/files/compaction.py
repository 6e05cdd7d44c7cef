"""Which files of a table to fold before one more is added, decided purely; and the folding itself, band by band.

A partition names at most ``max_files`` files of a table. The young ones are folded, so what a checkpoint folds is, on
the average, a few times what it wrote. A single fold may be as large as the table, about once per doubling of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from statestore.changes import PUT, Layer
from statestore.files.filetable import FileTable
from statestore.files.segments import FileKind, FileRef, SegmentName, with_op
from statestore.files.sortedfile import write_sorted
from statestore.fold import fold_run
from statestore.keyrange import EVERYTHING
from statestore.objects import Objects
from statestore.store import StoreConfig
from statestore.tables import TableSpec

WORK_BYTES = 256 << 20
"""A table larger than this is not written out as a snapshot for the sake of a fast restart alone."""

YOUNG_FILES = 4
"""Files that are folded at least, when there are too many."""

CLEARLY_LARGER = 1.5
"""An older file is folded with younger ones unless it is larger than they are together by this factor."""

GROWTH = 4
"""The log may grow to this many times its snapshot before the next one: a fifth of what is written is snapshots."""

SMALL_BYTES = 1 << 20
"""Files that are together smaller than this are folded into one without further thought."""

RESTORE_BYTES_PER_S = 50 << 20
"""How fast a partition is taken to be restored: a cautious figure, see docs/BENCHMARKS.md."""

_GOLDEN = 0.6180339887498949


def live_files(files: Sequence[FileRef], spec: TableSpec, expired: int | None) -> tuple[FileRef, ...]:
    """Without the files whose every row has expired: an expired window is a dropped file.

    Where rows expire by a value, a file may hide older rows of its keys, so only the oldest files can go.
    """
    gone = [expired is not None and ref.expiry_max is not None and ref.expiry_max <= expired for ref in files]
    if spec.expires_by_key:
        return tuple(ref for ref, dead in zip(files, gone, strict=True) if not dead)
    first = gone.index(False) if False in gone else len(files)
    return tuple(files[first:])


def plan(files: Sequence[FileRef], config: StoreConfig, partition: int) -> tuple[int, int] | None:
    """Which files ``[first, last)`` of one table (oldest first) to fold before one more is added, or None.

    From 0 to the end is a snapshot: when a few times as much has been logged since the last one as it holds, or
    when reading all files would take longer than the recovery budget. The thresholds differ by partition, so that the
    partitions of a job do not all write theirs in the same checkpoint.
    """
    count, sizes = len(files), [ref.bytes for ref in files]
    if not count:
        return None
    total = sum(sizes)
    if total <= WORK_BYTES and _snapshot_due(files, config, partition):
        return 0, count
    level_0 = _level_0(files)
    if sum(sizes[level_0:]) > config.budget_bytes // 4 and level_0 + 1 < config.max_files:
        return level_0, count
    return (_young(sizes), count) if count >= config.max_files else None


def _snapshot_due(files: Sequence[FileRef], config: StoreConfig, partition: int) -> bool:
    base = files[0].bytes if files[0].kind == "snapshot" else 0
    logged = sum(ref.bytes for ref in files) - base
    stagger = 0.75 + (partition * _GOLDEN) % 1 / 2
    slow = (base + logged) > config.recovery_s * RESTORE_BYTES_PER_S and logged > base / 4
    return logged > 0 and (logged >= stagger * max(config.snapshot_bytes, GROWTH * base) or slow)


def _level_0(files: Sequence[FileRef]) -> int:
    """Where the changelog segments at the young end begin."""
    first = len(files)
    while first and files[first - 1].kind == "changelog":
        first -= 1
    return first


def _young(sizes: Sequence[int]) -> int:
    """Where the young files begin that are folded together: up to an older one that is clearly larger than they are.

    So sizes stay geometric, and each byte is folded a few times in its life however large the table grows: 4 times at
    1 GB, 6 at 10, 8 at 50 in checkpoints of 1 MB.
    """
    first, folded = len(sizes), 0
    while first and (len(sizes) - first < YOUNG_FILES or sizes[first - 1] <= CLEARLY_LARGER * folded):
        first -= 1
        folded += sizes[first]
    return 0 if sum(sizes[:first]) <= SMALL_BYTES else first


def fold_into(
    objects: Objects, spec: TableSpec, table: FileTable, kind: FileKind, name: SegmentName
) -> FileRef | None:
    """Fold everything in ``table`` into one file. None when no row is left."""
    if kind == "snapshot":
        return write_sorted(objects, spec, kind, name, table.scan(EVERYTHING))
    bands = (table.layers(band) for band in table.bands(EVERYTHING, fold=True))
    return write_sorted(objects, spec, kind, name, (_run(spec, layers) for layers in bands))


def _run(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """A band folded, still hiding what it hides below, sorted by key with its ops."""
    empty = with_op(spec, Layer(PUT, spec.schema.empty_table()))
    rows = pa.concat_tables([empty, *(with_op(spec, layer) for layer in fold_run(spec, layers))])
    return rows.sort_by([(name, "ascending") for name in spec.key_names]) if rows.num_rows > 1 else rows
