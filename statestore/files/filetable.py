"""One state table as sources, oldest first: folded files, changelog segments, layers in RAM. Read band by band.

A *band* is a range of keys small enough to hold: its rows are taken out of every source, folded and let go, so memory
does not depend on how large the table is. Bands are cut where blocks of folded files end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from tidestate.statestore.files.refs import FileRef, levels_of
from tidestate.statestore.files.segments import read_segment
from tidestate.statestore.files.shares import Share
from tidestate.statestore.files.sortedfile import SortedFile
from tidestate.statestore.spec.changes import KeyBound, Layer, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, Cut, Key, KeyRange, comparable
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table import layers as reading

LEVEL_0_BANDS = 2
"""A segment larger than this many bands is sorted and cut into bands too, before it is folded."""

SPLIT_BYTES = 256 << 10
"""How far apart a segment that is sorted can be cut."""

LARGEST_VALUE = 2**63 - 1
"""The largest leading value."""

WHOLE_BYTES = 8 << 20
"""A segment up to this is not cut into bands where it is read once."""

ARRANGE_BANDS = 4
"""Over more bands than this, sorting level 0 by the whole key pays."""


class RowSource(Protocol):
    """Rows of a table from one place."""

    def splits(self, keys: KeyRange) -> list[tuple[Key, int]]:
        """Keys after which it can be cut within ``keys``, or leading values before which it can, each with the bytes
        that lie before the cut.
        """
        ...

    def layers(self, keys: KeyRange, wanted: pa.Table | None = None) -> list[Layer]:
        """Its rows within ``keys``, oldest first; it may leave out what has none of the ``wanted`` prefixes."""
        ...

    def arrange(self, keys: KeyRange, limit_bytes: int) -> None:
        """Sort what it holds within ``keys``, when that is more than ``limit_bytes`` of unsorted rows."""
        ...


class Segment:
    """Level 0: a changelog segment or layers in RAM, small enough to be held whole, read when first asked."""

    def __init__(self, spec: TableSpec, layers: Sequence[Layer]) -> None:
        self._spec, self._layers = spec, list(layers)

    def splits(self, keys: KeyRange) -> list[tuple[Key, int]]:
        """Keys about every `SPLIT_BYTES` of its rows, once `arrange` has sorted them; before, none."""
        selected = [layer.rows for layer in reading.rows_between(self._layers, keys) if layer.ordered]
        return [split for rows in selected for split in _every_block(rows, len(self._spec.key))]

    def layers(self, keys: KeyRange, wanted: pa.Table | None = None) -> list[Layer]:
        """The layers of the segment, oldest first, with only their rows within ``keys``."""
        return reading.rows_between(self._held(keys), keys)

    def arrange(self, keys: KeyRange, limit_bytes: int) -> None:
        """Sort the rows by the whole key, once."""
        selected = reading.rows_between(self._held(keys), keys)
        if sum(layer.rows.nbytes for layer in selected) > limit_bytes:
            self._layers = [
                layer
                if layer.ordered
                else Layer(layer.op, reading.sorted_by_key(self._spec, layer.rows), ordered=True)
                for layer in self._layers
            ]

    def _held(self, keys: KeyRange) -> list[Layer]:
        return self._layers


class SegmentFile(Segment):
    """A changelog segment of the durable files. With ``once`` its bands are read in key order, once: it can be cut
    where its times end, and its rows are let go when a band lies beyond them.
    """

    def __init__(self, objects: Objects, spec: TableSpec, ref: FileRef, *, once: bool = False) -> None:
        super().__init__(spec, [])
        self._objects, self._ref, self._read = objects, ref, False
        self._end = ref.expiry_max if once and spec.expires_in_order and ref.expiry_max != LARGEST_VALUE else None

    def splits(self, keys: KeyRange) -> list[tuple[Key, int]]:
        """As of any segment; before it is read, the leading value that follows its last one."""
        if self._end is None or self._read:
            return super().splits(keys)
        return [((self._end + 1,), self._ref.bytes)] if _may_touch(self._spec, self._ref, keys) else []

    def layers(self, keys: KeyRange, wanted: pa.Table | None = None) -> list[Layer]:
        """The layers of the segment, oldest first, with only their rows within ``keys``."""
        lower = keys.lower.values[:1] if keys.lower is not None else ()
        if lower and self._end is not None and self._end < lower[0]:
            self._layers = []
        return super().layers(keys, wanted)

    def arrange(self, keys: KeyRange, limit_bytes: int) -> None:
        """Sort the rows by the whole key, once; with ``once`` those of a large segment, or of one that is read."""
        if self._end is None or self._read or self._ref.bytes > max(limit_bytes, WHOLE_BYTES):
            super().arrange(keys, limit_bytes)

    def _held(self, keys: KeyRange) -> list[Layer]:
        if not self._read and _may_touch(self._spec, self._ref, keys):
            layers = read_segment(self._objects, self._spec, self._ref)
            self._layers = Share(self._spec, self._ref).of(layers) if self._ref.share else layers
            self._read = True
        return self._layers


def _every_block(rows: pa.Table, width: int) -> Iterator[tuple[Key, int]]:
    """The key at the end of each `SPLIT_BYTES` of sorted rows, and those bytes."""
    step = max(1, SPLIT_BYTES * rows.num_rows // max(1, rows.nbytes))
    for end in range(step - 1, rows.num_rows, step):
        key = tuple(comparable(rows.column(place)[end]) for place in range(width))
        yield key, SPLIT_BYTES


def _may_touch(spec: TableSpec, ref: FileRef, keys: KeyRange) -> bool:
    """Whether the file can hold rows in ``keys``, by the range of expiry in its manifest entry."""
    if not spec.expires_in_order or ref.expiry_min is None or ref.expiry_max is None:
        return True
    lower, upper = ((cut.values[:1] if cut else ()) for cut in (keys.lower, keys.upper))
    below = bool(upper) and ref.expiry_min > upper[0]
    above = bool(lower) and ref.expiry_max < lower[0]
    return not (below or above)


class SortedFiles:
    """A level of folded files, read like one: each holds later keys than the one before it."""

    def __init__(self, files: Sequence[SortedFile], share: Share | None = None) -> None:
        self._files, self._share = list(files), share

    def splits(self, keys: KeyRange) -> list[tuple[Key, int]]:
        """The last key of each block that ``keys`` touches, and the block's size in bytes."""
        return [split for file in self._files for split in file.splits(keys)]

    def layers(self, keys: KeyRange, wanted: pa.Table | None = None) -> list[Layer]:
        """Rows within ``keys``, a layer per op."""
        rows: dict[int, list[pa.Table]] = {}
        for file in self._files:
            for layer in file.layers(keys, wanted):
                rows.setdefault(layer.op, []).append(layer.rows)
        layers = [Layer(op, pa.concat_tables(parts), ordered=True) for op, parts in rows.items()]
        return self._share.of(layers) if self._share else layers

    def arrange(self, keys: KeyRange, limit_bytes: int) -> None:
        """Do nothing: the rows of a file are sorted already."""


def open_sources(
    objects: Objects, spec: TableSpec, files: Sequence[FileRef], *, once: bool = False
) -> list[RowSource]:
    """The sources that read durable files of one table, one per level. Nothing is read yet. ``once``: see
    `SegmentFile`.
    """
    sources: list[RowSource] = []
    for level in levels_of(files):
        if level[0].kind == "changelog":
            sources += [SegmentFile(objects, spec, ref, once=once) for ref in level]
        else:
            share = Share(spec, level[0]) if level[0].share else None
            sources.append(SortedFiles([SortedFile(objects, spec, ref) for ref in level], share))
    return sources


class FileTable:
    """A table read from its sources. ``band_bytes`` bounds what is held at once, without level 0."""

    def __init__(self, spec: TableSpec, sources: Sequence[RowSource], expired: int | None, band_bytes: int) -> None:
        self._spec, self._sources, self._expired, self._band_bytes = spec, list(sources), expired, band_bytes

    def bands(self, keys: KeyRange, *, fold: bool = False, reverse: bool = False) -> list[KeyRange]:
        """``keys`` cut into bands, in key order. To ``fold`` makes copies of rows, so level 0 is cut as well."""
        if fold:
            self._arrange(keys, LEVEL_0_BANDS * self._band_bytes)
        bands = self._bands(keys)
        if len(bands) > ARRANGE_BANDS:
            self._arrange(keys)
        return bands[::-1] if reverse else bands

    def _bands(self, keys: KeyRange) -> list[KeyRange]:
        edges = [keys.lower, *self._cuts(keys), keys.upper]
        return [KeyRange(low, high) for low, high in pairwise(edges)]

    def _arrange(self, keys: KeyRange, limit_bytes: int = 0) -> None:
        for source in self._sources:
            source.arrange(keys, limit_bytes)

    def ranges_by_size(self) -> list[KeyRange]:
        """All keys, cut where folded files say that a band is full. Level 0 is not read."""
        return self._bands(EVERYTHING)

    def layers(self, band: KeyRange, wanted: pa.Table | None = None) -> list[Layer]:
        """Everything in a band, oldest first."""
        found = [layer for source in self._sources for layer in source.layers(band, wanted)]
        return reading.live(self._spec, found, self._expired)

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False) -> Iterator[pa.Table]:
        """Live rows within ``keys`` in key order, in batches."""
        for band in self.bands(keys, fold=True, reverse=reverse):
            yield from reading.batches(self._folded(self.layers(band)), reverse=reverse)

    def unfolded(self, keys: KeyRange) -> Iterator[pa.Table]:
        """Rows within ``keys`` in parts that combine to the live rows."""
        bands = self._bands(keys)
        for number, band in enumerate(bands):
            if number == 1 and len(bands) > ARRANGE_BANDS:
                self._arrange(keys)  # not for who only wants the first rows
            yield reading.unfolded(self._spec, self.layers(band), EVERYTHING, self._expired)

    def lookup(self, keys: pa.Table) -> Lookup:
        """Rows for ``keys``, aligned with them."""
        wanted = self._spec.conform_keys(keys)
        return reading.align(self._spec, wanted, self._matching(wanted))

    def ranges(
        self,
        prefixes: pa.Table,
        lower: KeyBound,
        upper: KeyBound,
    ) -> Ranges:
        """Rows of many prefixes at once, each with its own interval."""
        prefixes, lower, upper = reading.check_requests(self._spec, prefixes, lower, upper)
        return reading.assign_keys(self._spec, self._matching(prefixes), prefixes, lower, upper)

    def _matching(self, keys: pa.Table) -> pa.Table:
        """Live rows in key order whose leading columns are among ``keys``."""
        names = keys.column_names
        keys = keys.drop_null() if names else keys  # a null finds nothing
        found = [self._spec.no_rows]
        distinct = reading.distinct_keys(keys) if names else keys.slice(0, 1)
        if distinct.num_rows:
            bands = self.bands(reading.extent(distinct))
            found += [self._folded(reading.matching(self.layers(band, distinct), distinct)) for band in bands]
        return pa.concat_tables(found)

    def _folded(self, layers: list[Layer]) -> pa.Table:
        if reading.overlays(layers):
            return reading.unexpired(self._spec, reading.overlay(self._spec, layers), self._expired)
        rows = reading.folded(self._spec, layers, self._expired)
        return rows if reading.is_settled(layers) else reading.sorted_by_key(self._spec, rows)

    def _cuts(self, keys: KeyRange) -> list[Cut]:
        """Where to cut, so that a band has about ``band_bytes`` of folded files."""
        splits = sorted((split for source in self._sources for split in source.splits(keys)), key=lambda s: s[0])
        cuts: list[Cut] = []
        held = 0
        for key, size in splits[:-1]:
            held += size
            if held >= self._band_bytes and not (cuts and cuts[-1].values == key):
                cuts.append(Cut(key, after=len(key) == len(self._spec.key)))
                held = 0
        return [cut for cut in cuts if _inside(keys, cut)]


def _inside(keys: KeyRange, cut: Cut) -> bool:
    """Whether ``cut`` lies within ``keys``: a bound may have fewer values than the key."""
    low = keys.lower is None or _is_behind(cut.values, keys.lower)
    high = keys.upper is None or not _is_behind(cut.values, keys.upper)
    return low and high


def _is_behind(key: Key, bound: Cut) -> bool:
    leading = key[: len(bound.values)]
    return leading > bound.values if bound.after else leading >= bound.values
