"""A checkpoint root: its marker file, its chain of manifests, and the one way to publish the next.

The commit is to create manifest N+1, under a name that can be taken once. A writer that finds the name taken has
lost: to a newer writer epoch (`FencedError`) or in a race (`ConflictError`); it has published nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from tidestate.recovery.log import absent
from tidestate.recovery.log.boundary import NO_BOUNDARY, Boundary
from tidestate.recovery.log.listing import Listing
from tidestate.recovery.log.manifest import (
    LAST_NUMBER,
    MANIFEST_FORMAT,
    Head,
    Manifest,
    Output,
    numbered_name,
    numbers_in,
    output_of,
)
from tidestate.recovery.log.manifest_file import MANIFEST_BYTES, decode, encode
from tidestate.recovery.log.marker import MARKER, Marker, read_marker
from tidestate.recovery.log.parts import Parts
from tidestate.recovery.log.ranges import outside
from tidestate.recovery.log.records import newest_boundary, outputs_below, read_pins
from tidestate.recovery.log.traces import PROBES, STATE, newest_attempt, note, notes, traces, written_files
from tidestate.statestore.distribution import version
from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    FencedError,
    NotFoundError,
    TidestateError,
    UnavailableError,
    UsageError,
    invariant,
)
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.prefetch import (
    Item,
    ProgressCallback,
    Result,
    no_progress,
    prefetch,
    prefetch_with_progress,
)

MANIFESTS = "manifests"
VISIBILITY_TIMEOUT_S = 2.0
"""How long a name may take to appear: network file systems cache missing names for a moment."""
SHARED_ROOT_ADVICE = (
    "use a root that the driver and all executors share: s3://, or a network file system mounted on every host"
)


def manifest_path(checkpoint_id: int) -> str:
    """The path of this checkpoint's manifest."""
    return f"{MANIFESTS}/{numbered_name(checkpoint_id)}"


def now_us() -> int:
    """The wall clock, microseconds since 1970 UTC. For people; no decision depends on it."""
    return time.time_ns() // 1000


def _check_readable(data: bytes, checkpoint_id: int) -> None:
    """Raise `InvariantError` for a manifest that nothing could read again: it must never be published."""
    try:
        decode(data, manifest_path(checkpoint_id))
    except CorruptionError as error:
        invariant(False, f"a manifest that is published can be read: {error.message}", id=checkpoint_id)


def check_unused(objects: Objects) -> None:
    """Raise `CorruptionError` (``marker-missing``) for a folder with files of a job and without a marker."""
    used = objects.names(MANIFESTS) or newest_attempt(written_files(objects))
    if used and not objects.exists(MARKER):  # or another process has just begun here
        raise CorruptionError(
            "the root has files of a job but no marker file: restore the marker file, or choose a new folder",
            code="marker-missing",
            root=objects.root,
        )


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint root. ``on_progress`` is called while many manifests or files are read."""

    objects: Objects
    marker: Marker
    writer: str = field(default_factory=lambda: uuid.uuid4().hex)
    on_progress: ProgressCallback = no_progress
    _published: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)
    _parts: Parts = field(default_factory=Parts, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Checkpoint({self.objects.root!r})"

    @property
    def published(self) -> int:
        """The newest checkpoint that this object has published; 0 before the first."""
        return self._published[0]

    @classmethod
    def open(cls, root: str | os.PathLike[str], on_progress: ProgressCallback = no_progress) -> Checkpoint:
        """Open an existing root; nothing is written. Raises `NotFoundError`."""
        objects = Objects(root)
        try:
            marker = read_marker(objects)
        except NotFoundError:
            raise absent.no_root(objects.root) from None
        return cls(Objects(root, bases=marker.bases), marker, on_progress=on_progress)

    @classmethod
    def open_or_create(cls, root: str | os.PathLike[str]) -> Checkpoint:
        """Open a root, or create it. Several processes that create it at the same time open the same one."""
        objects = Objects(root)
        if not objects.exists(MARKER):
            check_unused(objects)
            marker = Marker(MANIFEST_FORMAT, uuid.uuid4().hex, now_us(), objects.atomic_create)
            with contextlib.suppress(ConflictError):  # another process has just created it
                objects.create(MARKER, msgspec.json.encode(marker) + b"\n")
        return cls.open(root)

    def settle(self) -> None:
        """Make the manifests that were read durable before more is built on them: their writer may have died before
        it could. Raises `UnavailableError`.
        """
        self.objects.settle(MANIFESTS)

    def as_new_run(self) -> Checkpoint:
        """The same root under a fresh writer id: each start of a job has its own."""
        return replace(self, writer=uuid.uuid4().hex, _published=[0])

    def boundary(self) -> Boundary:
        """The boundary of collection as it is now."""
        return newest_boundary(self.objects)

    def stored_ids(self) -> list[int]:
        """Ids of all manifest files, ascending, whether they count or not."""
        return numbers_in(self.objects.names(MANIFESTS))

    def listing(self) -> Listing:
        """Which manifests there are, and which there should be. Complete even while others write and collect."""
        known = NO_BOUNDARY
        while True:
            # In this order: a manifest that is deleted after it was listed is below the boundary.
            stored, boundary = self.stored_ids(), self.boundary()
            found = Listing(stored, boundary, self.marker.first)
            if found.ids or boundary == known:
                break
            known = boundary  # all that was listed may have been collected since: then there are newer ones
        if not found.missing:
            return found
        # A listing may miss a manifest that is published meanwhile and contain a later one.
        again = [number for number in self.stored_ids() if number < stored[-1]]
        return Listing(sorted({*stored, *again}), self.boundary(), self.marker.first)

    def present_ids(self) -> list[int]:
        """Ids above the boundary, ascending; missing manifests are not an error."""
        return self.listing().ids

    def ids(self, first: int = 0, last: int | None = None) -> list[int]:
        """Checkpoint ids from ``first`` to ``last``, ascending, without collected ones.

        Raises `CorruptionError` (``manifest-gone``) for one that is gone and that no reset has abandoned.
        """
        found = self.listing()
        if found.missing_within(first, last):
            self._check_dense(found, self.load(found.ids[-1]).manifest, first, last)
        return found.within(first, last)

    def _check_dense(self, found: Listing, head: Manifest, first: int, last: int | None) -> None:
        if lost := outside(found.missing_within(first, last), head.abandoned):
            raise absent.manifests_gone(lost)

    def read(self, checkpoint_id: int) -> Head:
        """One manifest. Raises `CorruptionError`, or `NotFoundError` if there is none or it was collected."""
        bound = self.boundary().id
        if checkpoint_id > bound or any(pin.checkpoint == checkpoint_id for pin in read_pins(self.objects)):
            with contextlib.suppress(NotFoundError):
                return self.load(checkpoint_id)
        found = self.listing()
        if checkpoint_id < self.marker.first:
            raise absent.before_the_first(checkpoint_id, self.marker.first)
        if checkpoint_id <= found.boundary.id:
            raise absent.collected(checkpoint_id, found)
        if found.missing_within(checkpoint_id, checkpoint_id):
            raise absent.manifests_gone([(checkpoint_id, checkpoint_id)])
        raise absent.no_such(checkpoint_id)

    def load(self, checkpoint_id: int) -> Head:
        """`read` for an id that `ids` has just returned: it does not check whether the checkpoint counts."""
        path = manifest_path(checkpoint_id)
        try:
            manifest, digest = decode(self.objects.read(path, MANIFEST_BYTES), path)
        except NotFoundError:
            raise absent.no_such(checkpoint_id) from None
        if manifest.id != checkpoint_id or manifest.job_id != self.marker.job_id:
            raise CorruptionError(
                "this manifest belongs to another root, or to another id: restore the right copy of this file",
                code="manifest-foreign",
                path=path,
                found_id=manifest.id,
                found_job=manifest.job_id,
            )
        return Head(self._parts.resolved(self.objects, manifest), digest)

    def check_known(self) -> None:
        """Raise `IncompatibleError` (``newer-version``) if a newer version has written the newest manifest that is
        whole: then it is for that version to say what stays.
        """
        for number in reversed(self.present_ids()):
            with contextlib.suppress(CorruptionError, NotFoundError):
                self.load(number)
                return

    def load_each(self, ids: Sequence[int]) -> Iterator[tuple[int, Callable[[], Head]]]:
        """Each id, in this order, with a call that returns its manifest or raises as `load` does."""
        return self.prefetch("checkpoints", self.load, ids)

    def prefetch(
        self, what: str, act: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Callable[[], Result]]]:
        """Do ``act`` for each item ahead of the caller, with progress; see `prefetch_with_progress`."""
        return prefetch_with_progress(self.on_progress, what, act, items)

    def head(self, *, search: bool = False) -> Head | None:
        """The newest checkpoint, None before the first. A damaged one is an error and is never skipped.

        Raises `CorruptionError` (``root-further``) if newer ones are known to have been published. With ``search``
        the names of state files count as proof too: one request for each state partition.
        """
        # Traces first: what has left one is published, so the listing contains it.
        found = traces(self.objects, STATE) if search else notes(self.objects)
        head = self.newest()
        newest, position = (head.manifest.id, head.manifest.spark) if head is not None else (0, None)
        if beyond := found.beyond(newest, position):
            raise absent.newer_manifests_gone(self.objects.root, newest, beyond)
        return head

    def chosen(self, checkpoint_id: int | None) -> Head:
        """This checkpoint, or the newest. Raises as `read` and `head`, and `NotFoundError` if there is none."""
        head = self.head() if checkpoint_id is None else self.read(checkpoint_id)
        if head is None:
            raise absent.not_begun(self.objects.root)
        return head

    def newest(self) -> Head | None:
        """The newest manifest that is there, None before the first; newer ones may be missing."""
        while True:
            found = self.listing()
            if not found.ids:
                self._check_new(found)
                return None
            try:
                head = self.load(found.ids[-1])
            except NotFoundError:
                if self.boundary() == found.boundary:
                    raise
                continue  # it has been collected since, so there are newer ones
            if head.manifest.follows in found.ids and self.parent_differs(head):
                raise CorruptionError(
                    "the newest manifest does not match its parent: restore the right copies of both, or go back: "
                    "tidestate repair ROOT --to newest-good",
                    code="manifest-chain",
                    path=manifest_path(head.manifest.id),
                )
            return head

    def _check_new(self, found: Listing) -> None:
        """Raise `CorruptionError` if a root without manifests once had some."""
        beyond = found.least_head or newest_attempt(written_files(self.objects))
        if beyond and not self.present_ids():
            raise absent.newer_manifests_gone(self.objects.root, 0, beyond)

    def parent_differs(self, head: Head) -> bool:
        """Whether another manifest than it names lies in the place of a checkpoint's parent, and counts."""
        try:
            parent = self.load(head.manifest.follows)
        except (CorruptionError, NotFoundError):
            # The head is intact and names all state: damage to an older file is no reason to stop. Or it has been
            # collected since it was listed.
            return False
        # Once it has been collected, an older writer may take its id, in vain.
        return parent.checksum != head.manifest.parent and head.manifest.follows > self.boundary().id

    def history(self, first: int = 0, last: int | None = None) -> Iterator[Manifest]:
        """Checkpoints from ``first`` to ``last``, oldest first, without those that a reset has abandoned."""
        head = self.head()
        if head is not None:
            newest = head.manifest.id
            ids = self.ids(first, newest if last is None else min(last, newest))
            wanted = [one for one in ids if not head.manifest.abandons(one)]
            for _, read in self.load_each(wanted):
                yield read().manifest

    def pane_paths(self, *, of: Manifest | None = None, operator: str | None = None) -> list[str]:
        """Full paths of all committed pane files, oldest first, for a Parquet reader; on S3 ``s3a://``, for Spark. By
        default of the newest checkpoint; of a job with several outputs those of one, by default the last.

        The folder may also contain files that a crash left behind; no manifest names those.
        """
        manifest = of or (head.manifest if (head := self.head()) is not None else None)
        if operator is None and manifest is not None and manifest.outputs:
            operator = manifest.outputs[-1]
        outputs = self.outputs(of=of)
        files = (ref for one in outputs for ref in (one.panes if operator is None else one.panes_of(operator)))
        paths = [self.objects.locate(ref.path) for ref in files]
        self.settle()
        return paths

    def outputs(self, first: int = 0, last: int | None = None, *, of: Manifest | None = None) -> Iterator[Output]:
        """Outputs of the checkpoints from ``first`` to ``last`` that count, oldest first, collected ones included.
        Complete and without duplicates even while a collection runs. They count for the newest checkpoint, or for the
        one ``of`` a line, which a reset may have abandoned since.

        Raises `CorruptionError` (``manifest-gone``), before the first, if one of the manifests is gone.
        """
        newest = self.head() if of is None else None
        head = newest.manifest if newest is not None else of
        if head is None:
            return
        last = head.id if last is None else min(last, head.id)  # a later checkpoint may abandon some of these
        while True:
            found = self.listing()
            self._check_dense(found, head, first, last)
            try:
                for output in self._outputs(found, head, first, last):
                    yield output
                    first = output.id + 1
                return
            except (NotFoundError, CorruptionError):
                if self.boundary() == found.boundary:
                    raise

    def _outputs(self, found: Listing, head: Manifest, first: int, last: int) -> Iterator[Output]:
        below = outputs_below(self.objects, found.boundary, first, last)
        yield from (output for output in below if not head.abandons(output.id))
        wanted = [one for one in found.within(first, last) if not head.abandons(one)]
        for _, read in self.load_each(wanted):
            yield found.boundary.remaining(output_of(read().manifest))

    def publish(self, manifest: Manifest) -> Head:
        """Commit the manifest, with this package's version in it.

        Raises `FencedError` or `ConflictError` if the id is taken, and `FencedError` if it has been collected:
        nothing was published. Raises `CommitUnknownError` if storage did not answer: it may have been.
        """
        invariant(manifest.job_id == self.marker.job_id, "a manifest is published in its own root")
        if manifest.id > LAST_NUMBER:
            raise CorruptionError(
                "a manifest has the highest possible id, which no job reaches, so no other can follow: remove "
                "what does not belong to this job from manifests/, then repair the root",
                code="ids-used-up",
                id=manifest.id,
            )
        manifest = msgspec.structs.replace(manifest, version=version())
        if any(operator.parts or not operator.is_inline for operator in manifest.operators.values()):
            manifest = self._parts.written(self.objects, manifest)
        data, digest = encode(manifest)
        _check_readable(data, manifest.id)
        try:
            self.objects.create(manifest_path(manifest.id), data)
        except ConflictError:
            winner = self._winner(manifest)
            if winner.checksum == digest:  # our own: the reply was lost
                self._note(manifest)
                return winner
            if winner.manifest.epoch > manifest.epoch:
                raise FencedError(
                    "a newer run of this job has taken over the checkpoint: this run stops",
                    code="fenced",
                    id=manifest.id,
                    epoch=manifest.epoch,
                    newer_epoch=winner.manifest.epoch,
                ) from None
            raise ConflictError(
                "another writer published this checkpoint first: start again from the newest checkpoint",
                code="manifest-moved",
                id=manifest.id,
            ) from None
        try:
            self._check_boundary(manifest)
        except UnavailableError as error:
            raise CommitUnknownError(
                f"the checkpoint was written, but storage did not confirm that it counts ({error.message}): start "
                "again",
                code="commit-unknown",
                id=manifest.id,
            ) from error
        self._note(manifest)
        return Head(manifest, digest)

    def _winner(self, manifest: Manifest) -> Head:
        """The manifest that has its name. Raises `FencedError` if that has been collected."""
        self._check_boundary(manifest)
        try:
            return self.load(manifest.id)
        except NotFoundError:
            self._check_boundary(manifest)
            raise

    def _note(self, manifest: Manifest) -> None:
        """Leave a trace of it. The steps of a running job are noted when it renews its lease."""
        self._published[0] = manifest.id
        if manifest.kind not in ("batch", "tick", "feed"):
            with contextlib.suppress(TidestateError):  # it is published either way
                note(self.objects, manifest.id)

    def check_unmoved(self, newest: int) -> None:
        """Raise `ConflictError` (``plan-moved``) unless ``newest``, which a plan was made on, still is; 0: none."""
        found = max(self.present_ids(), default=0)
        if found != newest:
            raise ConflictError(
                "another checkpoint was published since this was planned: nothing was changed; make a new plan",
                code="plan-moved",
                planned_on=newest,
                newest=found,
            )

    def check_newest(self, manifest: Manifest) -> None:
        """Raise `FencedError` if anything was published after ``manifest``: its panes may no longer count.

        It stops a zombie. Ids have no gaps, so a newer run has taken the next one.
        """
        if self.objects.exists(manifest_path(manifest.id + 1)):
            raise FencedError(
                "a newer run of this job has taken over the checkpoint: this run stops and delivers nothing",
                code="fenced",
                id=manifest.id,
                epoch=manifest.epoch,
            )
        self._check_boundary(manifest)

    def _check_boundary(self, manifest: Manifest) -> None:
        """Raise `FencedError` if the name is free only because its manifest was collected."""
        bound = self.boundary().id
        if manifest.id <= bound:
            raise FencedError(
                "newer checkpoints have already been collected, so a newer run has taken over: this run stops",
                code="fenced",
                id=manifest.id,
                boundary=bound,
            )


def check_visible(
    objects: Objects,
    files: Iterable[tuple[str, FileRef]],
    patience_s: float = VISIBILITY_TIMEOUT_S,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Raise `UsageError` (``file-unseen``) unless every file, written on the host beside it, is found here with its
    size: what hosts write into folders of their own, under one path, is durable but out of reach.

    ``pause`` waits so many seconds between two looks at a file. Cost: one stat or HEAD for each file, many at a time.
    """
    until = time.monotonic() + patience_s

    def look(written: tuple[str, FileRef]) -> int | None:
        return _size_once_visible(objects, written[1].path, written[1].file_bytes, until, pause)

    for (host, ref), size in prefetch(look, files):
        if size() != ref.file_bytes:
            raise UsageError(
                "a file that an executor has written is missing below the driver's root, or has a different size "
                f"there, so nothing was published: {SHARED_ROOT_ADVICE}",
                code="file-unseen",
                host=host,
                root=objects.root,
                path=ref.path,
                expected=ref.file_bytes,
                found=size(),
            )


def _size_once_visible(
    objects: Objects, path: str, expected: int, until: float, pause: Callable[[float], None] = time.sleep
) -> int | None:
    """The size of an object, None if there is none: the expected size as soon as it is found, or else the size at
    ``until`` on the monotonic clock.
    """
    pause_s = 0.05
    while True:
        try:
            size = objects.size(path)
        except NotFoundError:
            size = None
        if size == expected or time.monotonic() >= until:
            return size
        pause(pause_s)
        pause_s *= 2


@dataclass(frozen=True)
class Probe:
    """A file with random content that one process writes at the root for another to find.

    It is named like a file of the next checkpoint, so a probe that a crash leaves behind is collected like one.
    """

    path: str
    content: str

    @classmethod
    def leave(cls, objects: Objects, checkpoint_id: int) -> Probe:
        """Write a probe. Raises `UnavailableError`."""
        probe = cls(f"{PROBES}/{checkpoint_id:020d}-{uuid.uuid4().hex}.txt", uuid.uuid4().hex)
        objects.note(probe.path, probe.content.encode())
        return probe

    def seen(self, objects: Objects, patience_s: float = VISIBILITY_TIMEOUT_S) -> bool:
        """Whether this process finds it with its size and content. Raises `UnavailableError`."""
        size = _size_once_visible(objects, self.path, len(self.content), time.monotonic() + patience_s)
        return size == len(self.content) and objects.read(self.path) == self.content.encode()
