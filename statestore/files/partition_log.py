"""The durable log of one state partition: a change set becomes a segment, and folding keeps the files few.

Nothing here publishes: files get fresh names that nobody refers to until a manifest names the state returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statestore.admission import admit, specs_by_name
from statestore.changes import ChangeSet
from statestore.files.compaction import fold_into, live_files, plan
from statestore.files.filetable import FileTable, open_source
from statestore.files.segments import FileRef, PartitionState, SegmentName, write_segment
from statestore.objects import Objects
from statestore.parquet import BAND_SHARE
from statestore.store import StoreConfig
from statestore.tables import TableSpec


@dataclass(frozen=True)
class PartitionLog:
    """Where one attempt writes the files of one state partition. ``attempt`` is an id nobody else uses."""

    objects: Objects
    specs: Sequence[TableSpec]
    config: StoreConfig
    operator: str
    partition: int
    partitions: int
    attempt: str

    def append(self, base: PartitionState, changes: ChangeSet, sequence: int) -> PartitionState:
        """Write ``changes`` as checkpoint ``sequence`` over ``base``; an empty change set writes nothing.

        Raises what `statestore.admission.admit` raises, before anything is written; `UnavailableError` when storage
        refuses and `CorruptionError` when a file to be folded is damaged: files that nobody names may remain.
        """
        admitted = admit(specs_by_name(self.specs), changes)
        asked = {table: part.expire for table, part in changes.items() if part.expire is not None}
        expired = base.expired | {table: max(bound, base.expired.get(table, bound)) for table, bound in asked.items()}
        files: list[FileRef] = []
        wrote, floor = False, base.floor
        for spec in self.specs:
            kept, folded = self._folded(spec, base, expired)
            floor = max(floor, folded)
            if layers := admitted.get(spec.name):
                name = self._name(sequence, sequence, self.attempt, base.lineage)
                kept = (*kept, write_segment(self.objects, spec, layers, name))
                wrote = True
            files += kept
        lineage, sequence = (self.attempt, sequence) if wrote else (base.lineage, base.sequence)
        return PartitionState(tuple(files), expired, lineage, sequence, floor)

    def _folded(
        self, spec: TableSpec, base: PartitionState, expired: dict[str, int]
    ) -> tuple[tuple[FileRef, ...], int]:
        """The table's live files, folded where it is time; and up to which sequence they now are."""
        bound = expired.get(spec.name)
        files = live_files([ref for ref in base.files if ref.table == spec.name], spec, bound)
        chosen = plan(files, self.config, self.partition)
        if chosen is None:
            return files, 0
        first, last = chosen
        picked = files[first:last]
        sources = [open_source(self.objects, spec, ref) for ref in picked]
        table = FileTable(spec, sources, bound, self.config.budget_bytes // BAND_SHARE)
        # A folded file stands for all segments up to the last one it holds, so it carries that one's id.
        name = self._name(picked[0].first, picked[-1].last, picked[-1].segment, picked[0].previous)
        # Nothing lies below the oldest file, so nothing there needs hiding: what is left is a snapshot.
        made = fold_into(self.objects, spec, table, "snapshot" if first == 0 else "run", name)
        return (*files[:first], *([made] if made else []), *files[last:]), picked[-1].last

    def _name(self, first: int, last: int, segment: str, previous: str) -> SegmentName:
        folder = f"data/{self.operator}/{self.partition}"
        where = (folder, self.operator, self.partition, self.partitions)
        return SegmentName(*where, first, last, segment, previous, self.attempt)
