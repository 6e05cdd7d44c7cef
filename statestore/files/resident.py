"""Small tables that stay decoded between steps, in memory that the budget of a store bounds.

A step opens its state partition, reads some of its tables and writes a segment for each that it changes; the next
step would read all of these files again, most of which this process wrote a moment ago. So a table whose files are
small is kept here whole, as `settled` layers, under the **list of its files**. That makes it exact:

- A file never changes under its name, and a name has a random part. Rows that stand under a list of files are those
  that the files hold, whoever asks: an attempt that died, a rewind or another task has another list.
- After a step its table is kept under the list with the new segment in it, beside the older list. If the checkpoint
  is not published, the next attempt begins from the older list again, and nobody ever asks for the newer one.
- A local file, or this host's copy of a remote one, is known again by its size, time and number, as footers are; and
  what was written here is read back once and compared with its checksum before that. So damage is noticed no later
  than without all this.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidestate.statestore.files import sortedfile
from tidestate.statestore.files.filetable import FileTable, RowSource, Segment, open_sources
from tidestate.statestore.files.refs import FileRef, Location, SegmentName
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.files.sortedfile import write_sorted
from tidestate.statestore.spec.changes import PUT, Layer
from tidestate.statestore.spec.keyrange import EVERYTHING, Key, KeyRange
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.layers import live
from tidestate.statestore.table.settling import is_settled_table, owned, settled

BUDGET_SHARE = 8
"""All tables that stay decoded in a process take this share of the budget of a store at most; one alone, a share of
that."""
MOST_BYTES = 32 << 20
"""And no more than this, whatever the budget."""

ResidentName = tuple[str, tuple[str, ...], TableSpec, tuple[FileRef, ...]]
"""A root with its bases, a table, and the list of its files."""


@dataclass
class Resident:
    """A table in memory: its layers, oldest first."""

    layers: list[Layer]
    versions: dict[Location, tuple[int, ...] | None]
    """Of each file, or part of a bundle, what `Objects.local_version` said when it was last compared; None: never."""
    older: ResidentName | None = None
    """The list of files that this one follows."""
    bytes: int = 0

    def __post_init__(self) -> None:
        # Of rows in memory of their own these are all that they keep alive, and are known without a look at the rows.
        self.bytes = sum(layer.rows.get_total_buffer_size() for layer in self.layers)


class _Kept:
    """The tables that are kept, those that were asked for last at the end."""

    def __init__(self) -> None:
        self.tables: OrderedDict[ResidentName, Resident] = OrderedDict()
        self.bytes = 0

    def keep(self, name: ResidentName, resident: Resident) -> None:
        self.drop(name)
        self.tables[name] = resident
        self.bytes += resident.bytes

    def drop(self, name: ResidentName) -> None:
        resident = self.tables.pop(name, None)
        self.bytes -= resident.bytes if resident is not None else 0


_kept = _Kept()
_lock = threading.Lock()
# A fork waits for the lock: the child would find the cache half changed, and locked forever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def limit_of(budget_bytes: int) -> int:
    """How much may stay decoded in a process, by the budget of a store."""
    return min(MOST_BYTES, budget_bytes // BUDGET_SHARE)


def is_small(files: Sequence[FileRef], budget_bytes: int) -> bool:
    """Whether a table of these files stays decoded: together they are less than half a block of a folded file."""
    limit_bytes = min(sortedfile.BLOCK_BYTES // 2, limit_of(budget_bytes) // BUDGET_SHARE)
    return len(files) > 0 and sum(ref.bytes for ref in files) <= limit_bytes


def table_sources(
    objects: Objects, spec: TableSpec, files: Sequence[FileRef], budget_bytes: int, *, once: bool = False
) -> list[RowSource]:
    """As `open_sources`; a small table is one source, and stays decoded."""
    if is_small(files, budget_bytes):
        return [ResidentTable(objects, spec, files, limit_of(budget_bytes))]
    return open_sources(objects, spec, files, once=once)


class ResidentTable(Segment):
    """All rows of a small table, decoded; read when first asked, if they are not at hand."""

    def __init__(self, objects: Objects, spec: TableSpec, files: Sequence[FileRef], limit_bytes: int) -> None:
        super().__init__(spec, [])
        self._objects, self._files, self._limit_bytes, self._is_read = objects, tuple(files), limit_bytes, False

    def splits(self, keys: KeyRange) -> list[tuple[Key, int]]:
        """None: it is as small as a band."""
        return []

    def arrange(self, keys: KeyRange, limit_bytes: int) -> None:
        """Do nothing: it is small."""

    def _held(self, keys: KeyRange) -> list[Layer]:
        if not self._is_read:
            self._layers = _layers(self._objects, self._spec, self._files, self._limit_bytes)
            self._is_read = True
        return self._layers


def grow(
    objects: Objects,
    spec: TableSpec,
    before: Sequence[FileRef],
    after: Sequence[FileRef],
    written: Sequence[Layer],
    expired: int | None,
    budget_bytes: int,
) -> None:
    """A step has written a segment of these layers: what was kept under the list of files ``before`` it is kept under
    that ``after`` it too, with the new rows. ``expired``: the bound of the table after the step, as in every
    checkpoint that will have this list of files.
    """
    if not is_small(after, budget_bytes):
        return
    name, older = _name(objects, spec, before), Resident([], {})
    if before:
        with _lock:
            resident = _kept.tables.get(name)
        if resident is None:
            return
        older = resident
    layers = [*older.layers, *(Layer(layer.op, owned(layer.rows), layer.ordered) for layer in written)]
    versions = {ref.location: older.versions.get(ref.location) for ref in after}
    newer = Resident(live(spec, layers, expired), versions, name if before else None)
    _keep(_name(objects, spec, after), newer, limit_of(budget_bytes))


def fold_small(
    objects: Objects,
    spec: TableSpec,
    files: Sequence[FileRef],
    name: SegmentName,
    expired: int | None,
    budget_bytes: int,
    block_bytes: int,
) -> list[FileRef]:
    """Fold all files of a small table, those that have expired among them, into a snapshot; what is in it stays
    decoded. Returns its file, or none if no row is left. Raises what reading the files raises.
    """
    table = FileTable(spec, table_sources(objects, spec, files, budget_bytes), expired, budget_bytes)
    rows = pa.concat_tables([spec.no_rows, *table.scan()])
    snapshot = write_sorted(objects, spec, "snapshot", name, [rows], most_in_block=block_bytes)
    if is_small(snapshot, budget_bytes):
        layers, older = [Layer(PUT, owned(rows), ordered=True)], _name(objects, spec, files)
        resident = Resident(layers, {snapshot[0].location: None}, older)
        _keep(_name(objects, spec, snapshot), resident, limit_of(budget_bytes))
    return snapshot


def clear_residents() -> None:
    """Forget all tables, as in a new process."""
    with _lock:
        _kept.__init__()  # type: ignore[misc]


def resident_bytes() -> int:
    """Bytes of all rows that are kept."""
    with _lock:
        return _kept.bytes


def _name(objects: Objects, spec: TableSpec, files: Sequence[FileRef]) -> ResidentName:
    return objects.root, objects.bases, spec, tuple(files)


def _layers(objects: Objects, spec: TableSpec, files: tuple[FileRef, ...], limit_bytes: int) -> list[Layer]:
    """The settled layers of a table, kept or read. Raises what reading its files raises."""
    name = _name(objects, spec, files)
    with _lock:
        resident = _kept.tables.get(name)
    if resident is not None and _verified(objects, files, resident):
        if is_settled_table(resident.layers):
            with _lock:
                if name in _kept.tables:
                    _kept.tables.move_to_end(name)
            return resident.layers
        resident = Resident(settled(spec, resident.layers), resident.versions, resident.older)
    else:
        versions = {ref.location: objects.at(ref.root).local_version(ref.path) for ref in files}
        sources = open_sources(objects, spec, files)
        for source in sources:  # segments first, as a scan does: it decides which of several lost files is named
            source.arrange(EVERYTHING, sys.maxsize)
        layers = [layer for source in sources for layer in source.layers(EVERYTHING)]
        resident = Resident(settled(spec, layers), versions)
    _keep(name, resident, limit_bytes)
    return resident.layers


def _verified(objects: Objects, files: Sequence[FileRef], resident: Resident) -> bool:
    """Whether the files are still those whose rows are kept. Raises `CorruptionError` for one that never was."""
    for ref in files:
        root, last_version = objects.at(ref.root), resident.versions[ref.location]
        version = root.local_version(ref.path)
        if last_version is None:
            read_verified(objects, ref)  # of a bucket this makes the copy that is known from then on
            resident.versions[ref.location] = version or root.local_version(ref.path)
        elif version != last_version:
            return False
    return True


def _keep(name: ResidentName, resident: Resident, limit_bytes: int) -> None:
    """Keep a table, and no more than so many bytes of all. Of lists that follow each other the newest two stay."""
    with _lock:
        _kept.keep(name, resident)
        # An attempt that is made again needs the list before its segment, and nobody the one before that.
        if resident.older is not None and (older := _kept.tables.get(resident.older)) is not None and older.older:
            _kept.drop(older.older)
        # Those that were asked for longest ago go first; the new one too, if it alone is more.
        while _kept.bytes > limit_bytes:
            _kept.drop(next(iter(_kept.tables)))
