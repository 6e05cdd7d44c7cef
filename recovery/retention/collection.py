"""Delete old checkpoints: first publish the boundary, then delete their manifests, then files that nothing needs.

Manifests define what is needed; a listing only finds candidates. A collection may crash anywhere and be run again,
run twice at a time, and run while the job does: docs/internals/protocol.md explains why.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from tidestate.recovery.log import acknowledgements
from tidestate.recovery.log.absent import manifests_gone, newer_manifests_gone, not_begun
from tidestate.recovery.log.boundary import Boundary, Pin
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path, now_us
from tidestate.recovery.log.manifest import Manifest, files_of, state_files
from tidestate.recovery.log.pins import fork_pins, remove_pin
from tidestate.recovery.log.ranges import outside
from tidestate.recovery.log.records import (
    BOUNDARIES,
    INDEX,
    PINS,
    boundary_path,
    complete_pins,
    read_part,
    read_pins,
    seal,
)
from tidestate.recovery.log.traces import with_file_traces, written_files
from tidestate.recovery.retention.requests import HOUR_US, collectable_requests
from tidestate.recovery.retention.rules import (
    CheckpointRetention,
    RetentionParts,
    RootContents,
    bases_read,
    collection_limit,
    deletable_files,
    next_boundary,
    reachable,
    unacknowledged,
)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import ConflictError, CorruptionError, NotFoundError, invariant
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects, put_all


@dataclass(frozen=True)
class Collected:
    """What a collection deletes: manifests up to the boundary, files and their bytes; and what it keeps.

    ``within_grace`` checkpoints are kept only because they were the newest within the grace. ``unacknowledged`` files
    of panes and ledgers are old enough, but no sink has acknowledged them. ``freed`` are the roots that this one was
    forked from and no longer needs: its pins there are removed.
    """

    boundary: int
    checkpoints: tuple[int, ...]
    files: tuple[str, ...]
    bytes: int
    kept: int
    within_grace: int
    pinned: tuple[int, ...]
    panes_gone: int
    further_gone: Mapping[str, int]
    """The outputs, of several, whose panes go up to a later checkpoint than ``panes_gone``, and that checkpoint."""
    late_gone: int
    unacknowledged: int
    freed: tuple[str, ...]


@dataclass(frozen=True)
class Collection:
    """A planned collection with its expected result, made on the boundary ``was`` and the checkpoint ``newest``.

    ``boundary`` is published after ``index``, the new files of its output index; it is ``was`` if nothing changes.
    ``sizes``: the files to delete, with their bytes.
    """

    result: Collected
    was: Boundary
    newest: int
    boundary: Boundary
    index: dict[str, bytes]
    sizes: Mapping[str, int]


def plan_collection(checkpoint: Checkpoint, retention: CheckpointRetention, at_us: int | None = None) -> Collection:
    """Plan a collection; nothing is written.

    Raises `NotFoundError` for a root without checkpoints, and `CorruptionError` if a manifest that counts or is
    pinned is damaged or gone: the files that it needs are unknown.
    """
    at_us = now_us() if at_us is None else at_us
    contents = survey(checkpoint)
    boundary, parts = next_boundary(
        contents, collection_limit(contents, retention, at_us), retention, at_us, checkpoint.writer
    )
    boundary, parts, index = _with_index(contents, boundary, parts)
    # A pinned manifest that cannot be read must stop a collection before its boundary is published.
    pinned_manifests = _pinned(checkpoint, list(contents.pins), boundary.id, contents.manifests)
    contents = replace(contents, manifests={**contents.manifests, **pinned_manifests})
    needed_paths = reachable(contents, boundary, parts)
    paths = deletable_files(contents, boundary, needed_paths, at_us - retention.grace_us)
    entries = written_files(checkpoint.objects, (INDEX,))
    paths += [path for path, number in entries.items() if number <= boundary.number and path not in needed_paths]
    delivery_files = written_files(checkpoint.objects, (acknowledgements.DELIVERED_FOLDER,))
    paths += [
        path for path, number in delivery_files.items() if number <= boundary.id and number not in contents.pinned
    ]
    paths += collectable_requests(checkpoint.objects, contents.head.epoch, retention.grace_us)
    # Unfinished files that have not been written to for so long that their writer must be gone.
    abandoned_us = max(retention.grace_us, HOUR_US)
    paths += [path for path, age_us in checkpoint.objects.unfinished("") if age_us > abandoned_us]
    sizes = dict(_sizes(checkpoint, contents, paths))
    result = Collected(
        boundary=boundary.id,
        checkpoints=tuple(n for n in contents.stored_ids if n <= boundary.id and n not in contents.pinned),
        files=tuple(sizes),
        bytes=sum(sizes.values()),
        kept=sum(number > boundary.id for number in contents.stored_ids),
        within_grace=_within_grace(contents, retention, boundary, at_us),
        pinned=tuple(sorted(contents.pinned)),
        panes_gone=boundary.panes_gone,
        further_gone=boundary.further_gone,
        late_gone=boundary.late_gone,
        unacknowledged=unacknowledged(contents, retention, at_us),
        freed=_roots(_unneeded(checkpoint.objects, bases_read(contents, boundary))),
    )
    return Collection(result, contents.boundary, contents.head.id, boundary, index, sizes)


def _within_grace(contents: RootContents, retention: CheckpointRetention, boundary: Boundary, at_us: int) -> int:
    limit = collection_limit(contents, replace(retention, grace="0 seconds"), at_us)
    return sum(boundary.id < number <= limit and number not in contents.pinned for number in contents.stored_ids)


def collect(checkpoint: Checkpoint, retention: CheckpointRetention, at_us: int | None = None) -> Collected:
    """Delete what ``retention`` does not keep. Raises as `plan_collection` and `execute_collection`."""
    return execute_collection(checkpoint, plan_collection(checkpoint, retention, at_us))


def execute_collection(checkpoint: Checkpoint, plan: Collection) -> Collected:
    """Delete what was planned, except what is needed by now: the job may be running. Returns what was deleted.

    Raises `ConflictError` if another collection was faster: run it again. An interrupted collection does no harm, and
    the next one finishes it.
    """
    objects = checkpoint.objects
    checkpoint.settle()  # what is kept must be durable before anything is deleted
    _publish(checkpoint, plan)
    result, idle_pins = _still_unneeded(checkpoint, plan)
    objects.settle(PINS)  # a pin that is gone must not be back after a power cut, without what it kept
    older = [path for name in objects.names(BOUNDARIES) if (path := f"{BOUNDARIES}/{name}") < _path(plan)]
    # Manifests first, so that no reader opens a checkpoint that is about to lose its files.
    _delete(checkpoint, "manifests", [manifest_path(number) for number in result.checkpoints])
    checkpoint.settle()  # nor may one be back without its files: a pin that came too late would make it count
    _delete(checkpoint, "files", result.files)
    _delete(checkpoint, "boundaries", older)
    for base, pin in idle_pins:
        remove_pin(base, pin.name)
    return result


def _delete(checkpoint: Checkpoint, kind: str, paths: Sequence[str]) -> None:
    """Delete these files, several at a time."""
    for _, delete in checkpoint.prefetch(kind, checkpoint.objects.delete, paths):
        delete()


def _still_unneeded(checkpoint: Checkpoint, plan: Collection) -> tuple[Collected, list[tuple[Objects, Pin]]]:
    """What to delete now that the boundary is published, and our pins in other roots that are no longer needed."""
    objects, boundary = checkpoint.objects, plan.boundary
    # Pins after the boundary: a pin made before it is read here, one made after it sees the boundary.
    pins = read_pins(objects)
    # Manifests after the pins: a reset that has removed its pin is published, and names the older files.
    newer = list(_newer(checkpoint, plan))
    manifests = [*newer, *_pinned(checkpoint, pins, boundary.id, {}).values()]
    pinned_ids = {pin.checkpoint for pin in pins}
    needed_paths = {ref.path for manifest in manifests for ref in boundary.needed(manifest) if ref.root == 0}
    needed_paths |= {
        path
        for path, number in written_files(objects, (acknowledgements.DELIVERED_FOLDER,)).items()
        if number in pinned_ids
    }
    sizes = {path: size for path, size in plan.sizes.items() if path not in needed_paths}
    read = {ref.root for manifest in manifests for ref in state_files(manifest)}
    idle_pins = [(base, pin) for base, pin in _unneeded(objects, read) if base.root in plan.result.freed]
    result = replace(
        plan.result,
        checkpoints=tuple(number for number in plan.result.checkpoints if number not in pinned_ids),
        files=tuple(sizes),
        bytes=sum(sizes.values()),
        pinned=tuple(sorted(pinned_ids)),
        freed=_roots(idle_pins),
    )
    return result, idle_pins


def _newer(checkpoint: Checkpoint, plan: Collection) -> Iterator[Manifest]:
    """The checkpoints published since the collection was planned."""
    for number in checkpoint.stored_ids():
        if number > plan.newest:
            try:
                yield checkpoint.load(number).manifest
            except NotFoundError:
                if checkpoint.boundary() == plan.boundary:
                    raise
                raise _moved() from None


def survey(checkpoint: Checkpoint) -> RootContents:
    """Read everything that decides about collection."""
    # Traces first: what has left one is published, so the listing contains it.
    files = written_files(checkpoint.objects)
    traces = with_file_traces(checkpoint.objects, files)
    listing = checkpoint.listing()
    left, boundary = listing.ids, listing.boundary
    if not left:
        checkpoint.newest()  # raises if there once were any
        raise not_begun(checkpoint.objects.root)
    try:
        head = checkpoint.load(left[-1]).manifest
        if beyond := traces.beyond(head.id, head.spark):
            raise newer_manifests_gone(checkpoint.objects.root, head.id, beyond)
        if gaps := outside(listing.missing, head.abandoned):
            raise manifests_gone(gaps)
        head = msgspec.structs.replace(head, delivered=acknowledgements.delivered(checkpoint, head))
        manifests = dict(_manifests(checkpoint, left, head))
        entries: RetentionParts = [(part, read_part(checkpoint.objects, part)) for part in boundary.outputs]
    except (NotFoundError, CorruptionError):
        if checkpoint.boundary() != boundary:
            raise _moved() from None
        raise
    pins = read_pins(checkpoint.objects)
    manifests |= _pinned(checkpoint, pins, boundary.id, manifests)
    return RootContents(boundary, pins, head, manifests, listing.stored, entries, files)


def _manifests(checkpoint: Checkpoint, left: list[int], head: Manifest) -> Iterator[tuple[int, Manifest]]:
    for number, read in checkpoint.load_each(left):
        try:
            yield number, read().manifest
        except CorruptionError:
            if not head.abandons(number):
                raise


def _pinned(
    checkpoint: Checkpoint, pins: list[Pin], bound: int, manifests: Mapping[int, Manifest]
) -> dict[int, Manifest]:
    """Pinned manifests at or below the boundary."""
    pinned_manifests = {}
    for pin in pins:
        if pin.checkpoint <= bound and pin.checkpoint not in manifests:
            try:
                pinned_manifests[pin.checkpoint] = checkpoint.load(pin.checkpoint).manifest
            except NotFoundError:
                if pin.name in complete_pins(checkpoint.objects):  # else it was removed
                    raise CorruptionError(
                        "the manifest of a pinned checkpoint is missing: restore it, or remove the pin",
                        code="pin-broken",
                        pin=pin.name,
                        path=manifest_path(pin.checkpoint),
                    ) from None
    return pinned_manifests


def _with_index(
    contents: RootContents, boundary: Boundary, parts: RetentionParts
) -> tuple[Boundary, RetentionParts, dict[str, bytes]]:
    """The boundary with its output index, and the new index files; the current boundary if nothing changes."""
    was, files = contents.boundary, dict[str, bytes]()
    facts = ("id", "panes_gone", "late_gone", "further_gone")
    is_unchanged = all(getattr(was, fact) == getattr(boundary, fact) for fact in facts)
    if is_unchanged and [ref for ref, _ in parts] == list(was.outputs):
        return was, parts, files
    index_parts: RetentionParts = []
    for ref, entries in parts:
        if ref is None:
            path, data = f"{INDEX}/{boundary.number:020d}-{uuid.uuid4().hex}.json", msgspec.json.encode(entries)
            ref = FileRef(path, len(data), checksum(data), len(entries), first=entries[0].id, last=entries[-1].id)
            files[path] = data
        index_parts.append((ref, entries))
    ids = [entry.id for _, entries in index_parts for entry in entries]
    invariant(all(left < right for left, right in pairwise(ids)), "each output is listed once, in order", ids=ids)
    return msgspec.structs.replace(boundary, outputs=tuple(ref for ref, _ in index_parts if ref)), index_parts, files


def _publish(checkpoint: Checkpoint, plan: Collection) -> None:
    """Publish the boundary, its index first."""
    objects, boundary = checkpoint.objects, plan.boundary
    if checkpoint.boundary() != plan.was:
        raise _moved()
    if boundary != plan.was:
        put_all(objects, plan.index)
        try:
            objects.create(_path(plan), seal(boundary))
        except ConflictError:
            raise _moved() from None
    else:
        objects.settle(BOUNDARIES)  # its writer may have died before it was durable
    if checkpoint.boundary().number != boundary.number:
        raise _moved()  # a newer one counts, and ours may have taken a number that had been deleted


def _path(plan: Collection) -> str:
    return boundary_path(plan.boundary.number)


def _moved() -> ConflictError:
    return ConflictError("another collection is running here: try again later", code="collection-moved")


def _unneeded(objects: Objects, read: set[int]) -> list[tuple[Objects, Pin]]:
    """Our pins in roots of which no remaining checkpoint needs a file, so no later one will."""
    bases = [objects.at(number) for number in range(1, len(objects.bases) + 1) if number not in read]
    return [(base, pin) for base in bases for pin in fork_pins(base, objects.root)]


def _roots(pins: list[tuple[Objects, Pin]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(base.root for base, _ in pins))


def _sizes(checkpoint: Checkpoint, contents: RootContents, files: list[str]) -> Iterator[tuple[str, int]]:
    """Sizes of files: most from manifests, the others from storage."""
    sizes = {ref.path: ref.file_bytes for manifest in contents.manifests.values() for ref in files_of(manifest)}
    for path in files:
        try:
            yield path, sizes[path] if path in sizes else checkpoint.objects.size(path)
        except NotFoundError:
            yield path, 0
