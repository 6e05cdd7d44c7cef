"""A writer of durable partition state for tests: what `operators.partition` does, for any tables and changes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from statestore.changes import TableChanges
from statestore.compaction import compact, live_files, plan
from statestore.objects import Objects
from statestore.segments import FileRef, PartitionState, SegmentName, write_segment
from statestore.tables import TableSpec


def segment_name(first: int, last: int, segment: str, previous: str = "") -> SegmentName:
    """A name as an attempt would choose it."""
    attempt = uuid.uuid4().hex
    return SegmentName("data/windows/0", "windows", 0, 1, first, last, segment, previous, attempt)


def advance(
    objects: Objects,
    specs: Sequence[TableSpec],
    base: PartitionState,
    changes: Mapping[str, TableChanges],
    sequence: int,
    *,
    max_files: int = 12,
    snapshot_every: int = 50,
) -> PartitionState:
    """Write ``changes`` over ``base`` as checkpoint ``sequence``, folding files first where the limits ask for it."""
    lineage = uuid.uuid4().hex
    asked = {name: c.expire for name, c in changes.items() if c.expire is not None}
    expired = base.expired | {name: max(bound, base.expired.get(name, bound)) for name, bound in asked.items()}
    files: list[FileRef] = []
    wrote, floor = False, base.floor
    for spec in specs:
        kept = live_files([ref for ref in base.files if ref.table == spec.name], expired)
        chosen = plan(kept, max_files=max_files, snapshot_every=snapshot_every, sequence=sequence, partition=0)
        if chosen is not None:
            floor = max(floor, kept[chosen[1] - 1].last)
            kept = compact(objects, spec, kept, chosen, expired.get(spec.name), _folded, mapped=True)
        layers = changes[spec.name].layers() if spec.name in changes else []
        if layers:
            name = segment_name(sequence, sequence, lineage, base.lineage)
            kept = (*kept, write_segment(objects, spec, layers, "changelog", name))
            wrote = True
        assert len(kept) <= max_files
        files += kept
    now = (lineage, sequence) if wrote else (base.lineage, base.sequence)
    return PartitionState(tuple(files), expired, *now, floor)


def _folded(first: FileRef, last: FileRef) -> SegmentName:
    return segment_name(first.first, last.last, last.segment, first.previous)
