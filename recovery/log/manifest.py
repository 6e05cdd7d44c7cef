"""The manifest: one small JSON file that *is* a checkpoint, and the only thing that commits one.

The file reads ``{"checksum": "xxh3:…", "manifest": {…}}``; the checksum is over the exact bytes of the inner
object. A manifest names its parent by the parent's checksum, so a chain of them can be verified. docs/FORMAT.md.

Three kinds of writer publish one. A **start** (``fence``) takes the root over. A **step** (``batch``, ``tick``,
``feed``, ``bootstrap``) takes input in or lets time pass. A **move** (``reset``, ``rescale``, a fork's ``fence``)
changes what the next start goes on from. `successor` makes all of them. Each field says who changes it, its owner;
all others carry it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.tables import TableSpec

MANIFEST_FORMAT = 1
END_OF_TIME_US = 2**63 - 1
"""The watermark of a drained checkpoint: no event can come after it."""

CheckpointKind = Literal["fence", "batch", "tick", "feed", "reset", "rescale", "bootstrap"]
Ids = tuple[int, int]
"""Checkpoint ids from the first to the last, both inclusive."""


class ReadFiles(msgspec.Struct, frozen=True):
    """All files that a source of files has read: how many, and a digest of their names and times in no order."""

    files: int
    digest: str


class SparkPosition(msgspec.Struct, frozen=True):
    """The Spark batch a checkpoint holds: enough to know the very same batch again.

    ``start`` and ``end`` are the offsets of each source, verbatim from Spark's log (``start`` is empty for the
    first batch). ``files`` has, per file source, what Spark planned to read; a long list stands in ``files_ref``.
    ``read`` is about all that each file source has read up to here, this batch included; ``read_ref`` lists it, where
    a reset, a fork or a bootstrap wrote Spark's log.
    """

    query_id: str
    batch_id: int
    start: tuple[str, ...]
    end: tuple[str, ...]
    files: dict[str, tuple[str, ...]] = {}
    files_ref: FileRef | None = None
    read_ref: FileRef | None = None
    read: dict[str, ReadFiles] = {}

    @property
    def refs(self) -> tuple[FileRef, ...]:
        """The files with its lists."""
        return tuple(ref for ref in (self.files_ref, self.read_ref) if ref is not None)


class InputPosition(msgspec.Struct, frozen=True):
    """The standalone runner's input: batches taken so far and a checksum of the last one."""

    batches: int
    last: str


class OperatorState(msgspec.Struct, frozen=True):
    """One operator's durable state, the configuration it was written under, and how far time has come for it.

    A start owns what the operator is, a step what it has. All times are microseconds since 1970 UTC; where windows
    are of offsets a watermark is an offset.
    """

    configuration: dict[str, Any]
    """What it computes. Owner: the start, which puts the job's in place of it where the state can follow."""
    fingerprint: str
    """A checksum of ``configuration`` and of the types it was bound to. Owner: as that."""
    tables: tuple[TableSpec, ...]
    """The state tables; a file's columns are matched with these by identity. Owner: the start."""
    partitions: tuple[PartitionState, ...]
    """State by the hash of its key, as many as every other operator has. Owner: the step; a rescale divides them."""
    inputs: tuple[str, ...] = ()
    """The streams and operators it reads. Owner: the start."""
    watermark_us: int | None = None
    """Exclusive: windows that end by it have fired. None while undefined. Grows, but for a reset. Owner: the step."""
    watermark_before_us: int | None = None
    """``watermark_us`` in the checkpoint that this one goes on from; equal to it unless a step moved it."""
    origins: tuple[str, ...] = ()
    """Where input came from, of windows of offsets, which take one origin. Only grows. Owner: the step."""
    progress: dict[str, Any] | None = None
    """How far each source of the watermark has come; None before the first step. Owner: the step."""
    advances: dict[str, Any] = {}
    """How far each source's CTIs have come. Owner: the step."""
    buffers: dict[str, Any] | None = None
    """Buffers that wait for a gap before them to fill. Owner: the step."""
    due_us: int | None = None
    """The processing time at which something is due without input; None for nothing. Owner: the step."""
    types: dict[str, str] = {}
    """Of the input columns that are read. Owner: the start."""
    since: int = 0
    """The checkpoint from which it is configured so, a fence. Only grows. Owner: the start."""
    gone_us: int | None = None
    """Windows up to this end were forgotten under settings before. Only grows. Owner: the start."""
    closed_us: int | None = None
    """Windows up to this end had been closed under settings before. A start sets it, the next step ends it."""
    renamed: tuple[tuple[int, str, str], ...] = ()
    """Input columns that got another name: in which checkpoint, old, new. Ascending, only grows; the ledger stays as
    it was written. Owner: the start.
    """

    @property
    def files(self) -> list[FileRef]:
        """The files of its state, each once: partitions share some after a rescale."""
        return list({(ref.root, ref.path): ref for part in self.partitions for ref in part.files}.values())


class Restore(msgspec.Struct, frozen=True):
    """What the last start read to have the state of ``checkpoint`` in its ``store``, all operators and partitions.

    ``seconds``: until the last of them was there, with ``parallel`` of them at once where that is known; ``total_s``:
    all of them, one after the other. ``predicted_s`` and ``budget_s`` are what was expected. ``rate``: bytes a second
    of one partition, by the last start that read enough to tell.
    """

    checkpoint: int
    store: str
    files: int
    bytes: int
    rows: int
    seconds: float
    total_s: float
    predicted_s: float
    budget_s: int
    parallel: int | None = None
    rate: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    """A checkpoint. Times are microseconds since 1970 UTC."""

    format: int
    """`MANIFEST_FORMAT`. The one field that every format has."""
    id: int
    """Rises by one. A reset may leave numbers out: those are in ``abandoned``. A fork begins with its source's."""
    parent: str
    """The checksum of manifest ``parent_id``; empty for the first of a root."""
    job_id: str
    """As in the marker file of the root."""
    epoch: int
    """The writer epoch. Steps keep it, other kinds raise it: an older run finds its next id taken, and by whom."""
    writer: str
    """A random id of the run, new at each start: with ``id`` the identity under which panes are delivered."""
    kind: CheckpointKind
    """Which writer published it, see the top of this file."""
    created_us: int
    """Wall clock, for people and for the age of what is collected."""
    operators: dict[str, OperatorState]
    """By name, in the order of the job: the last one's panes are the job's."""
    watermark_us: int | None = None
    """That of the operator furthest behind; None while one has none. `END_OF_TIME_US` once drained."""
    watermark_before_us: int | None = None
    """``watermark_us`` in the checkpoint that this one goes on from; equal to it unless a step moved it."""
    max_event_us: int | None = None
    """The largest event time accepted. Grows. Owner: the step."""
    processing_us: int | None = None
    """The largest processing time of a step. Grows. Owner: the step."""
    drained: bool = False
    """Every window has fired: only a reset or a fork to before it goes on. Owner: the step, a tick."""
    spark: SparkPosition | None = None
    """The newest Spark batch. Owner: the step; a reset and a fork give it another query id and all files read."""
    input: InputPosition | None = None
    """The newest standalone batch. Owner: the step; a start forgets its hash where the columns read have changed."""
    panes: tuple[FileRef, ...] = ()
    """The last operator's panes of this checkpoint alone. Only a step has any."""
    late: tuple[FileRef, ...] = ()
    """The ledgers of this checkpoint alone, each operator's in a folder of its name. Only a step has any."""
    delivered: int = 0
    """The highest id whose panes a sink had acknowledged when this was published. Never above ``id``, never goes back
    along a line; a record in ``delivered/`` may say more (`acknowledged`).
    """
    counters: dict[str, int] = {}
    """Of this checkpoint alone; ``<operator>.<counter>`` where there are several. Only a step has any."""
    totals: dict[str, int] = {}
    """``counters`` of this checkpoint and of all that it goes on from."""
    fed: int = 0
    """The checkpoint up to which the late ledger has been fed back. Grows. Owner: the step, a feed."""
    parent_id: int = 0
    """0 stands for ``id - 1``; a reset has the checkpoint it goes back to."""
    abandoned: tuple[Ids, ...] = ()
    """Ids that do not count any more, ascending, apart. Only grows; a fork has none. Owner: the reset."""
    restored: Restore | None = None
    """What the last start read. Owner: the first step after it."""
    version: str = ""
    """The version of the package that wrote it, for people."""

    @property
    def follows(self) -> int:
        """Id of the checkpoint this one goes on from."""
        return self.parent_id or self.id - 1

    def abandons(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint does not count any more, as this one sees it."""
        return any(first <= checkpoint_id <= last for first, last in self.abandoned)

    @property
    def partitions(self) -> int:
        """How many state partitions each operator has."""
        return len(next(iter(self.operators.values())).partitions)

    def late_of(self, operator: str) -> tuple[FileRef, ...]:
        """The ledger files of one operator."""
        return ledger_of(self.late, operator)

    @property
    def due_us(self) -> int | None:
        """When something is due next without input."""
        return min((one.due_us for one in self.operators.values() if one.due_us is not None), default=None)


@dataclass(frozen=True)
class Head:
    """A manifest and the checksum by which its child will name it."""

    manifest: Manifest
    checksum: str


def ledger_of(late: tuple[FileRef, ...], operator: str) -> tuple[FileRef, ...]:
    """Of ledger files those of one operator."""
    return tuple(ref for ref in late if ref.path.startswith(f"late/{operator}/"))


def state_files(manifest: Manifest) -> list[FileRef]:
    """Every file of the state, once."""
    return [ref for operator in manifest.operators.values() for ref in operator.files]


def without_state(manifest: Manifest) -> Manifest:
    """All but the files of the state: for whoever holds thousands of manifests."""
    operators = {name: msgspec.structs.replace(one, partitions=()) for name, one in manifest.operators.items()}
    return msgspec.structs.replace(manifest, operators=operators)


def files_of(manifest: Manifest) -> Iterator[FileRef]:
    """Every file that a checkpoint names."""
    yield from state_files(manifest)
    yield from manifest.panes
    yield from manifest.late
    yield from manifest.spark.refs if manifest.spark is not None else ()
