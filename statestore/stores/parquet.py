"""The Parquet store: state in files, read where it is asked for; fresh changes in RAM up to a budget, then spilled.

Opening costs nothing but the list of files. Level 0 is the durable changelog; above it lie folded files. What is
applied here without being durable elsewhere spills into a scratch folder of its own, which `close` removes.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

import pyarrow as pa

from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.files.filetable import FileTable, RowSource, Segment, open_sources
from tidestate.statestore.files.folding import BAND_SHARE, fold_into
from tidestate.statestore.files.refs import FileRef, PartitionState, SegmentName, files_by_table
from tidestate.statestore.files.resident import table_sources
from tidestate.statestore.files.sortedfile import write_sorted
from tidestate.statestore.spec.changes import PUT, Applied, ChangeSet, KeyBound, Layer, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange, check_range
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.private import temporary_folder
from tidestate.statestore.table.validation import (
    check_sequence,
    expiring,
    find_table,
    in_order,
    loadable,
    specs_by_name,
    validate_changes,
)

MAX_SPILLED = 8
"""Spilled files of a table before they are folded into one."""


class _Scratch:
    """A folder for spilled files, made when it is first needed."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._numbers = count(1)

    @property
    def objects(self) -> Objects:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="tidestate-spill-", dir=temporary_folder())
        return Objects(self._folder)

    def name(self) -> SegmentName:
        attempt, number = uuid.uuid4().hex, next(self._numbers)
        return SegmentName("spill", 0, 1, number, number, attempt, "", attempt, number)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _nothing(*, once: bool = False) -> list[RowSource]:
    return []


class ParquetTable:
    """One table: durable files, spilled files over them, and fresh changes in RAM."""

    def __init__(
        self,
        spec: TableSpec,
        durable: Callable[..., list[RowSource]],
        expired: int | None,
        budget_bytes: int,
        scratch: _Scratch,
        changelog_bytes: int = 0,
    ) -> None:
        self.spec, self.expired = spec, expired
        self.fresh: list[Layer] = []
        self.spilled: list[FileRef] = []
        self.settled: Segment | None = None
        self._durable, self._files = durable, durable()
        self._budget, self._scratch, self._changelog_bytes = budget_bytes, scratch, changelog_bytes

    def lookup(self, keys: pa.Table) -> Lookup:
        """Reads the blocks that may hold the keys."""
        return self._rows(self._files).lookup(keys)

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        """The rows within ``keys``, read and given band by band."""
        keys = check_range(self.spec, keys)
        if not folded:
            # A large changelog is let go band by band, not held for look-ups that may follow.
            once = self._changelog_bytes > self._budget // BAND_SHARE
            return self._rows(self._durable(once=True) if once else self._files).unfolded(keys)
        rows = self._rows(self._files)
        return self._scan_all(rows, reverse) if keys.whole else rows.scan(keys, reverse=reverse)

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        """Reads the blocks that may hold the prefixes."""
        return self._rows(self._files).ranges(prefixes, lower, upper)

    def bands(self) -> list[KeyRange]:
        """All keys in ranges, in key order, each about as large as what a scan holds at once. Reads footers."""
        return self._rows(self._files).ranges_by_size()

    def spill(self, layers: list[Layer]) -> list[FileRef]:
        """The spilled files with ``layers`` as one more, or all in one when they are many."""
        spilled = [*self.spilled, *self._fold([Segment(self.spec, layers)])]
        if len(spilled) <= MAX_SPILLED:
            return spilled
        return self._fold(open_sources(self._scratch.objects, self.spec, spilled))

    def close(self) -> None:
        """Drop all references to files and rows; the table cannot be read any more."""
        self.settled, self._files, self.fresh, self.spilled = None, [], [], []
        self._changelog_bytes = 0

    def _rows(self, files: list[RowSource]) -> FileTable:
        if self.settled is not None:
            return FileTable(self.spec, [self.settled], self.expired, self._budget)
        sources = list(files)
        sources += open_sources(self._scratch.objects, self.spec, self.spilled) if self.spilled else []
        if self.fresh:
            sources.append(Segment(self.spec, self.fresh))
        return FileTable(self.spec, sources, self.expired, self._budget // BAND_SHARE)

    def _scan_all(self, rows: FileTable, reverse: bool) -> Iterator[pa.Table]:
        """A scan of everything. What is small is kept folded, so that it is folded once."""
        whole, held, begun = [], 0, self.fresh
        for batch in rows.scan(reverse=reverse):
            held += batch.nbytes
            whole.append(batch)
            if held > self._budget // BAND_SHARE:
                whole = []
            yield batch
        if whole and not reverse and self.settled is None and self.fresh is begun:
            self.settled = Segment(self.spec, [Layer(PUT, pa.concat_tables(whole), ordered=True)])

    def _fold(self, sources: Sequence[RowSource]) -> list[FileRef]:
        table = FileTable(self.spec, sources, self.expired, self._budget // BAND_SHARE)
        return fold_into(self._scratch.objects, self.spec, table, "run", self._scratch.name())


class ParquetStore(StateStore):
    """State tables of one partition, on the files that ``base`` names below ``objects``."""

    def __init__(
        self,
        specs: Sequence[TableSpec],
        objects: Objects | None = None,
        base: PartitionState = PartitionState(),  # noqa: B008  immutable
        *,
        budget_bytes: int = 256 << 20,
        stays_decoded: bool = True,
    ) -> None:
        """``stays_decoded``: small tables do, for the next store on the same files; else all are read once."""
        self._specs = specs_by_name(specs)
        self._budget, self._scratch = budget_bytes, _Scratch()
        self._applied = Applied(base.sequence, base.lineage)
        self._tables: dict[str, ParquetTable] = {}
        by_table = files_by_table(base.files)
        for name, spec in self._specs.items():
            own = by_table.get(name, ())
            durable: Callable[..., list[RowSource]] = _nothing
            if objects is not None and stays_decoded:
                durable = partial(table_sources, objects, spec, own, budget_bytes)
            elif objects is not None:
                durable = partial(open_sources, objects, spec, own)
            changelog = sum(ref.bytes for ref in own if ref.kind == "changelog")
            expired = base.expired.get(name)
            self._tables[name] = ParquetTable(spec, durable, expired, budget_bytes, self._scratch, changelog)

    @property
    def applied(self) -> Applied:
        return self._applied

    @property
    def expired(self) -> Mapping[str, int]:
        return {name: table.expired for name, table in self._tables.items() if table.expired is not None}

    def __getitem__(self, table: str) -> ParquetTable:
        return find_table(self._tables, table)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """Keep the changes in RAM; over the budget, spill."""
        check_sequence(self._applied, applied)
        admitted = validate_changes(self._specs, changes)
        fresh = {name: table.fresh for name, table in self._tables.items()}
        fresh |= {name: fresh[name] + new for name, new in admitted.items()}
        spilled = self._spill_over(fresh)
        superseded = []
        for name, files in spilled.items():
            superseded += [ref for ref in self._tables[name].spilled if ref not in files]
            self._tables[name].spilled = files
        for name, table in self._tables.items():
            table.fresh = fresh[name]
        for name in admitted:
            self._tables[name].settled = None
            if (bound := changes[name].expire) is not None:
                self.expire(name, bound)
        self._applied = applied
        for ref in superseded:
            with contextlib.suppress(UnavailableError):  # the folder goes with the store
                self._scratch.objects.delete(ref.path)

    def expire(self, table: str, bound: int) -> None:
        expiring(self._specs, table, bound)
        own = self[table]
        own.expired = bound if own.expired is None else max(bound, own.expired)

    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        return {name: self[name].scan() for name in self._specs}

    def load(
        self, rows: Mapping[str, Iterable[pa.Table]], applied: Applied, expired: Mapping[str, int] | None = None
    ) -> None:
        """Fill an empty store with a snapshot: each table becomes one spilled file."""
        bounds = loadable(self._specs, self, rows, expired)
        loaded = {}
        for name, batches in rows.items():
            spec, scratch = self._specs[name], self._scratch
            loaded[name] = write_sorted(scratch.objects, spec, "snapshot", scratch.name(), in_order(spec, batches))
        for name, table in self._tables.items():
            table.spilled, table.fresh = loaded.get(name, table.spilled), list(table.fresh)
            table.expired = bounds.get(name)
        self._applied = applied

    def close(self) -> None:
        """Let files go and remove the scratch folder. Closing twice is fine."""
        for table in self._tables.values():
            table.close()
        self._scratch.close()

    def _spill_over(self, fresh: dict[str, list[Layer]]) -> dict[str, list[FileRef]]:
        """Write the largest tables of ``fresh`` out until the rest fits; what was written, per table.

        A quarter of the budget holds fresh changes: folding makes copies of them.
        """
        sizes = {name: sum(layer.rows.nbytes for layer in layers) for name, layers in fresh.items()}
        spilled: dict[str, list[FileRef]] = {}
        while sum(sizes.values()) > self._budget // 4:
            name = max(sizes, key=lambda table: sizes[table])
            spilled[name] = self._tables[name].spill(fresh[name])
            fresh[name], sizes[name] = [], 0
        return spilled
