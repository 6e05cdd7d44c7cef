"""The durable log of one state partition: a change set becomes segments, the small ones in one file, a bundle, and
folding keeps the files few.

Nothing here publishes: files get fresh names that nobody refers to until a manifest names the state returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from tidestate.statestore.files.bundle import Bundle
from tidestate.statestore.files.compaction import live_levels, plan
from tidestate.statestore.files.folding import BAND_SHARE, LevelFolder
from tidestate.statestore.files.refs import FileRef, PartitionState, SegmentName, files_by_table, levels_of
from tidestate.statestore.files.resident import fold_small, grow, is_small
from tidestate.statestore.files.segments import write_segments
from tidestate.statestore.spec.changes import ChangeSet, Layer
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.validation import specs_by_name, validate_changes


@dataclass(frozen=True)
class _TableFiles:
    """What becomes of the files of one table in one checkpoint."""

    spec: TableSpec
    before: list[FileRef]
    """As the checkpoint before has them."""
    kept_files: list[FileRef]
    """Those that are still needed, folded where it was time."""
    fold_floor: int
    """Up to which sequence they were folded; 0: not at all."""
    layers: list[Layer]
    """The changes of this checkpoint."""
    segments: list[FileRef]
    """The files with these changes, each named as if it were alone."""
    bound: int | None
    """Rows up to here have expired."""


@dataclass(frozen=True)
class PartitionLog:
    """Where one attempt writes the files of one state partition. ``attempt`` is an id nobody else uses;
    ``folding`` is entered while files are folded. Segments of ``separate_tables`` are never in a bundle: a job may go
    on without these tables, so the loss of their files must not be that of others.
    """

    objects: Objects
    specs: Sequence[TableSpec]
    config: StoreConfig
    operator: str
    partition: int
    partitions: int
    attempt: str
    folding: Callable[[], AbstractContextManager[None]] = nullcontext
    separate_tables: Collection[str] = ()

    def append(self, base: PartitionState, changes: ChangeSet, sequence: int) -> PartitionState:
        """Write ``changes`` as checkpoint ``sequence`` over ``base``; an empty change set writes nothing.

        Raises what `validate_changes` raises, before anything is written; `UnavailableError` when storage
        refuses and `CorruptionError` when a file to be folded is damaged: files that nobody names may remain.
        """
        admitted = validate_changes(specs_by_name(self.specs), changes)
        asked = {table: part.expire for table, part in changes.items() if part.expire is not None}
        expired = base.expired | {table: max(bound, base.expired.get(table, bound)) for table, bound in asked.items()}
        name, by_table = self._name(*(sequence,) * 3, self.attempt, base.lineage), files_by_table(base.files)
        bundle, tables = Bundle(self.objects, name.bundle_path), list[_TableFiles]()
        for spec in self.specs:
            before, bound = by_table.get(spec.name, []), expired.get(spec.name)
            with self.folding():
                kept_files, fold_floor = self._folded(spec, before, bound, sequence)
            layers = admitted.get(spec.name, [])
            writer = self.objects if spec.name in self.separate_tables else bundle
            segments = write_segments(writer, spec, layers, name) if layers else []
            tables.append(_TableFiles(spec, before, kept_files, fold_floor, layers, segments, bound))
        # Only now is it known how large the bundle is, and with that what a manifest says of each part.
        bundle.write()
        files: list[FileRef] = []
        for table in tables:
            segments = bundle.located(table.segments)
            if self._decoded:
                self._keep_decoded(table, segments)
            files += table.kept_files + segments
        floor = max([base.floor, *(table.fold_floor for table in tables)])
        wrote = any(table.segments for table in tables)
        lineage, sequence = (self.attempt, sequence) if wrote else (base.lineage, base.sequence)
        return PartitionState(tuple(files), expired, lineage, sequence, floor)

    def _keep_decoded(self, table: _TableFiles, segments: list[FileRef]) -> None:
        """Let the rows of a small table, with the new ``segments`` as they are named now, stay decoded for the next
        step.
        """
        if segments or len(table.kept_files) != len(table.before):
            # A fold has kept what it left; else only files whose rows have expired are gone.
            before, after = table.kept_files if table.fold_floor else table.before, table.kept_files + segments
            grow(self.objects, table.spec, before, after, table.layers, table.bound, self.config.budget_bytes)

    @property
    def _decoded(self) -> bool:
        """Whether small tables stay decoded for the next step: of a store that has no rows of its own."""
        return self.config.name == "parquet"

    def _folded(
        self, spec: TableSpec, own: Sequence[FileRef], bound: int | None, sequence: int
    ) -> tuple[list[FileRef], int]:
        """The live ones of a table's ``own`` files, folded where it is time; and up to which sequence they now are, 0
        where nothing was folded.
        """
        floor, budget_bytes = 0, self.config.budget_bytes
        levels = live_levels(levels_of(own), spec, bound)
        named = partial(self._named, sequence)
        folder = LevelFolder(self.objects, spec, bound, budget_bytes // BAND_SHARE, named)
        for fold in plan(levels, self.config, self.partition, spec):
            picked = levels[fold.first : fold.last]
            floor = max(floor, *(ref.last for level in picked for ref in level))
            # Nothing lies below the oldest level, so nothing there needs hiding: what is left is a snapshot.
            lowest = fold.first == 0
            if self._decoded and fold.piece is None and picked == levels and is_small(own, budget_bytes):
                name, block_bytes = named([ref for level in picked for ref in level]), folder.most_in_block
                snapshot = fold_small(self.objects, spec, own, name, bound, budget_bytes, block_bytes)
                made = [tuple(snapshot)] if snapshot else []
            elif fold.piece is None:
                made = folder.whole(picked, lowest=lowest)
            else:
                made = folder.piece(picked, fold.piece, lowest=lowest)
            levels[fold.first : fold.last] = made
        return [ref for level in levels for ref in level], floor

    def _named(self, sequence: int, files: Sequence[FileRef]) -> SegmentName:
        """A folded file stands for all segments up to the last one it holds, so it carries that one's id."""
        oldest, newest = files[0], max(files, key=lambda ref: ref.last)
        return self._name(sequence, oldest.first, newest.last, newest.segment, oldest.previous)

    def _name(self, written: int, first: int, last: int, segment: str, previous: str) -> SegmentName:
        where = (self.operator, self.partition, self.partitions)
        return SegmentName(*where, first, last, segment, previous, self.attempt, written)
