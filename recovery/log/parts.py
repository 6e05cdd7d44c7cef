"""Manifest parts: the state partitions of an operator, where they are many, as a base, and changes over it.

A part is an immutable file with some partitions of one operator. The manifest names the parts with their checksums:
first those of the base, which have every partition once, then the changes, oldest first. Of a partition the entry of
the last part that has it counts. A checkpoint writes a part with the partitions that it changes; many small changes
are merged into one, and when they are as many entries as there are partitions, a new base replaces all parts.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec
from cachetools import FIFOCache

from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.recovery.log.manifest_file import InvalidManifest, check_entries
from tidestate.statestore.arrays import in_lots
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files.refs import FileRef, Location, PartitionState, state_folder
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.write_behind import WriteBehind

PART_BYTES = 4 << 20
"""About the size of a part of a base."""
MAX_CHANGES = 16
"""Parts with changes, at most."""
KEPT_BYTES = 64 << 20
"""The parts that are kept in memory, by their size as files."""

PartEntries = Mapping[int, PartitionState]
"""Partitions by number."""


class _Part(msgspec.Struct, frozen=True):
    operator: str
    partitions: dict[int, PartitionState]


# Made here, once: two threads that are the first to decode a type end the process.
_PART = msgspec.json.Decoder(_Part)


class Parts:
    """Reads and writes parts. Those that were read or written last are kept in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: FIFOCache[str, tuple[int, PartEntries]] = FIFOCache(KEPT_BYTES, getsizeof=lambda pair: pair[0])
        self._whole: FIFOCache[tuple[str, ...], tuple[PartitionState, ...]] = FIFOCache(8)

    def resolved(self, objects: Objects, manifest: Manifest) -> Manifest:
        """The manifest with all partitions. Raises `CorruptionError` if a part is damaged or gone."""
        if not any(one.base for one in manifest.operators.values()):
            return manifest
        operators = {
            name: msgspec.structs.replace(one, partitions=self._partitions(objects, name, one, manifest.id))
            if one.base
            else one
            for name, one in manifest.operators.items()
        }
        return msgspec.structs.replace(manifest, operators=operators)

    def written(self, objects: Objects, manifest: Manifest) -> Manifest:
        """The manifest with parts that have all its partitions, durable; unchanged ones are those of its operators.
        Raises `UnavailableError`: parts may remain that no manifest names.
        """
        with WriteBehind(objects.root, bases=objects.bases) as behind:
            operators = {
                name: self._written(behind, name, one, manifest.id) for name, one in manifest.operators.items()
            }
        return msgspec.structs.replace(manifest, operators=operators)

    def _written(self, objects: Objects, name: str, operator: OperatorState, checkpoint_id: int) -> OperatorState:
        now = operator.partitions
        if operator.is_inline:
            return msgspec.structs.replace(operator, count=0, base=(), copies=(), changes=())
        before = self._before(objects, name, operator, checkpoint_id)
        changed = {number: one for number, one in enumerate(now) if one is not before.get(number) != one}
        if changed:
            folder = f"{state_folder(name)}{checkpoint_id}"
            made = self._with_changes(objects, name, operator, changed, folder, checkpoint_id) if before else None
            operator = self._with_base(objects, name, operator, folder) if made is None else made
        self._remember(operator, now)
        return operator

    def _before(self, objects: Objects, name: str, operator: OperatorState, checkpoint_id: int) -> PartEntries:
        """The partitions that the operator's parts have; none if they are not of so many, or cannot be read."""
        if not operator.base or operator.count != len(operator.partitions):
            return {}
        try:
            return dict(enumerate(self._partitions(objects, name, operator, checkpoint_id)))
        except CorruptionError:
            return {}

    def _with_base(self, objects: Objects, name: str, operator: OperatorState, folder: str) -> OperatorState:
        """A new base of all partitions, each part twice: every checkpoint that follows needs it."""
        base, copies = [], []
        for entries in _cut(operator.partitions):
            ref, data = _encoded(name, entries, folder)
            copy = msgspec.structs.replace(ref, path=_path(folder))
            for one in (ref, copy):
                objects.put(one.path, data)
            self._keep(ref, entries)
            base.append(ref)
            copies.append(copy)
        return msgspec.structs.replace(
            operator, count=len(operator.partitions), base=tuple(base), copies=tuple(copies), changes=()
        )

    def _with_changes(
        self,
        objects: Objects,
        name: str,
        operator: OperatorState,
        changed: PartEntries,
        folder: str,
        checkpoint_id: int,
    ) -> OperatorState | None:
        """One more part with changes, with the youngest ones merged into it if there are many; None if it is time
        for a new base.
        """
        changes = operator.changes
        if sum(ref.rows for ref in changes) + len(changed) > len(operator.partitions):
            return None
        first = len(changes) if len(changes) < MAX_CHANGES else _young(changes, len(changed))
        entries: dict[int, PartitionState] = {}
        for ref in changes[first:]:
            entries |= self._entries(objects, name, operator, ref, checkpoint_id)
        ref, data = _encoded(name, dict(sorted({**entries, **changed}.items())), folder)
        objects.put(ref.path, data)
        self._keep(ref, {**entries, **changed})
        return msgspec.structs.replace(operator, changes=(*changes[:first], ref))

    def _partitions(
        self, objects: Objects, name: str, operator: OperatorState, checkpoint_id: int
    ) -> tuple[PartitionState, ...]:
        """All partitions of an operator that has parts."""
        with self._lock:
            known = self._whole.get(_key(operator))
        if known is not None:
            return known
        found: dict[int, PartitionState] = {}
        for ref in (*operator.base, *operator.changes):
            found |= self._entries(objects, name, operator, ref, checkpoint_id)
        if sorted(found) != list(range(operator.count)):
            raise _damaged(operator.base[0], "the parts do not cover every partition")
        return self._remember(operator, tuple(found[number] for number in range(operator.count)))

    def _entries(
        self, objects: Objects, name: str, operator: OperatorState, ref: FileRef, checkpoint_id: int
    ) -> PartEntries:
        """The partitions in a part, or in its copy if it is damaged."""
        with self._lock:
            known = self._read.get(ref.checksum)
        if known is not None:
            return known[1]
        data = _read_first(objects, (ref, *(one for one in operator.copies if one.checksum == ref.checksum)))
        entries = _decoded(data, name, operator, ref, checkpoint_id)
        self._keep(ref, entries)
        return entries

    def _keep(self, ref: FileRef, entries: PartEntries) -> None:
        with self._lock, suppress(ValueError):  # a part that is larger than all that is kept
            self._read[ref.checksum] = (ref.bytes, entries)

    def _remember(
        self, operator: OperatorState, partitions: tuple[PartitionState, ...]
    ) -> tuple[PartitionState, ...]:
        with self._lock:
            self._whole[_key(operator)] = partitions
        return partitions


def spared(manifest: Manifest, damaged: Container[Location]) -> set[Location]:
    """Of the places of ``damaged`` files the parts of this manifest with an intact copy."""
    pairs = [pair for one in manifest.operators.values() for pair in zip(one.base, one.copies, strict=True)]
    places = [tuple(ref.location for ref in pair) for pair in pairs]
    return {place for pair in places for place in pair if sum(one in damaged for one in pair) == 1}


def _key(operator: OperatorState) -> tuple[str, ...]:
    return tuple(ref.checksum for ref in (*operator.base, *operator.changes))


def _read_first(objects: Objects, refs: Sequence[FileRef]) -> bytes:
    """The bytes of the first of these files that is intact. Raises the error of the last one."""
    for ref in refs[:-1]:
        with suppress(CorruptionError):
            return _read(objects, ref)
    return _read(objects, refs[-1])


def _read(objects: Objects, ref: FileRef) -> bytes:
    try:
        return memoryview(read_verified(objects, ref)).tobytes()
    except CorruptionError as error:
        if error.code != "file-damaged":
            raise
        raise _damaged(ref, "its checksum differs") from error


def _encoded(name: str, entries: PartEntries, folder: str) -> tuple[FileRef, bytes]:
    data = msgspec.json.encode(_Part(name, dict(entries)))
    return FileRef(
        _path(folder), len(data), checksum(data), len(entries), first=min(entries), last=max(entries)
    ), data


def _decoded(data: bytes, name: str, operator: OperatorState, ref: FileRef, checkpoint_id: int) -> PartEntries:
    try:
        part = _PART.decode(data)
        check_entries(name, part.partitions, {spec.name for spec in operator.tables}, checkpoint_id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidManifest) as error:
        raise _damaged(ref, str(error).lower()) from None
    span = (min(part.partitions, default=0), max(part.partitions, default=0), len(part.partitions))
    if part.operator != name or span != (ref.first, ref.last, ref.rows):
        raise _damaged(ref, "its partitions are not those that the manifest names")
    return part.partitions


def _cut(partitions: Sequence[PartitionState]) -> Iterator[dict[int, PartitionState]]:
    """All partitions, in parts of about `PART_BYTES`."""
    lots = in_lots(enumerate(partitions), lambda pair: len(msgspec.json.encode(pair[1])), PART_BYTES)
    return (dict(lot) for lot in lots)


def _young(changes: Sequence[FileRef], entries: int) -> int:
    """Where the young changes begin that are merged: up to one that is clearly larger than they are together."""
    first = len(changes)
    while first and (len(changes) - first < MAX_CHANGES // 2 or changes[first - 1].rows <= 2 * entries):
        first -= 1
        entries += changes[first].rows
    return first


def _path(folder: str) -> str:
    return f"{folder}-{uuid.uuid4().hex}.partitions.json"


def _damaged(ref: FileRef, reason: str) -> CorruptionError:
    return CorruptionError(
        f"a part of the manifest is damaged ({reason}): nothing was changed; restore a good copy of this file, or "
        "go back: tidestate repair ROOT --to newest-good",
        code="manifest-part",
        path=ref.path,
    )
