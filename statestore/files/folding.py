"""Folding levels of a table into one: whole, or the next piece of their keys. `compaction` says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidestate.statestore.files.filetable import FileTable, open_sources
from tidestate.statestore.files.refs import FileKind, FileRef, Level, SegmentName
from tidestate.statestore.files.segments import with_op
from tidestate.statestore.files.sortedfile import BLOCK_BYTES, SortedFile, write_sorted
from tidestate.statestore.spec.changes import PUT, Layer
from tidestate.statestore.spec.keyrange import EVERYTHING, Cut, KeyRange
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.fold import fold_run
from tidestate.statestore.table.layers import sorted_by_key

BAND_SHARE = 16
"""A band is this share of the budget: folding holds half a dozen copies of it."""
BLOCKS, LEAST_BLOCK_BYTES = 4, 256 << 10
"""A band has so many blocks at least, as it holds one of each level."""
FILE_BYTES = 32 << 20
"""Uncompressed bytes after which the next file of a level begins."""


def fold_into(
    objects: Objects,
    spec: TableSpec,
    table: FileTable,
    kind: FileKind,
    name: SegmentName,
    keys: KeyRange = EVERYTHING,
    file_bytes: int | None = None,
    most_in_block: int = BLOCK_BYTES,
) -> list[FileRef]:
    """Fold what ``table`` has within ``keys`` into files in key order; none when no row is left."""
    if kind == "snapshot":
        rows = table.scan(keys)
    else:
        rows = (_run(spec, table.layers(band)) for band in table.bands(keys, fold=True))
    return write_sorted(objects, spec, kind, name, rows, file_bytes, most_in_block)


@dataclass(frozen=True)
class LevelFolder:
    """Folds levels of one table. ``name`` names what becomes of some files; ``band_bytes`` are held at once."""

    objects: Objects
    spec: TableSpec
    expired: int | None
    band_bytes: int
    name: Callable[[Sequence[FileRef]], SegmentName]

    def whole(self, levels: Sequence[Level], *, lowest: bool) -> list[Level]:
        """The one level, or none, that ``levels`` become. Below the ``lowest`` there is nothing to hide."""
        files = [ref for level in levels for ref in level]
        made = self._fold(files, EVERYTHING, "snapshot" if lowest else "run", self.name(files))
        return [made] if made else []

    def piece(self, levels: Sequence[Level], size: int, *, lowest: bool) -> list[Level]:
        """What ``levels`` become when the next ``size`` bytes, in key order, of all go into the oldest of them."""
        files = [ref for level in levels for ref in level]
        name = self.name(files)
        done = tuple(ref for ref in levels[0] if ref.last == name.last)
        rest = [levels[0][len(done) :], *levels[1:]]
        begin = Cut(self._end(done[-1]), after=True) if done else None
        selected = [ref for level in rest for ref in level]
        bands = self._table(selected).bands(KeyRange(begin))
        share = size / max(1, sum(ref.bytes for ref in selected))
        keys = KeyRange(begin, bands[min(len(bands), max(1, int(len(bands) * share))) - 1].upper)
        made = self._fold(selected, keys, "snapshot" if lowest else "run", name)
        beyond = [self._beyond(level, keys.upper) for level in rest]
        return [level for level in [(*done, *made, *beyond[0]), *beyond[1:]] if level]

    def _beyond(self, level: Level, cut: Cut | None) -> Level:
        """What is left of a level: whole files, and the rest of the one that reaches over ``cut``, rewritten."""
        if cut is None:
            return ()
        if level and level[0].kind == "changelog":
            return self._fold(level, KeyRange(cut), "run", self.name(level))
        for place, ref in enumerate(level):
            if self._end(ref) <= cut.values:
                continue
            if not self._table([ref]).layers(KeyRange(None, cut)):
                return level[place:]
            return (*self._fold([ref], KeyRange(cut), ref.kind, self.name([ref])), *level[place + 1 :])
        return ()

    def _fold(self, files: Sequence[FileRef], keys: KeyRange, kind: FileKind, name: SegmentName) -> Level:
        table = self._table(files)
        made = fold_into(self.objects, self.spec, table, kind, name, keys, FILE_BYTES, self.most_in_block)
        return tuple(made)

    @property
    def most_in_block(self) -> int:
        """Bytes of a block at most, so that a band has some of them."""
        return max(LEAST_BLOCK_BYTES, self.band_bytes // BLOCKS)

    def _table(self, files: Sequence[FileRef]) -> FileTable:
        sources = open_sources(self.objects, self.spec, files, once=True)
        return FileTable(self.spec, sources, self.expired, self.band_bytes)

    def _end(self, ref: FileRef) -> tuple[object, ...]:
        return SortedFile(self.objects, self.spec, ref).end


def _run(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """A band folded, still hiding what it hides below, sorted by key with its ops."""
    empty = with_op(spec, Layer(PUT, spec.no_rows))
    rows = pa.concat_tables([empty, *(with_op(spec, layer) for layer in fold_run(spec, layers))])
    return sorted_by_key(spec, rows)
