"""Is a checkpoint root whole? Structure and chain of the manifests, files by size, their bytes, and Spark's own log.

Nothing is changed; what is found is a list, so that all damage is seen at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import Head, Ids, Manifest
from tidestate.recovery.log.prefetch import prefetch_with_progress
from tidestate.recovery.log.ranges import ids_text, outside
from tidestate.recovery.log.records import held_pins, read_part, read_pins
from tidestate.recovery.log.spark_files import SPARK_FOLDER
from tidestate.recovery.log.traces import Traces, traces
from tidestate.recovery.spark.agreement import compare
from tidestate.recovery.spark.position import load_files
from tidestate.recovery.spark.spark_log import SparkLog
from tidestate.statestore.errors import DataError, NotFoundError, TidestateError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.tails import examine

Where = Literal["manifest", "chain", "file", "bytes", "spark"]
KINDS: tuple[Where, ...] = ("manifest", "chain", "file", "bytes", "spark")
"""What may be wrong, the worst first."""


Place: TypeAlias = tuple[int, str]
"""Below which root a file lies, and its path."""
Needed: TypeAlias = dict[Place, tuple[FileRef, int]]
"""Files with the newest checkpoint that needs each."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: of which kind, in which checkpoint (the newest that needs it), where, and why.

    ``abandoned``: only checkpoints need it that a reset has abandoned, so it is of no consequence.
    """

    kind: Where
    checkpoint: int | None
    path: str
    why: str
    abandoned: bool = False


@dataclass(frozen=True)
class VerifyReport:
    """What was looked at and what was found. ``good``: the newest checkpoint that counts and of which all is whole,
    None for none.
    """

    checkpoints: int
    files: int
    bytes: int
    findings: tuple[Finding, ...]
    good: int | None

    @property
    def worst(self) -> Finding | None:
        """The worst of what was found in checkpoints that count."""
        return next((one for one in self.findings if not one.abandoned), None)


def verify(
    checkpoint: Checkpoint,
    *,
    read_percent: float = 0.0,
    spark: bool = False,
    last: int | None = None,
    seed: int = 0,
) -> VerifyReport:
    """Look at every checkpoint of a root, pinned ones too, and at outputs of those that were collected; or at the
    ``last`` so many only.

    ``read_percent`` of the files are read against their checksums; with ``spark`` its log must agree with the newest
    checkpoint. What is collected meanwhile is no finding.
    """
    # In this order: what leaves a trace has been published, and is listed.
    seen = traces(checkpoint.objects)
    listing = checkpoint.listing()
    ids, boundary, missing = listing.left, listing.boundary, listing.missing
    if last and last < len(ids):
        ids = ids[-last:]
        missing = [one for one in missing if one[0] > ids[0]]
    findings: list[Finding] = []
    heads = dict(_manifests(checkpoint, ids, findings))
    newest = heads[max(heads)].manifest if heads else None
    findings += _further(seen, listing.least, ids, newest)
    findings += _chain(heads, missing, newest)
    # As the newest that can be read sees it; a damaged one above that may have abandoned more.
    abandoned = {one.checkpoint for one in findings if one.abandoned}
    abandoned |= {number for number in ids if newest is not None and newest.abandons(number)}
    pinned = [] if last else _pinned(checkpoint, listing.stored, boundary.id)
    heads |= dict(_manifests(checkpoint, pinned, findings))
    needed: Needed = {}
    for number, ref in () if last else _outputs(checkpoint, boundary, findings):
        needed[ref.root, ref.path] = (ref, number)
    for number in sorted(heads, key=lambda one: (one not in abandoned, one)):
        for ref in boundary.needed(heads[number].manifest):
            needed[ref.root, ref.path] = (ref, number)
    wrong = dict(_files(checkpoint, needed, read_percent, random.Random(seed)))
    findings += wrong.values()
    if spark and ids and ids[-1] in heads:
        findings += of_spark(checkpoint, heads[ids[-1]].manifest)
    counting = [number for number in ids if number in heads and number not in abandoned]
    whole = [
        number
        for number in counting
        if not any((ref.root, ref.path) in wrong for ref in boundary.needed(heads[number].manifest))
    ]
    now = range(boundary.id + 1, checkpoint.boundary().id + 1)
    findings = [replace(one, abandoned=one.checkpoint in abandoned) for one in findings if one.checkpoint not in now]
    return VerifyReport(
        len({*ids, *heads}),
        len(needed),
        sum(ref.bytes for ref, _ in needed.values()),
        tuple(sorted(findings, key=lambda one: (KINDS.index(one.kind), one.checkpoint or 0, one.path))),
        max(whole, default=None),
    )


def _pinned(checkpoint: Checkpoint, stored: Sequence[int], bound: int) -> list[int]:
    """Checkpoints that were collected but for a pin; those of a pin without its mark as far as they lie here."""
    held = held_pins(checkpoint.objects)
    pins = [pin for pin in read_pins(checkpoint.objects) if pin.name in held or pin.checkpoint in stored]
    return sorted({pin.checkpoint for pin in pins if pin.checkpoint <= bound})


def _outputs(checkpoint: Checkpoint, boundary: Boundary, findings: list[Finding]) -> Iterator[tuple[int, FileRef]]:
    """Files of the output index, and those that it lists."""
    for part in boundary.outputs:
        yield part.last, part
        try:
            for output in read_part(checkpoint.objects, part):
                there = boundary.left(output)
                refs = (*there.panes, *there.late, *(output.spark.refs if output.spark is not None else ()))
                yield from ((output.id, ref) for ref in refs)
        except DataError as error:
            findings.append(Finding("bytes", part.last, part.path, error.message))


def _manifests(checkpoint: Checkpoint, ids: list[int], findings: list[Finding]) -> Iterator[tuple[int, Head]]:
    for number, read in checkpoint.load_each(ids):
        try:
            yield number, read()
        except (DataError, NotFoundError) as error:
            findings.append(Finding("manifest", number, manifest_path(number), error.message))


def _further(seen: Traces, least: int, ids: list[int], newest: Manifest | None) -> Iterator[Finding]:
    """Newer checkpoints than those that lie here."""
    top = ids[-1] if ids else 0
    position = newest.spark if newest is not None and newest.id == top else None
    beyond = seen.beyond(top, position) or (0 if ids else least or seen.written)
    if beyond:
        why = f"this root has been further: it has traces of checkpoints up to {beyond}, whose manifests are gone"
        yield Finding("manifest", beyond, manifest_path(top + 1), why)


def _chain(heads: dict[int, Head], missing: list[Ids], newest: Manifest | None) -> Iterator[Finding]:
    abandoned = newest.abandoned if newest is not None else ()
    lost = outside(missing, abandoned)
    for ranges, harmless in ((lost, False), (outside(missing, lost), True)):
        for first, last in ranges:
            why = f"the manifests of checkpoints {ids_text([(first, last)])} are gone"
            yield Finding("chain", last, manifest_path(first), why, harmless)
    for number, head in heads.items():
        before = head.manifest.follows
        if before in heads and head.manifest.parent != heads[before].checksum:
            yield Finding("chain", number, manifest_path(number), f"it does not follow checkpoint {before}")


def _files(
    checkpoint: Checkpoint, needed: Needed, read_percent: float, chance: random.Random
) -> Iterator[tuple[Place, Finding]]:
    files = [(*one, chance.uniform(0, 100) < read_percent) for one in needed.values()]
    for (ref, _, _), finding in prefetch_with_progress(
        checkpoint.seen, "files", lambda one: file_finding(checkpoint, *one), files
    ):
        if (found := finding()) is not None:
            yield (ref.root, ref.path), found


def file_finding(checkpoint: Checkpoint, ref: FileRef, number: int, read: bool) -> Finding | None:
    """What is wrong with a file that checkpoint ``number`` needs; with ``read``, with any byte of it."""
    try:
        if (size := checkpoint.objects.at(ref.root).size(ref.path)) != ref.bytes:
            return Finding("file", number, ref.path, f"it has {size:,} bytes, not {ref.bytes:,}")
        if read:
            examine(checkpoint.objects, ref)
    except NotFoundError:
        return Finding("file", number, ref.path, "it is gone")
    except DataError as error:
        return Finding("bytes", number, ref.path, error.message)
    return None


def spark_findings(checkpoint: Checkpoint, head: Manifest) -> Iterator[Finding]:
    """Where Spark's own checkpoint is not what our newest says."""
    log = SparkLog(checkpoint.objects)
    try:
        found = compare(load_files(checkpoint.objects, head.spark), log)
    except TidestateError as error:
        yield Finding("spark", head.id, SPARK_FOLDER, error.message)
        return
    if found.refusal is not None:
        yield Finding("spark", head.id, SPARK_FOLDER, found.refusal.message)
    yield from (Finding("spark", head.id, one.path, one.why) for one in found.differs)


def of_spark(checkpoint: Checkpoint, head: Manifest) -> list[Finding]:
    """As `spark_findings`; while a job runs, of a moment in which it published nothing."""
    found = list(spark_findings(checkpoint, head))
    while found and (newest := checkpoint.head()) is not None and newest.manifest.id > head.id:
        head = newest.manifest
        found = list(spark_findings(checkpoint, head))
    return found
