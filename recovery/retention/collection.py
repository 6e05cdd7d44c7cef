"""Collecting old checkpoints: the boundary first, then their manifests, then the files that nobody needs any more.

Manifests say what is needed; listing a folder only finds what may go. It can die anywhere and run again, twice at
once, and beside a running job: docs/PROTOCOL.md says why.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from tidestate.recovery.log import acknowledgements
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path, now_us
from tidestate.recovery.log.listing import manifests_gone, root_further
from tidestate.recovery.log.manifest import Manifest, files_of
from tidestate.recovery.log.outputs import Output
from tidestate.recovery.log.pins import fork_pins, remove
from tidestate.recovery.log.prefetch import each
from tidestate.recovery.log.ranges import outside
from tidestate.recovery.log.records import (
    BOUNDARIES,
    INDEX,
    Boundary,
    Pin,
    boundary_path,
    held_pins,
    read_part,
    read_pins,
    seal,
)
from tidestate.recovery.log.traces import with_files, written
from tidestate.recovery.retention.rules import (
    HOUR_US,
    Known,
    Parts,
    Retention,
    bases_read,
    deletable,
    limit,
    next_boundary,
    reachable,
    unacknowledged,
)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import ConflictError, CorruptionError, NotFoundError
from tidestate.statestore.files.segments import FileRef
from tidestate.statestore.storage.objects import Objects


@dataclass(frozen=True)
class Collected:
    """What goes, or went: manifests up to the boundary, files and their bytes; and what stays all the same.

    ``unacknowledged`` pane files are old enough, but no sink has acknowledged them. ``freed`` are the roots that this
    one was forked from and needs no longer: its pins there are taken out.
    """

    boundary: int
    checkpoints: tuple[int, ...]
    files: tuple[str, ...]
    bytes: int
    kept: int
    pinned: tuple[int, ...]
    panes_gone: int
    late_gone: int
    unacknowledged: int
    freed: tuple[str, ...]


def plan_collection(checkpoint: Checkpoint, retention: Retention, at_us: int | None = None) -> Collected:
    """What `collect` would do now; nothing is changed.

    Raises `NotFoundError` for a root without checkpoints, `CorruptionError` where a manifest that counts or is pinned
    is damaged or gone, the newest one too: then nobody knows which files it needs.
    """
    at_us = now_us() if at_us is None else at_us
    known = survey(checkpoint)
    bound = limit(known, retention, at_us)
    boundary, parts = next_boundary(known, bound, retention, at_us, checkpoint.writer)
    named = [(ref, entries) for ref, entries in parts if ref is not None]
    parts += [(ref, []) for ref, _ in known.entries if ref not in [one for one, _ in named]]
    return _Sweep(checkpoint, known, boundary, parts, retention, at_us).planned()


def collect(
    checkpoint: Checkpoint,
    retention: Retention,
    at_us: int | None = None,
) -> Collected:
    """Collect what ``retention`` does not keep.

    Raises as `plan_collection`, and `ConflictError` where another collection was faster: run it again. What was
    begun is harmless, and the next run finishes it.
    """
    at_us = now_us() if at_us is None else at_us
    known = survey(checkpoint)
    checkpoint.settle()  # what is kept is kept for good before anything else goes
    bound = limit(known, retention, at_us)
    boundary, parts = next_boundary(known, bound, retention, at_us, checkpoint.writer)
    boundary, parts = _publish(checkpoint, known, boundary, parts)
    # Read after the boundary: who pinned before it is seen here, who pins after it sees the boundary.
    pins = read_pins(checkpoint.objects)
    # And these after the pins: a reset that has given its pin back is there, with the older files that it names.
    newer = {one: checkpoint.load(one).manifest for one in checkpoint.stored_ids() if one > known.head.id}
    pinned = _pinned(checkpoint, pins, boundary.id, known.manifests)
    manifests = {**known.manifests, **newer, **pinned}
    known = replace(known, boundary=boundary, pins=pins, manifests=manifests, entries=parts)
    return _Sweep(checkpoint, known, boundary, parts, retention, at_us).run()


def survey(checkpoint: Checkpoint) -> Known:
    """All that a root has, read."""
    # In this order: what leaves a trace has been published, and is listed.
    files = written(checkpoint.objects)
    traces = with_files(checkpoint.objects, files)
    listing = checkpoint.listed()
    left, boundary = listing.left, listing.boundary
    if not left:
        checkpoint.newest()  # raises where there were any
        raise NotFoundError(
            "this root has no checkpoint yet: start the job", code="no-such-checkpoint", root=checkpoint.objects.root
        )
    try:
        head = checkpoint.load(left[-1]).manifest
        if beyond := traces.beyond(head.id, head.spark):
            raise root_further(checkpoint.objects.root, head.id, beyond)
        if lost := outside(listing.missing, head.abandoned):
            raise manifests_gone(lost)
        head = msgspec.structs.replace(head, delivered=acknowledgements.delivered(checkpoint, head))
        manifests = dict(_manifests(checkpoint, left, head))
        entries: Parts = [(part, read_part(checkpoint.objects, part)) for part in boundary.outputs]
    except (NotFoundError, CorruptionError):
        if checkpoint.boundary() != boundary:
            raise _moved() from None
        raise
    pins = read_pins(checkpoint.objects)
    manifests |= _pinned(checkpoint, pins, boundary.id, manifests)
    return Known(boundary, pins, head, manifests, listing.stored, entries, files)


def _manifests(checkpoint: Checkpoint, left: list[int], head: Manifest) -> Iterator[tuple[int, Manifest]]:
    for number, read in checkpoint.loads(left):
        try:
            yield number, read().manifest
        except CorruptionError:
            if not head.abandons(number):
                raise


def _pinned(
    checkpoint: Checkpoint, pins: list[Pin], bound: int, known: Mapping[int, Manifest]
) -> dict[int, Manifest]:
    """Manifests at or below the boundary that are kept by pins."""
    held, found = held_pins(checkpoint.objects), {}
    for pin in pins:
        if pin.checkpoint <= bound and pin.checkpoint not in known:
            try:
                found[pin.checkpoint] = checkpoint.load(pin.checkpoint).manifest
            except NotFoundError:
                if pin.name in held:
                    raise CorruptionError(
                        "the manifest of a pinned checkpoint is gone: put it back, or take out the pin",
                        code="pin-broken",
                        pin=pin.name,
                        path=manifest_path(pin.checkpoint),
                    ) from None
    return found


def _publish(checkpoint: Checkpoint, known: Known, boundary: Boundary, parts: Parts) -> tuple[Boundary, Parts]:
    """Make the boundary count, its index first; the one that is there where nothing would change."""
    was = known.boundary
    facts = ("id", "panes_gone", "late_gone")
    same = all(getattr(was, fact) == getattr(boundary, fact) for fact in facts)
    if same and [ref for ref, _ in parts] == list(was.outputs):
        checkpoint.objects.settle(BOUNDARIES)  # who published it may have died before it was durable
        return was, parts
    written = [(ref or _write_part(checkpoint.objects, boundary.number, entries), entries) for ref, entries in parts]
    boundary = msgspec.structs.replace(boundary, outputs=tuple(ref for ref, _ in written))
    try:
        checkpoint.objects.create(boundary_path(boundary.number), seal(boundary))
    except ConflictError:
        raise _moved() from None
    if checkpoint.boundary().number != boundary.number:
        raise _moved()  # our number had been taken and given up long ago
    return boundary, list(written)


def _write_part(objects: Objects, number: int, entries: list[Output]) -> FileRef:
    data = msgspec.json.encode(entries)
    path = f"{INDEX}/{number:020d}-{uuid.uuid4().hex}.json"
    objects.put(path, data)
    return FileRef(path, len(data), checksum(data), len(entries), first=entries[0].id, last=entries[-1].id)


def _moved() -> ConflictError:
    return ConflictError("another collection is at work here: run it again later", code="collection-moved")


@dataclass(frozen=True)
class _Sweep:
    """Deleting what is not needed once a boundary counts."""

    checkpoint: Checkpoint
    known: Known
    boundary: Boundary
    parts: Parts
    retention: Retention
    at_us: int

    def planned(self) -> Collected:
        """What is deleted."""
        known, boundary = self.known, self.boundary
        needed = reachable(known, boundary, self.parts)
        files = deletable(known, boundary, needed, self.at_us - self.retention.grace_us)
        index = written(self.checkpoint.objects, (INDEX,))
        files += [path for path, number in index.items() if number <= known.boundary.number and path not in needed]
        taken = written(self.checkpoint.objects, (acknowledgements.FOLDER,))
        files += [path for path, number in taken.items() if number <= boundary.id and number not in known.pinned]
        files += self._left_by_the_dead()
        return Collected(
            boundary=boundary.id,
            checkpoints=tuple(n for n in known.stored if n <= boundary.id and n not in known.pinned),
            files=tuple(files),
            bytes=self._bytes(files),
            kept=sum(number > boundary.id for number in known.stored),
            pinned=tuple(sorted(known.pinned)),
            panes_gone=boundary.panes_gone,
            late_gone=boundary.late_gone,
            unacknowledged=unacknowledged(known, self.retention, self.at_us),
            freed=tuple(dict.fromkeys(base.root for base, _ in self._unneeded())),
        )

    def run(self) -> Collected:
        """Delete: manifests, so that nobody opens what is about to lose its files, then files."""
        planned, objects = self.planned(), self.checkpoint.objects
        newest = boundary_path(self.known.boundary.number)
        older = [path for name in objects.names(BOUNDARIES) if (path := f"{BOUNDARIES}/{name}") < newest]
        manifests = [manifest_path(number) for number in planned.checkpoints]
        for what, paths in (("manifests", manifests), ("files", planned.files), ("boundaries", older)):
            for _, deleted in each(self.checkpoint.seen, what, objects.delete, paths):
                deleted()
        for base, pin in self._unneeded():
            remove(base, pin.name)
        return planned

    def _unneeded(self) -> Iterator[tuple[Objects, Pin]]:
        """Our pins below roots of which no checkpoint that is left needs a file: so no later one ever will."""
        objects, read = self.checkpoint.objects, bases_read(self.known, self.boundary)
        for number in {*range(1, len(objects.bases) + 1)} - read:
            base = objects.at(number)
            yield from ((base, pin) for pin in fork_pins(base, objects.root))

    def _left_by_the_dead(self) -> list[str]:
        """Halves of files, where nobody has written for so long that nobody will."""
        objects, before_us = self.checkpoint.objects, self.at_us - max(self.retention.grace_us, HOUR_US)
        return [path for path, changed_us in objects.unfinished("") if changed_us < before_us]

    def _bytes(self, files: list[str]) -> int:
        """Of most files a manifest knows the size; storage is asked for the others."""
        sizes: dict[str, int] = {}
        for manifest in self.known.manifests.values():
            sizes |= {ref.path: ref.bytes for ref in files_of(manifest)}
        total = 0
        for path in files:
            try:
                total += sizes[path] if path in sizes else self.checkpoint.objects.size(path)
            except NotFoundError:
                continue
        return total
