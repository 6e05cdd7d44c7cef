"""The Parquet store: state in files, read where it is asked for; fresh changes in RAM up to a budget, then spilled.

Opening costs nothing but the list of files. Level 0 is the durable changelog; above it lie folded files. What is
applied here without being durable elsewhere spills into a scratch folder of its own, which `close` removes.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import pyarrow as pa

from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.files.filetable import FileTable, RowSource, Segment, open_sources
from tidestate.statestore.files.folding import BAND_SHARE, fold_into
from tidestate.statestore.files.refs import FileRef, PartitionState, SegmentName
from tidestate.statestore.files.sortedfile import write_sorted
from tidestate.statestore.spec.changes import PUT, Applied, ChangeSet, Layer, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, Key, key_range
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.validation import (
    check_sequence,
    expiring,
    in_order,
    loadable,
    spec_of,
    specs_by_name,
    validate_changes,
)

MAX_SPILLED = 8
"""Spilled files of a table before they are folded into one."""


class ParquetStore:
    """State tables of one partition, on the files that ``base`` names below ``objects``."""

    def __init__(
        self,
        specs: Sequence[TableSpec],
        objects: Objects | None = None,
        base: PartitionState = PartitionState(),  # noqa: B008  immutable
        *,
        budget_bytes: int = 256 << 20,
    ) -> None:
        self._specs = specs_by_name(specs)
        self._budget = budget_bytes
        self._expired = dict(base.expired)
        self._applied = Applied(base.sequence, base.lineage)
        self._scratch: str | None = None
        self._spilled: dict[str, list[FileRef]] = {name: [] for name in self._specs}
        self._fresh: dict[str, list[Layer]] = {name: [] for name in self._specs}
        self._numbers = count(1)
        self._settled: dict[str, Segment] = {}
        self._files: dict[str, list[RowSource]] = {name: [] for name in self._specs}
        if objects is not None:
            for name, spec in self._specs.items():
                own = [ref for ref in base.files if ref.table == name]
                self._files[name] = open_sources(objects, spec, own)

    @property
    def applied(self) -> Applied:
        """The sequence and lineage id last applied."""
        return self._applied

    @property
    def expired(self) -> Mapping[str, int]:
        """Per table the bound at or below which rows are forgotten."""
        return dict(self._expired)

    def lookup(self, table: str, keys: pa.Table) -> Lookup:
        """Rows for these keys, aligned with them; reads the blocks that may hold them."""
        return self._table(table).lookup(keys)

    def scan(
        self,
        table: str,
        lower: Key | None = None,
        upper: Key | None = None,
        *,
        prefix: Key = (),
        reverse: bool = False,
        folded: bool = True,
    ) -> Iterator[pa.Table]:
        """Live rows of a range of keys, band by band."""
        keys = key_range(spec_of(self._specs, table), prefix, lower, upper)
        rows = self._table(table)
        if not folded:
            return rows.loose(keys)
        return self._scan_all(rows, table, reverse) if keys.whole else rows.scan(keys, reverse=reverse)

    def _scan_all(self, rows: FileTable, table: str, reverse: bool) -> Iterator[pa.Table]:
        """A scan of everything. What is small is kept folded, so that it is folded once."""
        whole, held, begun = [], 0, self._applied
        for batch in rows.scan(EVERYTHING, reverse=reverse):
            held += batch.nbytes
            whole.append(batch)
            if held > self._budget // BAND_SHARE:
                whole = []
            yield batch
        if whole and not reverse and table not in self._settled and self._applied is begun:
            self._settled[table] = Segment(self._specs[table], [Layer(PUT, pa.concat_tables(whole), ordered=True)])

    def ranges(
        self,
        table: str,
        prefixes: pa.Table,
        lower: pa.Array | pa.ChunkedArray | None = None,
        upper: pa.Array | pa.ChunkedArray | None = None,
    ) -> Ranges:
        """Rows of many prefixes at once, each with its own interval."""
        return self._table(table).ranges(prefixes, lower, upper)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """Keep the changes in RAM; over the budget, spill."""
        check_sequence(self._applied, applied)
        admitted = validate_changes(self._specs, changes)
        fresh = {name: self._fresh[name] + admitted.get(name, []) for name in self._specs}
        bounds = {name: part.expire for name, part in changes.items() if part.expire is not None}
        spilled = self._spill_over(fresh)
        superseded = [ref for name in spilled for ref in self._spilled[name] if ref not in spilled[name]]
        self._fresh, self._spilled = fresh, self._spilled | spilled
        for name in admitted:
            self._settled.pop(name, None)
        for name, bound in bounds.items():
            self.expire(name, bound)
        self._applied = applied
        for ref in superseded:
            with contextlib.suppress(UnavailableError):  # the folder goes with the store
                self._own.delete(ref.path)

    def expire(self, table: str, bound: int) -> None:
        """Forget rows at or below ``bound``; a bound never goes back."""
        expiring(self._specs, table, bound)
        self._expired[table] = max(bound, self._expired.get(table, bound))

    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        """Live rows of every table in key order."""
        return {name: self.scan(name) for name in self._specs}

    def load(
        self, rows: Mapping[str, Iterable[pa.Table]], applied: Applied, expired: Mapping[str, int] | None = None
    ) -> None:
        """Fill an empty store with a snapshot: each table becomes one spilled file."""
        bounds = loadable(self._specs, self._applied, rows, expired)
        loaded = {}
        for name, batches in rows.items():
            spec = self._specs[name]
            loaded[name] = write_sorted(self._own, spec, "snapshot", self._name(), in_order(spec, batches))
        self._spilled |= loaded
        self._applied, self._expired = applied, bounds

    def close(self) -> None:
        """Let files go and remove the scratch folder. Closing twice is fine."""
        self._settled = {}
        self._files = {name: [] for name in self._specs}
        self._fresh = {name: [] for name in self._specs}
        self._spilled = {name: [] for name in self._specs}
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _table(self, table: str) -> FileTable:
        spec = spec_of(self._specs, table)
        if table in self._settled:
            return FileTable(spec, [self._settled[table]], self._expired.get(table), self._budget)
        sources: list[RowSource] = list(self._files[table])
        sources += open_sources(self._own, spec, self._spilled[table]) if self._spilled[table] else []
        if self._fresh[table]:
            sources.append(Segment(spec, self._fresh[table]))
        return FileTable(spec, sources, self._expired.get(table), self._budget // BAND_SHARE)

    def _spill_over(self, fresh: dict[str, list[Layer]]) -> dict[str, list[FileRef]]:
        """Write the largest tables of ``fresh`` out until the rest fits; what was written, per table.

        A quarter of the budget holds fresh changes: folding makes copies of them.
        """
        sizes = {name: sum(layer.rows.nbytes for layer in layers) for name, layers in fresh.items()}
        spilled: dict[str, list[FileRef]] = {}
        while sum(sizes.values()) > self._budget // 4:
            name = max(sizes, key=lambda table: sizes[table])
            spilled[name] = self._spill(self._specs[name], fresh[name])
            fresh[name], sizes[name] = [], 0
        return spilled

    def _spill(self, spec: TableSpec, layers: list[Layer]) -> list[FileRef]:
        """The table's spilled files with ``layers`` as one more, or all in one when they are many."""
        spilled = [*self._spilled[spec.name], *self._fold(spec, [Segment(spec, layers)])]
        if len(spilled) <= MAX_SPILLED:
            return spilled
        return self._fold(spec, open_sources(self._own, spec, spilled))

    def _fold(self, spec: TableSpec, sources: Sequence[RowSource]) -> list[FileRef]:
        table = FileTable(spec, sources, self._expired.get(spec.name), self._budget // BAND_SHARE)
        return fold_into(self._own, spec, table, "run", self._name())

    @property
    def _own(self) -> Objects:
        """The scratch folder, made when it is first needed."""
        if self._scratch is None:
            self._scratch = tempfile.mkdtemp(prefix="tidestate-spill-")
        return Objects(self._scratch)

    def _name(self) -> SegmentName:
        attempt, number = uuid.uuid4().hex, next(self._numbers)
        return SegmentName("spill", 0, 1, number, number, attempt, "", attempt, number)
