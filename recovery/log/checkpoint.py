"""A checkpoint root: its marker file, its chain of manifests, and the one way to publish the next.

Publishing manifest N+1 under a name nobody may take twice is the commit. Whoever finds the name taken has lost:
to a newer writer epoch (`FencedError`) or to a race (`ConflictError`); nothing of theirs was published.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.listing import Listing, manifests_gone, newer_manifests_gone
from tidestate.recovery.log.manifest import MANIFEST_FORMAT, Head, Manifest
from tidestate.recovery.log.manifest_file import decode, encode
from tidestate.recovery.log.marker import MARKER, Marker, read_marker
from tidestate.recovery.log.names import numbered_name, numbers_in
from tidestate.recovery.log.outputs import Output, output_of
from tidestate.recovery.log.prefetch import ProgressCallback, no_progress, prefetch_with_progress
from tidestate.recovery.log.ranges import outside
from tidestate.recovery.log.records import newest_boundary, outputs_below, read_pins
from tidestate.recovery.log.traces import STATE, newest_attempt, note, notes, traces, written_files
from tidestate.recovery.log.validation import MANIFEST_BYTES
from tidestate.statestore.distribution import version
from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    FencedError,
    NotFoundError,
    TidestateError,
    UnavailableError,
    invariant,
)
from tidestate.statestore.storage.objects import Objects

MANIFESTS = "manifests"


def manifest_path(checkpoint_id: int) -> str:
    """Where the manifest of this id lies."""
    return f"{MANIFESTS}/{numbered_name(checkpoint_id)}"


def now_us() -> int:
    """Wall clock, microseconds since 1970 UTC. For people; no decision rests on it."""
    return time.time_ns() // 1000


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint root. ``seen`` is told of what takes a while: of manifests read, and of files."""

    objects: Objects
    marker: Marker
    writer: str = field(default_factory=lambda: uuid.uuid4().hex)
    seen: ProgressCallback = no_progress
    _published: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Checkpoint({self.objects.root!r})"

    @property
    def published(self) -> int:
        """The newest checkpoint that this one has published; 0 before the first."""
        return self._published[0]

    @classmethod
    def open(cls, root: str | os.PathLike[str], seen: ProgressCallback = no_progress) -> Checkpoint:
        """Open an existing root. Raises `NotFoundError` when there is none; changes nothing."""
        objects = Objects(root)
        try:
            marker = read_marker(objects)
        except NotFoundError:
            raise NotFoundError(
                "no checkpoint here: give the folder that was passed as checkpoint=",
                code="no-checkpoint",
                root=objects.root,
            ) from None
        return cls(Objects(root, bases=marker.bases), marker, seen=seen)

    @classmethod
    def open_or_create(cls, root: str | os.PathLike[str]) -> Checkpoint:
        """Open a root, or make it one. Of several that make it at once, all end up with the same."""
        objects = Objects(root)
        if not objects.exists(MARKER):
            if objects.names(MANIFESTS) or newest_attempt(written_files(objects)):
                raise CorruptionError(
                    "the root holds a job's files but its marker file is gone: put it back, or give a new folder",
                    code="marker-missing",
                    root=objects.root,
                )
            marker = Marker(MANIFEST_FORMAT, uuid.uuid4().hex, now_us(), objects.atomic_create)
            # Where somebody else has just made it, theirs counts.
            with contextlib.suppress(ConflictError):
                objects.create(MARKER, msgspec.json.encode(marker) + b"\n")
        return cls.open(root)

    def settle(self) -> None:
        """Make sure that the manifests there are survive a power cut: for who has read them and goes on from them, as
        who published the newest may have died before it was durable. Raises `UnavailableError`.
        """
        self.objects.settle(MANIFESTS)

    def as_new_run(self) -> Checkpoint:
        """The same root for another writer: each start has a random id of its own, whoever opened the root."""
        return replace(self, writer=uuid.uuid4().hex, _published=[0])

    def boundary(self) -> Boundary:
        """Up to where checkpoints have been collected, as it is now."""
        return newest_boundary(self.objects)

    def stored_ids(self) -> list[int]:
        """Ids of all manifests that lie here, whether they count or not, ascending."""
        return numbers_in(self.objects.names(MANIFESTS))

    def listing(self) -> Listing:
        """What lies here now, and what should. Beside writers and collections it misses nothing that is there."""
        # In this order: of what is listed and deleted now, the boundary tells.
        stored, boundary = self.stored_ids(), self.boundary()
        found = Listing(stored, boundary, self.marker.first)
        if not found.missing:
            return found
        # What is published while a folder is listed may be missing, though a later one is not: it is there now.
        again = [number for number in self.stored_ids() if number < stored[-1]]
        return Listing(sorted({*stored, *again}), self.boundary(), self.marker.first)

    def present_ids(self) -> list[int]:
        """Ids of manifests that count, ascending, as far as they lie here: for who can go on where some are gone."""
        return self.listing().left

    def ids(self, first: int = 0, last: int | None = None) -> list[int]:
        """All checkpoint ids from ``first`` to ``last``, ascending, but for those that were collected.

        Raises `CorruptionError` (``manifest-gone``) where one of them is gone that no reset has abandoned.
        """
        found = self.listing()
        if found.missing_within(first, last):
            self._check_dense(found, self.load(found.left[-1]).manifest, first, last)
        return _within(found.left, first, last)

    def _check_dense(self, found: Listing, head: Manifest, first: int, last: int | None) -> None:
        if lost := outside(found.missing_within(first, last), head.abandoned):
            raise manifests_gone(lost)

    def read(self, checkpoint_id: int) -> Head:
        """One manifest. Raises `CorruptionError`, or `NotFoundError` where there is none or it was collected."""
        bound = self.boundary().id
        if checkpoint_id > bound or any(pin.checkpoint == checkpoint_id for pin in read_pins(self.objects)):
            with contextlib.suppress(NotFoundError):
                return self.load(checkpoint_id)
        found = self.listing()
        if checkpoint_id <= found.boundary.id:
            raise self.collected(checkpoint_id)
        if found.missing_within(checkpoint_id, checkpoint_id):
            raise manifests_gone([(checkpoint_id, checkpoint_id)])
        raise _no_such(checkpoint_id)

    def collected(self, checkpoint_id: int) -> NotFoundError:
        """The error for a checkpoint that is at or below the boundary."""
        left = self.present_ids()
        return NotFoundError(
            "this checkpoint was collected: choose one that is still there",
            code="collected",
            id=checkpoint_id,
            boundary=self.boundary().id,
            oldest=left[0] if left else None,
        )

    def load(self, checkpoint_id: int) -> Head:
        """As `read`, without asking whether the checkpoint counts: for an id that `ids` has just given."""
        path = manifest_path(checkpoint_id)
        try:
            manifest, digest = decode(self.objects.read(path, MANIFEST_BYTES), path)
        except NotFoundError:
            raise _no_such(checkpoint_id) from None
        if manifest.id != checkpoint_id or manifest.job_id != self.marker.job_id:
            raise CorruptionError(
                "this manifest belongs elsewhere: put back the right copy of this file",
                code="manifest-foreign",
                path=path,
                found_id=manifest.id,
                found_job=manifest.job_id,
            )
        return Head(manifest, digest)

    def load_each(self, ids: Sequence[int]) -> Iterator[tuple[int, Callable[[], Head]]]:
        """Each id, in this order, with a call that does what `load` does: several are read ahead."""
        return prefetch_with_progress(self.seen, "checkpoints", self.load, ids)

    def head(self, *, search: bool = False) -> Head | None:
        """The newest checkpoint, None when there is none yet. A damaged one is an error, never passed over.

        Raises `CorruptionError` (``root-further``) where newer ones are known to have been published. ``search``: by
        the names of state files too, which takes a request for each state partition: for who goes on from here.
        """
        # In this order: what leaves a trace has been published, and is listed.
        seen = traces(self.objects, STATE) if search else notes(self.objects)
        head = self.newest()
        if head is None:
            newest, position = 0, None
        else:
            newest, position = head.manifest.id, head.manifest.spark
        if beyond := seen.beyond(newest, position):
            raise newer_manifests_gone(self.objects.root, newest, beyond)
        return head

    def chosen(self, checkpoint_id: int | None) -> Head:
        """The checkpoint asked for, or the newest. Raises what `read` and `head` do, and `NotFoundError` for none."""
        head = self.head() if checkpoint_id is None else self.read(checkpoint_id)
        if head is None:
            raise self.not_begun()
        return head

    def not_begun(self) -> NotFoundError:
        """The error where there is no checkpoint yet."""
        return NotFoundError(
            "this root has no checkpoint yet: start the job", code="no-such-checkpoint", root=self.objects.root
        )

    def newest(self) -> Head | None:
        """The newest manifest that lies here, None when there is none yet: for who can go on where newer are gone."""
        found = self.listing()
        left = found.left
        if not left:
            self._check_new(found)
            return None
        head = self.load(left[-1])
        if head.manifest.follows in left:
            self._check_parent(head)
        return head

    def _check_new(self, found: Listing) -> None:
        """That a root without manifests never had any."""
        beyond = found.least or newest_attempt(written_files(self.objects))
        if beyond and not self.present_ids():
            raise newer_manifests_gone(self.objects.root, 0, beyond)

    def _check_parent(self, head: Head) -> None:
        try:
            parent = self.load(head.manifest.follows)
        except CorruptionError:
            return  # the head is whole and carries all state; an older file's damage is no reason to stop
        if parent.checksum != head.manifest.parent:
            raise CorruptionError(
                "the newest manifest does not follow its parent: put back the right copies",
                code="manifest-chain",
                path=manifest_path(head.manifest.id),
            )

    def history(self, first: int = 0, last: int | None = None) -> Iterator[Manifest]:
        """All checkpoints that count, oldest first, from ``first`` to ``last``: not those a reset has abandoned."""
        head = self.head()
        if head is not None:
            newest = head.manifest.id
            ids = self.ids(first, newest if last is None else min(last, newest))
            wanted = [one for one in ids if not head.manifest.abandons(one)]
            for _, read in self.load_each(wanted):
                yield read().manifest

    def pane_paths(self) -> list[str]:
        """Full paths of all committed pane files, oldest first: what to give to a Parquet reader.

        The folder may also hold files that a crash left behind; no manifest names those.
        """
        paths = [self.objects.locate(ref.path) for output in self.outputs() for ref in output.panes]
        self.settle()
        return paths

    def outputs(self, first: int = 0, last: int | None = None) -> Iterator[Output]:
        """What the checkpoints from ``first`` to ``last`` put out, oldest first: of all that count, and of those that
        were collected too. Beside a collection, nothing is left out and nothing comes twice.

        Raises `CorruptionError` (``manifest-gone``), before it gives any, where one of them is gone.
        """
        newest = self.head()
        if newest is None:
            return
        head = newest.manifest
        last = head.id if last is None else min(last, head.id)  # what comes later may abandon some of it
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
        wanted = [one for one in _within(found.left, first, last) if not head.abandons(one)]
        for _, read in self.load_each(wanted):
            yield found.boundary.left(output_of(read().manifest))

    def publish(self, manifest: Manifest) -> Head:
        """Commit. Raises `FencedError` or `ConflictError` when the id is taken; nothing of ours is published then.

        `FencedError` also where checkpoints beyond this id have been collected: newer runs have long gone on.
        The manifest gets the version of this package.
        """
        invariant(manifest.job_id == self.marker.job_id, "a manifest is published in its own root")
        manifest = msgspec.structs.replace(manifest, version=version())
        data, digest = encode(manifest)
        try:
            self.objects.create(manifest_path(manifest.id), data)
        except ConflictError:
            self._check_boundary(manifest)
            winner = self.load(manifest.id)
            if winner.checksum == digest:  # a lost reply: it is our own
                self._note(manifest)
                return winner
            if winner.manifest.epoch > manifest.epoch:
                raise FencedError(
                    "a newer run of this job has taken over the checkpoint: this one stops",
                    code="fenced",
                    id=manifest.id,
                    epoch=manifest.epoch,
                    newer_epoch=winner.manifest.epoch,
                ) from None
            raise ConflictError(
                "another writer published this checkpoint first: start again from the newest",
                code="manifest-moved",
                id=manifest.id,
            ) from None
        try:
            self._check_boundary(manifest)
        except UnavailableError as error:
            raise CommitUnknownError(
                f"published, but storage did not say whether it counts ({error.message}): start again",
                code="commit-unknown",
                id=manifest.id,
            ) from error
        self._note(manifest)
        return Head(manifest, digest)

    def _note(self, manifest: Manifest) -> None:
        """Leave a trace of it. Of what a running job publishes one after the other its lease notes how far it is."""
        self._published[0] = manifest.id
        if manifest.kind not in ("batch", "tick", "feed"):
            with contextlib.suppress(TidestateError):  # it is published, noted or not
                note(self.objects, manifest.id)

    def check_unmoved(self, newest: int) -> None:
        """Raise `ConflictError` (``plan-moved``) unless ``newest`` is still the newest manifest here, 0 for none: for
        who carries out what was planned on it. Nothing has happened then.
        """
        found = max(self.present_ids(), default=0)
        if found != newest:
            raise ConflictError(
                "another checkpoint was published since this was planned: nothing was changed; look again",
                code="plan-moved",
                planned_on=newest,
                newest=found,
            )

    def check_newest(self, manifest: Manifest) -> None:
        """Raise `FencedError` where anybody has published after ``manifest``: its panes may not count any more.

        For an older self that continues late. Ids are dense, so who came after it has taken the next one.
        """
        if self.objects.exists(manifest_path(manifest.id + 1)):
            raise FencedError(
                "a newer run of this job has taken over the checkpoint: this one stops and delivers nothing",
                code="fenced",
                id=manifest.id,
                epoch=manifest.epoch,
            )
        self._check_boundary(manifest)

    def _check_boundary(self, manifest: Manifest) -> None:
        """Of a name that was free, or is: what had it may have been collected."""
        bound = self.boundary().id
        if manifest.id <= bound:
            raise FencedError(
                "checkpoints beyond this one have been collected, so a newer run has long taken over: this one stops",
                code="fenced",
                id=manifest.id,
                boundary=bound,
            )


def _within(ids: Sequence[int], first: int, last: int | None) -> list[int]:
    return [one for one in ids if first <= one and (last is None or one <= last)]


def _no_such(checkpoint_id: int) -> NotFoundError:
    return NotFoundError("no such checkpoint", code="no-such-checkpoint", id=checkpoint_id)
