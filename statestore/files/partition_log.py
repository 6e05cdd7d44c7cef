"""The durable log of one state partition: a change set becomes a segment, and folding keeps the files few.

Nothing here publishes: files get fresh names that nobody refers to until a manifest names the state returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from tidestate.statestore.files.compaction import live_levels, plan
from tidestate.statestore.files.folding import BAND_SHARE, LevelFolder
from tidestate.statestore.files.refs import FileRef, PartitionState, SegmentName, files_by_table, levels_of
from tidestate.statestore.files.resident import fold_small, grow, is_small
from tidestate.statestore.files.segments import write_segments
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.validation import specs_by_name, validate_changes


@dataclass(frozen=True)
class PartitionLog:
    """Where one attempt writes the files of one state partition. ``attempt`` is an id nobody else uses;
    ``folding`` is entered while files are folded."""

    objects: Objects
    specs: Sequence[TableSpec]
    config: StoreConfig
    operator: str
    partition: int
    partitions: int
    attempt: str
    folding: Callable[[], AbstractContextManager[None]] = nullcontext

    def append(self, base: PartitionState, changes: ChangeSet, sequence: int) -> PartitionState:
        """Write ``changes`` as checkpoint ``sequence`` over ``base``; an empty change set writes nothing.

        Raises what `validate_changes` raises, before anything is written; `UnavailableError` when storage
        refuses and `CorruptionError` when a file to be folded is damaged: files that nobody names may remain.
        """
        admitted = validate_changes(specs_by_name(self.specs), changes)
        asked = {table: part.expire for table, part in changes.items() if part.expire is not None}
        expired = base.expired | {table: max(bound, base.expired.get(table, bound)) for table, bound in asked.items()}
        files: list[FileRef] = []
        wrote, floor, by_table = False, base.floor, files_by_table(base.files)
        for spec in self.specs:
            own, bound = by_table.get(spec.name, []), expired.get(spec.name)
            with self.folding():
                kept, folded = self._folded(spec, own, bound, sequence)
            floor = max(floor, folded)
            layers, written = admitted.get(spec.name, []), list[FileRef]()
            if layers:
                name = self._name(sequence, sequence, sequence, self.attempt, base.lineage)
                written = write_segments(self.objects, spec, layers, name)
                wrote = True
            if self._decoded and (written or len(kept) != len(own)):
                # A fold has kept what it left; else only files whose rows have expired are gone.
                before = kept if folded else own
                grow(self.objects, spec, before, kept + written, layers, bound, self.config.budget_bytes)
            files += kept + written
        lineage, sequence = (self.attempt, sequence) if wrote else (base.lineage, base.sequence)
        return PartitionState(tuple(files), expired, lineage, sequence, floor)

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
