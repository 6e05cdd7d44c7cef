"""The manifest: one small JSON file that *is* a checkpoint, and the only thing that commits one.

The file reads ``{"checksum": "xxh3:…", "manifest": {…}}``; the checksum is over the exact bytes of the inner
object. A manifest names its parent by the parent's checksum, so a chain of them can be verified. docs/FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tidestate.recovery.log.validation import MANIFEST_BYTES, Unsound, check
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, IncompatibleError
from tidestate.statestore.files.segments import FileRef, PartitionState
from tidestate.statestore.spec.tables import TableSpec

FORMAT = 1
END_OF_TIME_US = 2**63 - 1
"""The watermark of a drained checkpoint: no event can come after it."""

Kind = Literal["fence", "batch", "tick", "feed", "reset", "rescale", "bootstrap"]
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

    ``inputs``: the streams and operators it reads. ``watermark_us`` is exclusive, None while undefined; where windows
    are of offsets it is an offset, and ``origins`` are those the input had. ``progress`` is the state of the
    watermark's sources, ``advances`` that of their CTIs, ``buffers`` that of their buffers. ``due_us``: the
    processing time at which something is due without input. ``types``: of the input columns that are read.

    ``since``: the checkpoint from which it is configured so. ``gone_us``: windows up to this end were forgotten under
    settings before; ``closed_us``: those up to this end had been closed, until the next checkpoint that is no fence.
    ``renamed``: input columns that got another name: in which checkpoint, old, new; the ledger is as it was written.
    """

    configuration: dict[str, Any]
    fingerprint: str
    tables: tuple[TableSpec, ...]
    partitions: tuple[PartitionState, ...]
    inputs: tuple[str, ...] = ()
    watermark_us: int | None = None
    watermark_before_us: int | None = None
    origins: tuple[str, ...] = ()
    progress: dict[str, Any] | None = None
    advances: dict[str, Any] = {}
    buffers: dict[str, Any] | None = None
    due_us: int | None = None
    types: dict[str, str] = {}
    since: int = 0
    gone_us: int | None = None
    closed_us: int | None = None
    renamed: tuple[tuple[int, str, str], ...] = ()

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
    """A checkpoint. Times are microseconds since 1970 UTC.

    ``watermark_us`` is that of the operator that is furthest behind. ``panes`` are the last operator's, ``late`` the
    ledgers of all, each in a folder of its name; where there are several operators, counters have their names in
    front. ``fed`` is the checkpoint up to which the late ledger has been fed back.

    ``version`` is that of the package that wrote it, for people.

    ``parent`` is the checksum of manifest ``parent_id``: 0 stands for the one before, a reset has the checkpoint it
    goes back to. ``abandoned`` are ids that do not count any more, ascending; every manifest after a reset has them.
    """

    format: int
    id: int
    parent: str
    job_id: str
    epoch: int
    writer: str
    kind: Kind
    created_us: int
    operators: dict[str, OperatorState]
    watermark_us: int | None = None
    watermark_before_us: int | None = None
    max_event_us: int | None = None
    processing_us: int | None = None
    drained: bool = False
    spark: SparkPosition | None = None
    input: InputPosition | None = None
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    delivered: int = 0
    counters: dict[str, int] = {}
    totals: dict[str, int] = {}
    fed: int = 0
    parent_id: int = 0
    abandoned: tuple[Ids, ...] = ()
    restored: Restore | None = None
    version: str = ""

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


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """The file's bytes and the checksum by which a child names this manifest."""
    body = msgspec.json.encode(manifest)
    digest = checksum(body)
    return b'{"checksum":"%s",\n"manifest":%s}\n' % (digest.encode(), body), digest


class _File(msgspec.Struct):
    checksum: str
    manifest: msgspec.Raw


class Version(msgspec.Struct):
    """The one field that every format has."""

    format: int


# Made here, once: two threads that are the first to decode a type end the process.
_FILE, _VERSION, _MANIFEST = (
    msgspec.json.Decoder(_File),
    msgspec.json.Decoder(Version),
    msgspec.json.Decoder(Manifest),
)


def decode(data: bytes, path: str) -> tuple[Manifest, str]:
    """The manifest and its checksum. Raises `CorruptionError` or, for a newer format, `IncompatibleError`."""
    if len(data) > MANIFEST_BYTES:
        raise _damaged(path, f"more than {MANIFEST_BYTES} bytes")
    try:
        file = _FILE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if checksum(bytes(file.manifest)) != file.checksum:
        raise _damaged(path, "checksum does not match")
    try:
        version = _VERSION.decode(file.manifest).format
        if version != FORMAT:
            raise IncompatibleError(
                "this manifest has another format: use the tidestate version that wrote it or a newer one",
                code="manifest-format",
                path=path,
                expected=FORMAT,
                found=version,
            )
        manifest = _MANIFEST.decode(file.manifest)
        check(manifest)
        return manifest, file.checksum
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Unsound) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: str, reason: str) -> CorruptionError:
    return CorruptionError(
        f"the manifest is damaged ({reason.lower()}): nothing was changed; put back a good copy of this file",
        code="manifest-damaged",
        path=path,
    )
