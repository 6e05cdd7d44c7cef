"""Manifests as they are written: the next one, as it follows from the one before, and the file of each, which is
encoded, decoded and checked, beyond the types, as are records. Pure.

A start, a step and a move (see `manifest`) change different fields; the rest follows by the same rules. So no writer
builds a manifest itself: it passes its changes to `successor`, which checks what holds for every manifest.

A checksum detects damage, not forgery. Every file is checked here once, when it is read, and the rest of the code can
rely on it: numbers fit 64 bits, files are below the root, names are valid, sizes are bounded.

What a reader must know of a root beyond the format are the capabilities that its manifests name. A version that
stores something which earlier ones would take for damage, or would read wrongly, gives it a name here, and every
manifest that has it names it. A reader that lacks one of the names stops before it decodes anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.manifest import (
    DIGITS,
    MANIFEST_FORMAT,
    OUTPUT_KINDS,
    AnsweredRequest,
    CheckpointKind,
    Delivered,
    Head,
    Ids,
    InputPosition,
    Manifest,
    Needs,
    OperatorState,
    Output,
    Restore,
    Scan,
    SparkPosition,
    Spent,
)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, IncompatibleError, invariant
from tidestate.statestore.files.refs import BUNDLE_SUFFIX, FileRef, Location, PartitionState, state_folder
from tidestate.statestore.spec.limits import COLUMNS, TABLES

MANIFEST_BYTES = 256 << 20
"""The largest manifest file: a thousand times that of a large job."""
MAX_OPERATORS = 1000
BASES = 1000
PARTITIONS = 1 << 15
DEPTH = 64
"""The deepest nesting in a configuration."""
PATH_CHARACTERS = 1024
NAME_CHARACTERS = 255
VERSION_CHARACTERS = 64
REASON_CHARACTERS = 400
LEAST, MOST = -(2**63), 2**63 - 1

_ABSENT = ("needs", "answered", "fed_by_operator", "fed_by_reason", "outputs")
ZONES, ZONE_CHARACTERS = 64, 16_384
"""The most time zones that an operator names, and the longest text of the rules of one."""
OUTPUTS = 16
"""The most outputs of a job: what is delivered of each is in the name of a file."""
_PATH = re.compile(r"[^/\\\x00-\x1f\x7f]+(?:/[^/\\\x00-\x1f\x7f]+)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class InvalidManifest(ValueError):
    """A file that this package cannot have written, and why."""


def check(manifest: Manifest) -> None:
    """Raise `InvalidManifest` unless ``manifest`` can be one of ours."""
    _check_numbers(manifest)
    require(max(len(manifest.job_id), len(manifest.writer)) <= NAME_CHARACTERS, "job_id or writer")
    require(len(manifest.version) <= VERSION_CHARACTERS and not _CONTROL.search(manifest.version), "version")
    if manifest.scan is not None:
        for reason in (manifest.scan.reason, manifest.scan.no_partials):
            require(len(reason) <= REASON_CHARACTERS and not _CONTROL.search(reason), "scan")
    for name, counts in (("counters", manifest.counters), ("totals", manifest.totals)):
        require(all(LEAST <= value <= MOST for value in counts.values()), name)
    require(len(manifest.operators) <= MAX_OPERATORS, "operators")
    require(all(map(is_name, manifest.fed_by_operator)), "fed_by_operator")
    _check_reasons(manifest)
    _check_several(manifest)
    for name, operator in manifest.operators.items():
        require(is_name(name), "the name of an operator")
        _check_operator(name, operator, manifest.id)
    _check_outputs(manifest)
    _check_spark(manifest.spark)


def _check_reasons(manifest: Manifest) -> None:
    """What was put back by reason is further than all rows of its operator."""
    for name, by_reason in manifest.fed_by_reason.items():
        is_named = is_name(name) and bool(by_reason) and all(map(is_name, by_reason))
        least = manifest.fed_up_to(name)
        require(is_named and all(least < last <= manifest.id for last in by_reason.values()), "fed_by_reason")


def _check_several(manifest: Manifest) -> None:
    """Several outputs are operators, in their order, the last one among them."""
    outputs = manifest.outputs
    if outputs:
        there = [name for name in manifest.operators if name in outputs]
        is_several = list(outputs) == there and 2 <= len(outputs) <= OUTPUTS
        require(is_several and outputs[-1] == next(reversed(manifest.operators)), "outputs")
    of_outputs = {*manifest.delivered.further, *manifest.delivered.sinkless}
    require(of_outputs <= set(outputs), "what is delivered of outputs")


def check_root(job_id: str, bases: Sequence[str]) -> None:
    """Raise `InvalidManifest` unless a marker file can contain these."""
    require(bool(job_id) and len(job_id) <= NAME_CHARACTERS and not _CONTROL.search(job_id), "job_id")
    require(len(bases) <= BASES and not any(_CONTROL.search(base) for base in bases), "bases")


def check_output(output: Output) -> None:
    """Raise `InvalidManifest` unless an entry of the output index can be one of ours."""
    require(output.id >= 1, "id")
    require(len(output.outputs) <= OUTPUTS and all(map(is_name, output.outputs)), "outputs")
    _check_outputs(output)
    _check_spark(output.spark)


def check_boundary(boundary: Boundary) -> None:
    """Raise `InvalidManifest` unless a boundary can be one of ours."""
    for ref in boundary.outputs:
        check_file(ref)
        require(ref.path.startswith("gc/outputs/"), "the path of an index of outputs")
    require(all(map(is_name, boundary.further_gone)), "further_gone")


def check_file(ref: FileRef) -> None:
    """Raise `InvalidManifest` unless a file can be one of ours, below the root."""
    below = bool(_PATH.fullmatch(ref.path)) and "/../" not in f"/{ref.path}/" and "/./" not in f"/{ref.path}/"
    require(below and len(ref.path) <= PATH_CHARACTERS, "a path")
    require(0 <= ref.bytes <= MOST and 0 <= ref.rows <= MOST, "the size of a file")
    require(0 <= ref.root <= BASES, "the root of a file")
    within = 0 <= ref.start <= ref.start + ref.bytes <= ref.bundle_bytes <= MOST
    require(within and ref.kind == "changelog" if ref.bundle_bytes else not ref.start, "a part of a bundle")
    require(0 <= ref.first <= ref.last <= MOST, "first and last of a file")
    check_times((ref.expiry_min, ref.expiry_max), "the expiry of a file")
    if ref.tail:
        size, _, digest = ref.tail.partition(":")
        sized = size.isascii() and size.isdecimal() and len(size) < len(str(MOST)) and int(size) <= ref.bytes
        require(sized and bool(digest), "the tail of a file")


def is_name(text: str) -> bool:
    """Whether a folder may be called so."""
    plain = text not in (".", "..") and not {"/", "\\"} & set(text) and not _CONTROL.search(text)
    return bool(text) and plain and len(text) <= NAME_CHARACTERS


def _check_numbers(manifest: Manifest) -> None:
    require(1 <= manifest.id <= MOST, "id")
    require(manifest.parent_id < manifest.id, "parent_id")
    delivered = manifest.delivered
    require(max(delivered.panes, delivered.late, manifest.fed) <= manifest.id, "delivered or fed")
    up_to = delivered.further.values()
    require(all(delivered.panes < last <= manifest.id for last in up_to), "what is delivered of outputs")
    further = manifest.fed_by_operator.values()
    require(all(manifest.fed < last <= manifest.id for last in further), "fed_by_operator")
    if (answered := manifest.answered) is not None:
        require(answered.checkpoint <= manifest.id and answered.epoch <= manifest.epoch, "answered")
    ends = [end for ids in manifest.abandoned for end in ids]
    require(ends == sorted(ends) and all(0 < end < manifest.id for end in ends), "abandoned")


def _check_operator(name: str, operator: OperatorState, checkpoint_id: int) -> None:
    require(len(operator.tables) <= TABLES, "tables")
    for spec in operator.tables:
        require(is_name(spec.name) and len(spec.key) + len(spec.values) <= COLUMNS, "a table")
    names = {spec.name for spec in operator.tables}
    require(len(names) == len(operator.tables), "tables")
    if operator.parts:
        _check_parts(name, operator)
    else:
        require(1 <= len(operator.partitions) <= PARTITIONS and not operator.count, "partitions")
    check_entries(name, dict(enumerate(operator.partitions)), names, checkpoint_id)
    check_times(operator.expired.values(), "expired")
    for field, records in (("renamed", operator.renamed), ("results", operator.results)):
        for renamed_in, _, _ in records:
            check_natural(renamed_in, field)
    lengths = map(len, operator.zones.values())
    require(len(operator.zones) <= ZONES and max(lengths, default=0) <= ZONE_CHARACTERS, "zones")
    require(all(zone and len(zone) <= NAME_CHARACTERS for zone in operator.zones), "zones")
    check_times(operator.emitted, "emitted")
    for last in operator.emitted.values():
        check_natural(last, "emitted")
    _check_progress(operator.progress)
    for tree in (
        operator.configuration,
        operator.progress,
        operator.advances,
        operator.buffers,
        operator.buffers_by_side,
        operator.numbering,
    ):
        _check_depth(tree)


def _check_parts(name: str, operator: OperatorState) -> None:
    require(1 <= operator.count <= PARTITIONS and not operator.partitions, "partitions")
    for ref in operator.parts:
        check_file(ref)
        fits = ref.path.startswith(state_folder(name)) and ref.path.endswith(".partitions.json")
        require(fits and not (ref.table or ref.root) and ref.last < operator.count, "a part")
        require(ref.bytes <= MANIFEST_BYTES, "the size of a part")
    covered = [number for ref in operator.base for number in range(ref.first, ref.last + 1)]
    require(covered == list(range(operator.count)), "the base")
    same = [(ref.checksum, ref.bytes) for ref in operator.base]
    require([(ref.checksum, ref.bytes) for ref in operator.copies] == same, "the copies of a base")


def check_entries(name: str, partitions: Mapping[int, PartitionState], tables: set[str], checkpoint_id: int) -> None:
    """Raise `InvalidManifest` unless these partitions, by number, can be an operator's."""
    for number, partition in partitions.items():
        _check_partition(partition, tables, checkpoint_id)
        table_of_part: dict[Location, str] = {}
        for ref in partition.files:
            # After a rescale files stay in the folder of their old partition.
            own = state_folder(name, None if ref.share else number)
            ending = BUNDLE_SUFFIX if ref.bundle_bytes else f".{ref.table}.{ref.kind}"
            require(ref.path.startswith(own) and ending in ref.path, "the path of a state file")
            if ref.bundle_bytes:  # else one part would be checked for two
                require(
                    table_of_part.setdefault(ref.location, ref.table) == ref.table, "the start of a part of a bundle"
                )


def _check_partition(partition: PartitionState, tables: set[str], checkpoint_id: int) -> None:
    check_natural(partition.sequence, "sequence")
    check_natural(partition.floor, "floor")
    check_times(partition.expired.values(), "expired")
    check_times((partition.due_mark, partition.due_us), "what is due in a partition")
    for ref in partition.files:
        check_file(ref)
        require(ref.table in tables, "the table of a file")
        require(ref.last <= checkpoint_id, "last of a file")


def _check_outputs(checkpoint: Manifest | Output) -> None:
    """Panes and ledgers of a checkpoint."""
    for kind in OUTPUT_KINDS:
        for ref in checkpoint.output(kind):
            check_file(ref)
            place, _, name = ref.path.rpartition("/")
            fits = place.startswith(f"{kind}/") and name.startswith(f"{checkpoint.id:0{DIGITS}d}-")
            require(fits and not ref.root, f"a file of {kind} of this checkpoint")


def _check_spark(position: SparkPosition | None) -> None:
    if position is None:
        return
    for ref in position.refs:
        check_file(ref)
        require(ref.path.startswith("data/spark/"), "the path of a list of input files")


def _check_progress(progress: dict[str, Any] | None) -> None:
    """The form of progress that readers of manifests rely on."""
    if progress is None:
        return
    sources = progress.get("sources", {})
    require(isinstance(sources, dict), "sources")
    for one in sources.values():
        known = isinstance(one, dict) and isinstance(one.get("standing"), str)
        require(known and all(_is_whole(one.get(name)) for name in ("watermark_us", "rows")), "a source")
    now = progress.get("processing_us")
    require(now is None or _is_whole(now), "processing_us of a watermark")


def _check_depth(tree: Any) -> None:
    """Raise `InvalidManifest` if a tree is nested too deeply or contains an integer beyond 64 bits."""
    level = [tree]
    for _ in range(DEPTH):
        parts: list[Any] = []
        for part in level:
            # Most parts are texts. What a file has are lists, dictionaries and numbers of just these types.
            kind = type(part)
            if kind is dict:
                parts.extend(part.values())
            elif kind is list:
                parts.extend(part)
            elif kind is int:
                require(LEAST <= part <= MOST, "a number")
        level = parts
        if not level:
            return
    raise InvalidManifest("the nesting is too deep")


def check_natural(value: int, name: str) -> None:
    """Raise `InvalidManifest` unless it fits 63 bits."""
    require(0 <= value <= MOST, name)


def check_times(values: Iterable[int | None], name: str) -> None:
    """Raise `InvalidManifest` unless all fit 64 bits."""
    require(all(value is None or LEAST <= value <= MOST for value in values), name)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and LEAST <= value <= MOST


def require(condition: bool, what: str) -> None:
    """Raise `InvalidManifest` unless ``condition`` holds."""
    if not condition:
        raise InvalidManifest(f"invalid value: {what}")


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """The file's bytes and the checksum by which a child names this manifest. Partitions in parts are left out, and
    ``needs``, ``answered``, ``fed_by_operator``, ``fed_by_reason``, ``outputs``, ``results``, ``buffers_by_side``,
    ``numbering``, ``emitted`` and ``zones`` where there are none.
    """
    fields = msgspec.structs.asdict(manifest) | {
        "operators": {name: _fields_of(one) for name, one in manifest.operators.items()}
    }
    body = msgspec.json.encode({name: value for name, value in fields.items() if name not in _ABSENT or value})
    digest = checksum(body)
    return b'{"checksum":"%s",\n"manifest":%s}\n' % (digest.encode(), body), digest


_ABSENT_IN_OPERATORS = ("results", "buffers_by_side", "numbering", "emitted", "zones")


def _fields_of(operator: OperatorState) -> dict[str, Any]:
    left_out = {"partitions": ()} if operator.base else {}
    fields = msgspec.structs.asdict(operator) | left_out
    return {name: value for name, value in fields.items() if name not in _ABSENT_IN_OPERATORS or value}


class _File(msgspec.Struct):
    checksum: str
    manifest: msgspec.Raw


class Version(msgspec.Struct):
    """The one field that every format has."""

    format: int


class _Reader(Version):
    """What says whether this version can read the rest."""

    needs: Needs = ()


# Made here, once: two threads that are the first to decode a type end the process.
_FILE, _READER, _MANIFEST = (
    msgspec.json.Decoder(_File),
    msgspec.json.Decoder(_Reader),
    msgspec.json.Decoder(Manifest),
)


def decode(data: bytes, path: str) -> tuple[Manifest, str]:
    """The manifest, without partitions that are in parts, and its checksum. Raises `CorruptionError`, or for what
    a newer version has written `IncompatibleError`.
    """
    if len(data) > MANIFEST_BYTES:
        raise _damaged(path, f"more than {MANIFEST_BYTES} bytes")
    try:
        file = _FILE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if checksum(bytes(file.manifest)) != file.checksum:
        raise _damaged(path, "checksum does not match")
    try:
        _check_readable(_READER.decode(file.manifest), path)
        manifest = _MANIFEST.decode(file.manifest)
        check(manifest)
        return manifest, file.checksum
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidManifest) as error:
        raise _damaged(path, str(error)) from None


def _check_readable(found: _Reader, path: str) -> None:
    if found.format != MANIFEST_FORMAT:
        raise IncompatibleError(
            "this manifest has an unknown format: use the tidestate version that wrote it, or a newer one",
            code="manifest-format",
            path=path,
            expected=MANIFEST_FORMAT,
            found=found.format,
        )
    if found.needs and (unknown := unknown_needs(found.needs)):
        raise IncompatibleError(
            f"this checkpoint needs {', '.join(unknown)}, which this version does not support: nothing was "
            "changed; use the tidestate version that wrote it, or a newer one",
            code="newer-version",
            path=path,
        )


def _damaged(path: str, reason: str) -> CorruptionError:
    return CorruptionError(
        f"the manifest is damaged ({reason.lower()}): nothing was changed; restore a good copy of this file, or go "
        "back: tidestate repair ROOT --to newest-good",
        code="manifest-damaged",
        path=path,
    )


CAPABILITIES: dict[str, str] = {
    "altered-by-columns/1": "columns say how far a time shift moves each row, or how long it lasts",
    "altered-by-expressions/1": "expressions say how far a time shift moves each row, or how long it lasts",
    "bundles/1": "small changes to several tables of a state partition are parts of one file",
    "buffers-by-side/1": "sides of a join, merge or union have numbered buffers of their own, each recorded",
    "deduplication-lateness/1": "a deduplication has a lateness of its own, and remembers ids for that much longer",
    "edges-in-windows/1": "windows by lifetime keep edges that have no end so far, in a table of their own",
    "edited-windows/1": "a checkpoint is of the kind edit: windows were put or removed by hand",
    "key-widened/1": "some files have a key column of an earlier type, which is wider or has another zone now",
    "renamed-results/1": "the manifest lists results that were renamed or removed, by which older panes are read",
    "duration-extremes/1": "minima and maxima of durations are stored as whole numbers",
    "wide-sums/1": "sums of whole numbers and of long decimals are stored in a wider type, which cannot overflow",
    "fed-by-operator/1": "late rows of some operators were put back up to a later checkpoint than those of others",
    "fed-by-reason/1": "late rows of some reasons were put back up to a later checkpoint than those of others",
    "expectations/1": "rows that miss an expectation are in the late ledger, which has a column of their names",
    "first-offsets/1": "windows of offsets of a side of a join start at its first offset, which the manifest records",
    "given-origins/1": "the engine gives origins to sources, and the ids by name are stored with the buffers",
    "generator-by-side/1": "each side of a join, merge or union has a generator of watermarks of its own",
    "most-common/1": "results are the values that occur most often, with their counts",
    "origins-of-output/1": "rows that an operator emits have the numbers of the buffer that they came in",
    "panes-by-element/1": "panes of single elements by arrival, of sessions, or beside a trigger by time",
    "panes-by-element-or-batch/1": "early panes are of elements and late ones of batches, or the reverse",
    "several-outputs/1": "a job keeps and delivers the panes of several of its operators, as the manifest lists them",
    "rows-in-order/1": "a union or a time shift keeps rows until the watermark passes them",
    "value-sketches/1": "groups are lists of values while these are few, then sketches: HLL, theta or KLL",
    "window-offsets/1": "windows store the first and last offset of their messages next to their aggregates",
    "rolling-windows/1": "windows of the last span before each event, whose events are stored by their times",
    "sessions-by-messages/1": "sessions are of the numbers of messages, which the manifest counts",
    "window-timing/1": "the late ledger says which rows were in time, past or future by the current window",
    "stages/1": "rows of a stream are decoded before an operator sees them, and its types are those that arrive",
    "aggregates-of-expressions/1": "aggregates are of the rows that meet a condition, or of values computed of rows",
    "derived-results/1": "results of windows are computed of other results",
    "panes-by-condition/1": "a window emits a pane only where a condition of its results is true",
    "expressions/1": "rows of a stream are filtered, or get computed columns, by expressions",
    "zones/1": "the rules of time zones that expressions name are stored with the operator",
    "plain-rows/1": "columns called kind, pane, timing or last of rows that pass an operator are not those of panes",
    "unordered-identity/1": "messages have an identity without an order, such as text, in the place of an offset",
}
"""Every capability that this version knows, as ``name/version``, with what is stored differently."""


def unknown_needs(needs: Iterable[str]) -> list[str]:
    """The names among ``needs`` that this version does not know."""
    return sorted(set(needs) - set(CAPABILITIES))


def grown_needs(*parts: Sequence[str]) -> tuple[str, ...]:
    """The union of all ``parts``, sorted."""
    return tuple(sorted({name for part in parts for name in part}))


STEPS: tuple[CheckpointKind, ...] = ("batch", "tick", "feed", "bootstrap")
"""Kinds that a running driver publishes under its writer epoch; every other kind begins a new epoch."""


class Changes(TypedDict, total=False):
    """The fields of `Manifest` that a writer may set; others follow from the rules or are carried on."""

    id: int
    job_id: str
    epoch: int
    operators: dict[str, OperatorState]
    outputs: tuple[str, ...]
    needs: tuple[str, ...]
    max_event_us: int | None
    processing_us: int | None
    drained: bool
    spark: SparkPosition | None
    input: InputPosition | None
    scan: Scan | None
    panes: tuple[FileRef, ...]
    late: tuple[FileRef, ...]
    delivered: Delivered
    counters: dict[str, int]
    fed: int
    fed_by_operator: dict[str, int]
    fed_by_reason: dict[str, dict[str, int]]
    parent_id: int
    abandoned: tuple[Ids, ...]
    answered: AnsweredRequest | None
    restored: Restore | None
    spent: Spent | None


def origin(job_id: str) -> Head:
    """The parent of the first checkpoint of a root: id 0, never published."""
    return Head(Manifest(MANIFEST_FORMAT, 0, "", job_id, 0, "", "fence", 0, {}), "")


def successor(head: Head, kind: CheckpointKind, writer: str, created_us: int, **changes: Unpack[Changes]) -> Manifest:
    """The checkpoint of this kind that follows ``head``.

    Scan, times, panes, ledgers and counters start empty; totals, watermarks, parent and epoch follow from ``head``
    and the kind.
    """
    was, step = head.manifest, kind in STEPS
    operators = changes.get("operators", was.operators)
    facts = {
        "id": was.id + 1,
        "parent": head.checksum,
        "parent_id": 0,
        "epoch": was.epoch if step else was.epoch + 1,
        "writer": writer,
        "kind": kind,
        "created_us": created_us,
        "watermark_us": _furthest_behind(operators) if "operators" in changes else was.watermark_us,
        "watermark_before_us": was.watermark_us,
        "scan": None,
        "spent": None,
        "panes": (),
        "late": (),
        "counters": {},
        "totals": _added(was.totals, changes.get("counters", {})),
        **changes,
        "operators": {name: _after(one, was.operators.get(name), step) for name, one in operators.items()},
    }
    needs = [
        # A version that reads `fed` alone would put rows back twice.
        *(("fed-by-operator/1",) if facts.get("fed_by_operator", was.fed_by_operator) else ()),
        *(("fed-by-reason/1",) if facts.get("fed_by_reason", was.fed_by_reason) else ()),
        # One that knows no bundles would take each for a damaged file.
        *(("bundles/1",) if _begins_bundles(was, operators) else ()),
    ]
    if needs:
        facts["needs"] = grown_needs(changes.get("needs", was.needs), needs)
    made: Manifest = msgspec.structs.replace(was, **facts)
    _check_follows(was, made)
    return made


def _begins_bundles(was: Manifest, operators: dict[str, OperatorState]) -> bool:
    """Whether a state file is part of a bundle, and no manifest of this line has named that need so far."""
    if "bundles/1" in was.needs:
        return False
    partitions = (part for operator in operators.values() for part in operator.partitions)
    return any(ref.bundle_bytes for part in partitions for ref in part.files)


def _after(operator: OperatorState, was: OperatorState | None, step: bool) -> OperatorState:
    before, mark = was.watermark_us if was is not None else None, operator.watermark_us
    grows = before is None or (mark is not None and before <= mark)
    invariant(grows, "a watermark never goes back", mark=mark, before=before)
    return msgspec.structs.replace(
        operator,
        watermark_before_us=before,
        closed_us=None if step else operator.closed_us,
        settles=operator.settles and not step,
    )


def _added(totals: dict[str, int], counters: dict[str, int]) -> dict[str, int]:
    return {name: totals.get(name, 0) + counters.get(name, 0) for name in {**totals, **counters}}


def _furthest_behind(operators: dict[str, OperatorState]) -> int | None:
    marks = [one.watermark_us for one in operators.values()]
    known = [mark for mark in marks if mark is not None]
    return min(known, default=None) if len(known) == len(marks) else None


def _check_follows(was: Manifest, made: Manifest) -> None:
    """What holds for every manifest and the one before it."""
    forked = made.job_id != was.job_id
    invariant(made.id > was.id or (forked and made.id == was.id), "ids grow", id=made.id, before=was.id)
    invariant(
        made.epoch == was.epoch if made.kind in STEPS else made.epoch > was.epoch,
        "steps keep the writer epoch, other kinds raise it",
        kind=made.kind,
        epoch=made.epoch,
        before=was.epoch,
    )
    for kind in OUTPUT_KINDS:
        invariant(
            was.delivered.up_to(kind) <= made.delivered.up_to(kind) <= made.id,
            "what was delivered stays delivered, and only what exists is delivered",
            id=made.id,
            delivered=made.delivered,
            before=was.delivered,
        )
    for name in {*was.outputs} & {*made.outputs} if made.kind in STEPS else ():
        before, after = was.delivered.up_to("panes", name), made.delivered.up_to("panes", name)
        invariant(before <= after, "what was delivered of an output stays delivered", operator=name, id=made.id)
    has_output = made.panes or made.late or made.counters
    invariant(made.kind in STEPS or not has_output, "only a step has panes, ledgers and counters", kind=made.kind)
    if made.needs != was.needs:
        invariant(not unknown_needs(made.needs), "what a manifest needs is registered", needs=made.needs)
    counts = {len(one.partitions) for one in made.operators.values()}
    invariant(len(counts) <= 1, "all operators have the same number of partitions", id=made.id, found=counts)
