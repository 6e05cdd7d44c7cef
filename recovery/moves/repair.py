"""Repair: go back to the newest intact checkpoint, or rewrite Spark's own checkpoint from ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidestate.recovery.inspect.verify import Finding, file_finding, spark_findings
from tidestate.recovery.log.absent import not_begun
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import (
    OUTPUT_KINDS,
    Delivered,
    Head,
    Manifest,
    Output,
    OutputKind,
    operator_of_file,
    output_of,
)
from tidestate.recovery.log.parts import spared
from tidestate.recovery.log.ranges import ids_text
from tidestate.recovery.log.records import outputs_below
from tidestate.recovery.moves.reset import Reset, execute_reset, highest_used_id, plan_reset
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import CorruptionError, NotFoundError
from tidestate.statestore.files.refs import FileRef, Location

log = logging.getLogger("tidestate")


@dataclass(frozen=True)
class Repair:
    """What is wrong with the newest checkpoints, and the reset that repairs it; None if nothing is wrong."""

    findings: tuple[Finding, ...]
    reset: Reset | None


def plan_repair(checkpoint: Checkpoint) -> Repair:
    """Plan the reset to the newest intact checkpoint; nothing is written. Every byte that the newest checkpoint needs
    is read, and if something is wrong, of the one before it, and so on. Raises `CorruptionError` if none is intact.
    """
    while True:
        beyond, ids = highest_used_id(checkpoint), checkpoint.present_ids()
        try:
            repair = _planned(checkpoint, beyond, ids)
        except (CorruptionError, NotFoundError):
            if not _overtaken(checkpoint, ids):
                raise
        else:
            if repair.reset is None or not _overtaken(checkpoint, ids):
                return repair


def _overtaken(checkpoint: Checkpoint, ids: Sequence[int]) -> bool:
    """Whether all these checkpoints have been collected meanwhile: the job has gone on, and nothing is lost."""
    return bool(ids) and ids[-1] <= checkpoint.boundary().id


def _planned(checkpoint: Checkpoint, beyond: int, ids: Sequence[int]) -> Repair:
    findings: list[Finding] = []
    findings_by_location: dict[Location, Finding | None] = {}
    newest: Manifest | None = None
    if beyond:
        reason = "the manifests of the newest checkpoints are missing"
        findings.append(Finding("manifest", beyond, manifest_path(ids[-1] + 1 if ids else 1), reason))
    for number in reversed(ids):
        if newest is not None and newest.abandons(number):
            continue
        try:
            head = checkpoint.load(number)
        except (CorruptionError, NotFoundError) as error:
            findings.append(Finding("manifest", number, manifest_path(number), error.message))
            continue
        newest = newest or head.manifest
        wrong = [*_chain(checkpoint, head), *_files(checkpoint, head.manifest, newest, findings_by_location)]
        findings += [finding for finding in wrong if finding not in findings]
        if not wrong:
            intact = number == ids[-1] and not beyond
            return Repair(tuple(findings), None if intact else plan_reset(checkpoint, number))
    if not ids and not beyond:
        return Repair((), None)
    raise CorruptionError(
        "no checkpoint is intact: restore good copies of the files that verify lists",
        code="none-whole",
        root=checkpoint.objects.root,
    )


def plan_resync(checkpoint: Checkpoint) -> Repair:
    """Plan a reset to the newest checkpoint itself, if Spark's own checkpoint differs from it; nothing is written.

    Raises `CorruptionError` if the newest checkpoint cannot be read.
    """
    head = checkpoint.newest()
    if head is None:
        raise not_begun(checkpoint.objects.root)
    manifest = head.manifest
    findings = tuple(spark_findings(checkpoint, manifest))
    return Repair(findings, plan_reset(checkpoint, manifest.id) if findings else None)


def open_for_start(checkpoint: Checkpoint, policy: Policy, check: Callable[[Manifest], object]) -> Head | None:
    """The newest checkpoint, for a job that starts; with ``policy.damaged`` reset, the newest intact one.

    ``check`` may raise before anything is written. Raises `CorruptionError` if the newest checkpoint is damaged and
    the policy is to stop.
    """
    if policy.damaged == "reset":
        _fall_back(checkpoint, policy, check)
    try:
        head = checkpoint.head(search=True)
    except CorruptionError as error:
        way, root = "tidestate repair", checkpoint.objects.root
        message = error.message.replace(f"{way} ROOT", f"{way} {root}")
        raise CorruptionError(
            message if way in message else f"{message}; or go back: {way} {root} --to newest-good",
            code=error.code,
            **error.context,
        ) from None
    checkpoint.settle()  # its run may have died before it did; all that follows depends on it
    return head


def _fall_back(checkpoint: Checkpoint, policy: Policy, check: Callable[[Manifest], object]) -> None:
    repair = plan_repair(checkpoint)
    reset = repair.reset
    if reset is None:
        return
    check(reset.manifest)
    check_idle(checkpoint, policy.second == "takeover", instead='Policy(second="takeover")')
    for finding in repair.findings:
        log.warning("checkpoint %s: %s: %s", finding.checkpoint, finding.path, finding.why)
    execute_reset(checkpoint, reset, force=True)
    log.warning(
        "went back to checkpoint %d, the newest intact one; abandoned: %s", reset.to, ids_text(reset.abandoned)
    )
    if reset.again:
        ids = ", ".join(str(number) for number, _ in reset.again)
        log.warning(
            "output of these checkpoints that was already delivered is delivered again, under new ids: %s", ids
        )


def _chain(checkpoint: Checkpoint, head: Head) -> Iterator[Finding]:
    number, before = head.manifest.id, head.manifest.follows
    if head.manifest.parent and checkpoint.parent_differs(head):
        yield Finding("chain", number, manifest_path(number), f"it does not follow checkpoint {before}")


def _files(
    checkpoint: Checkpoint, manifest: Manifest, newest: Manifest, findings_by_location: dict[Location, Finding | None]
) -> list[Finding]:
    """What is wrong with files that a checkpoint needs, with panes that are not delivered yet."""
    try:
        refs = _needed(checkpoint, manifest, newest)
        unread = [(*entry, True) for location, entry in refs.items() if location not in findings_by_location]
        for (ref, _, _), check in checkpoint.prefetch(
            "files", lambda entry: file_finding(checkpoint, *entry), unread
        ):
            findings_by_location[ref.location] = check()
        damaged_locations = {location for location in refs if findings_by_location[location] is not None}
        if damaged_locations:  # output may have been deleted by its age meanwhile
            refs = _needed(checkpoint, manifest, newest)
    except (CorruptionError, NotFoundError) as error:
        path = error.context.get("path") or manifest_path(error.context["id"])
        return [Finding("manifest", manifest.id, path, error.message)]
    harmless = spared(manifest, damaged_locations)
    findings = [findings_by_location.get(location) for location in refs if location not in harmless]
    return list(dict.fromkeys(finding for finding in findings if finding is not None))


def _needed(checkpoint: Checkpoint, manifest: Manifest, newest: Manifest) -> dict[Location, tuple[FileRef, int]]:
    """Files that a checkpoint needs, with panes that are not delivered yet; each with the checkpoint that names it.

    Raises `CorruptionError` and `NotFoundError` with ``path`` or ``id`` if what is due cannot be read.
    """
    refs = {ref.location: (ref, manifest.id) for ref in checkpoint.boundary().needed(manifest)}
    return refs | {ref.location: (ref, number) for number, ref in _due(checkpoint, manifest, newest)}


def _due(checkpoint: Checkpoint, manifest: Manifest, newest: Manifest) -> Iterator[tuple[int, FileRef]]:
    """Output files of earlier checkpoints that a sink has not acknowledged; none of a kind if it never acknowledged
    any.
    """
    had = delivered(checkpoint, newest)
    acknowledged = {"panes": [had.panes, *had.further.values()], "late": [had.late] if had.late_sink else []}
    due: dict[OutputKind, int] = {kind: min(filter(None, acknowledged[kind]), default=0) for kind in OUTPUT_KINDS}
    due = {kind: up_to for kind, up_to in due.items() if up_to}
    if not due:
        return
    boundary, least = checkpoint.boundary(), min(due.values())
    for output in outputs_below(checkpoint.objects, boundary, least + 1, manifest.id - 1):
        if not manifest.abandons(output.id):
            yield from _not_had(output, due, had)
    left = range(max(least, boundary.id) + 1, manifest.id)
    for _, read in checkpoint.load_each([number for number in left if not manifest.abandons(number)]):
        yield from _not_had(boundary.remaining(output_of(read().manifest)), due, had)


def _not_had(output: Output, kinds: Iterable[OutputKind], had: Delivered) -> Iterator[tuple[int, FileRef]]:
    """The files of a checkpoint's output beyond what is acknowledged, of these kinds."""
    for kind in kinds:
        for ref in output.outstanding(kind, had):
            if had.up_to(kind, operator_of_file(ref)):  # else no sink has ever asked for it
                yield output.id, ref
