"""What a job has done since a checkpoint that is whole, as its manifests have recorded it: which batches, with which
clock, and where it was started again. A side run does the same once more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tidestate.recovery.inspect.verify import file_finding
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, without_state
from tidestate.statestore.errors import CorruptionError, NotFoundError
from tidestate.statestore.files.refs import Location

log = logging.getLogger("tidestate")


class NotAsRecordedError(Exception):
    """Why recorded input cannot be run again, or did not give what was recorded; never seen by users. ``unread``: the
    source has some of it no more.
    """

    def __init__(self, why: str, *, unread: bool = False) -> None:
        super().__init__(why)
        self.unread = unread


class RecordedStep(NamedTuple):
    """A step to be done again. ``batch``: the number of its batch; ``partitions``: of a rescale. ``manifest``: what
    it made, without state; None where that was collected. ``until``: the checkpoint that it made, or one after it.
    """

    kind: Literal["start", "batch", "tick", "rescale"]
    until: int
    clock_us: int | None = None
    batch: int = -1
    partitions: int = 0
    manifest: Manifest | None = None


@dataclass(frozen=True)
class RecordedRun:
    """The steps from the checkpoint ``start`` on, None for the beginning of the job; in so many state ``partitions``
    at first.
    """

    start: Manifest | None
    partitions: int
    steps: tuple[RecordedStep, ...]

    @property
    def first(self) -> int:
        """The number of the first batch that is needed."""
        return batch_count(self.start)

    @property
    def batches(self) -> list[RecordedStep]:
        """The steps that take a batch."""
        return [step for step in self.steps if step.kind == "batch"]

    def why_not_exact(self, since: int) -> str:
        """Why this is not known to end as the job, which has lacked messages since checkpoint ``since``, would have
        without the loss; empty where it is.
        """
        if any(step.manifest is None for step in self.batches):
            return "manifests of its batches were collected, which have their clock"
        if any(step.until > since for step in self.steps if step.kind in ("batch", "tick")):
            return "the job has gone on without these messages"
        return ""


def batch_count(manifest: Manifest | None) -> int:
    """How many batches of the input a checkpoint contains."""
    if manifest is None:
        return 0
    if manifest.spark is not None:
        return manifest.spark.batch_id + 1
    return manifest.input.batches if manifest.input is not None else 0


def recorded_run(checkpoint: Checkpoint, head: Manifest) -> RecordedRun:
    """What was done from the newest checkpoint before ``head`` that is whole, collected ones but for pinned left out,
    up to ``head``; from the beginning where there is none. Raises `NotAsRecordedError` where something in between
    cannot be done again.
    """
    # From the newest to the oldest, each with the number of its state partitions, which go with its state.
    checkpoints, whole = [(without_state(head), head.partitions)], _WholeFiles(checkpoint)
    start: Manifest | None = None
    for number in reversed(checkpoint.stored_ids()):
        if number >= head.id or head.abandons(number):
            continue
        try:
            manifest = checkpoint.load(number).manifest
        except (CorruptionError, NotFoundError) as error:
            log.debug("checkpoint %d cannot be read: %s", number, error)
            continue
        if _may_start(manifest, head) and whole.has(manifest):
            start = manifest
            break
        _check_again(manifest, head)
        checkpoints.append((without_state(manifest), manifest.partitions))
    partitions = checkpoints[-1][1] if start is None else start.partitions
    steps = tuple(_steps(start, reversed(checkpoints)))
    return RecordedRun(start, partitions, steps)


def _may_start(manifest: Manifest, head: Manifest) -> bool:
    """Whether a run from this checkpoint is the same job, and lacks nothing."""
    lacks = any(operator.rebuilding is not None for operator in manifest.operators.values())
    return not lacks and not manifest.drained and _same_job(manifest, head)


def _same_job(manifest: Manifest, head: Manifest) -> bool:
    def fingerprints(of: Manifest) -> dict[str, str]:
        return {name: operator.fingerprint for name, operator in of.operators.items()}

    return fingerprints(manifest) == fingerprints(head)


def _check_again(manifest: Manifest, head: Manifest) -> None:
    """Raise `NotAsRecordedError` if what made this checkpoint cannot be done again."""
    reasons = {
        "the job was changed after it": not _same_job(manifest, head),
        "windows were edited in it": manifest.kind == "edit",
        "it took history, which is not in the source": manifest.kind == "bootstrap",
        "late rows were reprocessed in it": _counted(manifest, "fed"),
    }
    if why := [reason for reason, holds in reasons.items() if holds]:
        raise NotAsRecordedError(f"of checkpoint {manifest.id}: {why[0]}")


def _counted(manifest: Manifest, counter: str) -> bool:
    return any(count for name, count in manifest.counters.items() if name.rpartition(".")[2] == counter)


class _WholeFiles:
    """Which files are whole: every byte is read, of each file once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._checked = checkpoint, dict[Location, bool]()

    def has(self, manifest: Manifest) -> bool:
        """Whether all state files of a checkpoint are there and whole."""
        refs = [ref for operator in manifest.operators.values() for ref in operator.files]
        if not all(self._checked.get(ref.location, True) for ref in refs):
            return False
        for ref in refs:
            if ref.location not in self._checked:
                self._checked[ref.location] = file_finding(self._checkpoint, ref, manifest.id, True) is None
            if not self._checked[ref.location]:
                return False
        return True


def _steps(start: Manifest | None, later: Iterable[tuple[Manifest, int]]) -> Iterable[RecordedStep]:
    """The steps that made these checkpoints, without state, in so many partitions."""
    done, before = batch_count(start), start.partitions if start is not None else 0
    for manifest, partitions in later:
        clock_us, is_batch = manifest.processing_us, manifest.kind == "batch"
        contained = batch_count(manifest)
        # Of batches whose manifests were collected nobody knows the clock. Whether that counts, what they make shows.
        for number in range(done, contained - is_batch):
            yield RecordedStep("batch", manifest.id, clock_us, number)
        done = contained
        if before not in (0, partitions):  # here, or in one that was collected
            yield RecordedStep("rescale", manifest.id, partitions=partitions)
        before = partitions
        if is_batch:
            yield RecordedStep("batch", manifest.id, clock_us, contained - 1, manifest=manifest)
        elif manifest.kind == "tick":
            yield RecordedStep("tick", manifest.id, clock_us, manifest=manifest)
        elif manifest.kind == "fence":
            yield RecordedStep("start", manifest.id)
