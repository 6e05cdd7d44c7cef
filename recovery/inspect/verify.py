"""Whether a checkpoint root is intact: structure and chain of manifests, sizes and bytes of files, Spark's own log.

Read-only. All findings are collected, so that all damage is visible at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import Head, Ids, Manifest
from tidestate.recovery.log.parts import spared
from tidestate.recovery.log.ranges import ids_text, outside
from tidestate.recovery.log.records import complete_pins, read_part, read_pins
from tidestate.recovery.log.spark_log import SPARK_FOLDER, SparkLog, load_files
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.recovery.log.traces import Traces, traces
from tidestate.recovery.spark.agreement import compare
from tidestate.statestore.errors import DataError, NotFoundError, TidestateError, UsageError
from tidestate.statestore.files.refs import FileRef, Location
from tidestate.statestore.files.tails import examine

Where = Literal["manifest", "chain", "file", "bytes", "spark"]
KINDS: tuple[Where, ...] = ("manifest", "chain", "file", "bytes", "spark")
"""Kinds of findings, the worst first."""
Needed: TypeAlias = dict[Location, tuple[FileRef, int]]
"""Files, each with the newest checkpoint that needs it."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its kind, the newest checkpoint that needs it, the file, and the reason.

    ``abandoned``: only checkpoints that a reset has abandoned need it, so it does no harm.
    """

    kind: Where
    checkpoint: int | None
    path: str
    why: str
    abandoned: bool = False

    def __str__(self) -> str:
        harmless = " (abandoned)" if self.abandoned else ""
        return f"{self.kind}: checkpoint {self.checkpoint}, {self.path}: {self.why}{harmless}"


@dataclass(frozen=True, repr=False)
class VerifyReport:
    """How much was checked and what was found. ``good``: the newest intact checkpoint that counts, or None. It prints
    itself.
    """

    checkpoints: int
    files: int
    bytes: int
    findings: tuple[Finding, ...]
    good: int | None

    @property
    def worst(self) -> Finding | None:
        """The worst finding in checkpoints that count."""
        return next((finding for finding in self.findings if not finding.abandoned), None)

    @property
    def summary(self) -> str:
        """What was checked, and how it is, in a line."""
        files = f"{pluralize(self.files, 'file')}, {size_text(self.bytes)}"
        extent = f"{pluralize(self.checkpoints, 'checkpoint')}, {files}"
        if not self.findings:
            return f"intact: {extent}"
        good = f"the newest intact checkpoint is {self.good}" if self.good is not None else "no checkpoint is intact"
        return f"{pluralize(len(self.findings), 'finding')} in {extent}; {good}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.summary])

    __repr__ = __str__


def verify(
    checkpoint: Checkpoint,
    *,
    read_percent: float = 0.0,
    spark: bool = False,
    last: int | None = None,
    seed: int = 0,
) -> VerifyReport:
    """Check every checkpoint of a root, pinned ones and outputs of collected ones included; or the ``last`` only.

    ``read_percent`` of the files are read against their checksums; with ``spark`` its log must agree with the newest
    checkpoint. Checkpoints that are collected meanwhile are not findings.
    """
    if not 0 <= read_percent <= 100:
        raise UsageError("read_data is a percentage of the files, 0 to 100", code="argument", found=read_percent)
    # Traces first: what has left one is published, so the listing contains it.
    signs = traces(checkpoint.objects)
    listing = checkpoint.listing()
    ids, boundary, gaps = listing.ids, listing.boundary, listing.missing
    if last and last < len(ids):
        ids = ids[-last:]
        gaps = [gap for gap in gaps if gap[0] > ids[0]]
    findings: list[Finding] = []
    heads = dict(_manifests(checkpoint, ids, findings))
    newest = heads[max(heads)].manifest if heads else None
    findings += _newer(signs, listing.least_head, ids, newest)
    findings += _chain(heads, gaps, newest)
    # By the newest manifest that can be read; a damaged one above it may have abandoned more.
    abandoned_ids = {finding.checkpoint for finding in findings if finding.abandoned}
    abandoned_ids |= {number for number in ids if newest is not None and newest.abandons(number)}
    pinned_ids = [] if last else _pinned(checkpoint, listing.stored, boundary.id)
    heads |= dict(_manifests(checkpoint, pinned_ids, findings))
    # Those that count come last: of the checkpoints that need a file, the last one is named in its finding.
    numbers = sorted(heads, key=lambda number: (number not in abandoned_ids, number))
    manifests = [heads[number].manifest for number in numbers]
    needed_files, unread = _needed(checkpoint, boundary, manifests, has_index=not last)
    wrong, now = dict(_files(checkpoint, needed_files, read_percent, random.Random(seed))), boundary
    while (wrong or unread) and (later := checkpoint.boundary()) != now:
        now = later  # what is gone may have been deleted by its age
        still, unread = _needed(checkpoint, now, manifests, has_index=not last)
        wrong = {key: finding for key, finding in wrong.items() if key in still}
    findings += [*unread, *dict.fromkeys(wrong.values())]  # all parts of a bundle may be wrong for one reason
    if spark and ids and ids[-1] in heads:
        findings += _spark(checkpoint, heads[ids[-1]].manifest)
    counting = [number for number in ids if number in heads and number not in abandoned_ids]
    intact_ids = [number for number in counting if not _broken(boundary, heads[number].manifest, wrong)]
    collected_ids = range(boundary.id + 1, checkpoint.boundary().id + 1)
    findings = [finding for finding in findings if not _is_moot(finding, heads, collected_ids)]
    findings = [replace(finding, abandoned=finding.checkpoint in abandoned_ids) for finding in findings]
    sizes = {(ref.root, ref.path): ref.file_bytes for ref, _ in needed_files.values()}
    return VerifyReport(
        len({*ids, *heads}),
        len(sizes),
        sum(sizes.values()),
        tuple(sorted(findings, key=_rank)),
        max(intact_ids, default=None),
    )


def _rank(finding: Finding) -> tuple[int, int, str]:
    """Findings are in order of kind, checkpoint and path."""
    return KINDS.index(finding.kind), finding.checkpoint or 0, finding.path


def _is_moot(finding: Finding, heads: Mapping[int, Head], collected_ids: range) -> bool:
    """Whether its checkpoint has been collected meanwhile, or a parent that differs: an older writer may then take
    the parent's id, in vain.
    """
    if finding.checkpoint in collected_ids:
        return True
    head = heads.get(finding.checkpoint or 0)
    return finding.kind == "chain" and head is not None and head.manifest.follows in collected_ids


def _broken(boundary: Boundary, manifest: Manifest, wrong: Mapping[Location, Finding]) -> bool:
    """Whether a checkpoint needs one of the files that are wrong."""
    harmless = spared(manifest, wrong) if wrong else set()
    locations = (ref.location for ref in boundary.needed(manifest))
    return any(location in wrong and location not in harmless for location in locations)


def _pinned(checkpoint: Checkpoint, ids: Sequence[int], bound: int) -> list[int]:
    """Pinned checkpoints at or below the boundary; for a pin that lacks a file, only if the manifest is there."""
    complete = complete_pins(checkpoint.objects)
    pins = [pin for pin in read_pins(checkpoint.objects) if pin.name in complete or pin.checkpoint in ids]
    return sorted({pin.checkpoint for pin in pins if pin.checkpoint <= bound})


def _needed(
    checkpoint: Checkpoint, boundary: Boundary, manifests: Sequence[Manifest], *, has_index: bool
) -> tuple[Needed, list[Finding]]:
    """The files that these checkpoints need and, if ``has_index``, those of the output index with the files that it
    lists; and what of the index cannot be read.
    """
    files: Needed = {}
    unread: list[Finding] = []
    for part in boundary.outputs if has_index else ():
        files[part.location] = (part, part.last)
        try:
            for output in read_part(checkpoint.objects, part):
                left = boundary.remaining(output)
                refs = (*left.panes, *left.late, *(output.spark.refs if output.spark is not None else ()))
                files |= {ref.location: (ref, output.id) for ref in refs}
        except (DataError, NotFoundError) as error:
            unread.append(Finding("bytes", part.last, part.path, error.message))
    # Of a bundle whose parts different checkpoints need, one is named in the finding, as of any file.
    last_ids: dict[tuple[int, str], int] = {}
    for manifest in manifests:
        refs_by_location = {ref.location: (ref, manifest.id) for ref in boundary.needed(manifest)}
        last_ids |= {(root, path): manifest.id for root, path, _ in refs_by_location}
        files |= refs_by_location
    return {location: (ref, last_ids.get(location[:2], number)) for location, (ref, number) in files.items()}, unread


def _manifests(checkpoint: Checkpoint, ids: list[int], findings: list[Finding]) -> Iterator[tuple[int, Head]]:
    for number, read in checkpoint.load_each(ids):
        try:
            yield number, read()
        except (DataError, NotFoundError) as error:
            # Of a part of the manifest, or of the manifest itself.
            path = str(error.context.get("path") or manifest_path(number))
            findings.append(Finding("manifest", number, path, error.message))


def _newer(signs: Traces, least: int, ids: list[int], newest: Manifest | None) -> Iterator[Finding]:
    """Checkpoints that are newer than the newest manifest that is there."""
    top = ids[-1] if ids else 0
    position = newest.spark if newest is not None and newest.id == top else None
    beyond = signs.beyond(top, position) or (0 if ids else least or signs.written)
    if beyond:
        reason = f"the manifests of the newest checkpoints are gone: traces of checkpoints up to {beyond} remain"
        yield Finding("manifest", beyond, manifest_path(top + 1), reason)


def _chain(heads: dict[int, Head], gaps: list[Ids], newest: Manifest | None) -> Iterator[Finding]:
    abandoned_ids = newest.abandoned if newest is not None else ()
    lost_ranges = outside(gaps, abandoned_ids)
    for ranges, harmless in ((lost_ranges, False), (outside(gaps, lost_ranges), True)):
        for first, last in ranges:
            reason = f"the manifests of checkpoints {ids_text([(first, last)])} are gone"
            yield Finding("chain", last, manifest_path(first), reason, harmless)
    for number, head in heads.items():
        before = head.manifest.follows
        if before in heads and head.manifest.parent != heads[before].checksum:
            yield Finding("chain", number, manifest_path(number), f"it does not follow checkpoint {before}")


def _files(
    checkpoint: Checkpoint, needed_files: Needed, read_percent: float, chance: random.Random
) -> Iterator[tuple[Location, Finding]]:
    files = [(*entry, chance.uniform(0, 100) < read_percent) for entry in needed_files.values()]
    for (ref, _, _), check in checkpoint.prefetch("files", lambda entry: file_finding(checkpoint, *entry), files):
        if (finding := check()) is not None:
            yield ref.location, finding


def file_finding(checkpoint: Checkpoint, ref: FileRef, number: int, read: bool) -> Finding | None:
    """What is wrong with a file that checkpoint ``number`` needs; ``read``: check all its bytes."""
    try:
        if (size := checkpoint.objects.at(ref.root).size(ref.path)) != ref.file_bytes:
            return Finding("file", number, ref.path, f"it has {size:,} bytes, expected {ref.file_bytes:,}")
        if read:
            examine(checkpoint.objects, ref)
    except NotFoundError:
        return Finding("file", number, ref.path, "it is gone")
    except DataError as error:
        return Finding("bytes", number, ref.path, error.message)
    return None


def spark_findings(checkpoint: Checkpoint, head: Manifest) -> Iterator[Finding]:
    """Where Spark's own checkpoint differs from our newest."""
    log = SparkLog(checkpoint.objects)
    try:
        comparison = compare(load_files(checkpoint.objects, head.spark), log)
    except TidestateError as error:
        yield Finding("spark", head.id, SPARK_FOLDER, error.message)
        return
    if comparison.refusal is not None:
        yield Finding("spark", head.id, SPARK_FOLDER, comparison.refusal.message)
    yield from (Finding("spark", head.id, difference.path, difference.why) for difference in comparison.differs)


def _spark(checkpoint: Checkpoint, head: Manifest) -> list[Finding]:
    """`spark_findings`, repeated until a running job published nothing meanwhile."""
    findings = list(spark_findings(checkpoint, head))
    while findings and (newest := checkpoint.head()) is not None and newest.manifest.id > head.id:
        head = newest.manifest
        findings = list(spark_findings(checkpoint, head))
    return findings
