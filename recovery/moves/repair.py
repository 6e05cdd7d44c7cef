"""Repair: back to the newest checkpoint of which all is whole, or Spark's own checkpoint written anew from ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidestate.recovery.inspect.verify import Finding, file_finding, spark_findings
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import Head, Manifest
from tidestate.recovery.log.prefetch import prefetch_with_progress
from tidestate.recovery.log.ranges import ids_text
from tidestate.recovery.log.records import outputs_below
from tidestate.recovery.moves.reset import Reset, execute_reset, highest_used_id, plan_reset
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import CorruptionError, NotFoundError
from tidestate.statestore.files.refs import FileRef

log = logging.getLogger("tidestate")


@dataclass(frozen=True)
class Repair:
    """What is wrong with the newest checkpoints, and the reset to the one that is whole; None where nothing is."""

    findings: tuple[Finding, ...]
    reset: Reset | None


def plan_repair(checkpoint: Checkpoint) -> Repair:
    """Read every byte of what the newest checkpoint needs, and where something is wrong, of the one before it, and so
    on. Changes nothing. Raises `CorruptionError` where none is whole.
    """
    findings: list[Finding] = []
    checked: dict[str, Finding | None] = {}
    newest: Manifest | None = None
    beyond = highest_used_id(checkpoint)
    ids = checkpoint.present_ids()
    if beyond:
        why = "this root has been further: the manifests of its newest checkpoints are gone"
        findings.append(Finding("manifest", beyond, manifest_path(ids[-1] + 1 if ids else 1), why))
    for number in reversed(ids):
        if newest is not None and newest.abandons(number):
            continue
        try:
            head = checkpoint.load(number)
        except (CorruptionError, NotFoundError) as error:
            findings.append(Finding("manifest", number, manifest_path(number), error.message))
            continue
        newest = newest or head.manifest
        wrong = [*_chain(checkpoint, head), *_files(checkpoint, head.manifest, newest, checked)]
        findings += [one for one in wrong if one not in findings]
        if not wrong:
            whole = number == ids[-1] and not beyond
            return Repair(tuple(findings), None if whole else plan_reset(checkpoint, number))
    if not ids and not beyond:
        return Repair((), None)
    raise CorruptionError(
        "no checkpoint is whole: put back good copies of the files that verify names",
        code="none-whole",
        root=checkpoint.objects.root,
    )


def repair(checkpoint: Checkpoint, *, force: bool = False) -> Repair:
    """Go back to the newest checkpoint that is whole; what is damaged stays where it is and does not count any more.

    Raises what `plan_repair` and `execute_repair` do; nothing has happened then.
    """
    check_idle(checkpoint, force)
    return execute_repair(checkpoint, plan_repair(checkpoint), force=force)


def execute_repair(checkpoint: Checkpoint, planned: Repair, *, force: bool = False) -> Repair:
    """Go back as planned, by `plan_repair` or `plan_resync`. Nothing is read again, and nothing is written where
    nothing is wrong. Raises what `execute_reset` does.
    """
    if planned.reset is not None:
        execute_reset(checkpoint, planned.reset, force=force)
    return planned


def plan_resync(checkpoint: Checkpoint) -> Repair:
    """Whether Spark's own checkpoint agrees with our newest, and the reset to that very checkpoint where it does not.

    Changes nothing. Raises `CorruptionError` where the newest checkpoint cannot be read.
    """
    head = checkpoint.newest()
    if head is None:
        raise checkpoint.not_begun()
    manifest = head.manifest
    found = tuple(spark_findings(checkpoint, manifest))
    return Repair(found, plan_reset(checkpoint, manifest.id) if found else None)


def resync(checkpoint: Checkpoint, *, force: bool = False) -> Repair:
    """Write Spark's own checkpoint anew from our newest; the old one is kept in ``spark-replaced``.

    Raises what `plan_resync` and `execute_repair` do; nothing has happened then.
    """
    check_idle(checkpoint, force)
    return execute_repair(checkpoint, plan_resync(checkpoint), force=force)


def open_for_start(checkpoint: Checkpoint, policy: Policy, check: Callable[[Manifest], None]) -> Head | None:
    """The newest checkpoint, for a job that starts; with ``policy.damaged`` reset, the newest that is whole.

    ``check`` is asked, and raises, before anything is written. Raises `CorruptionError` where the newest is damaged
    and the policy is to stop.
    """
    if policy.damaged == "reset":
        _fall_back(checkpoint, policy, check)
    try:
        head = checkpoint.head(search=True)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error.message}; or go back: tidestate repair {checkpoint.objects.root} --to newest-good",
            code=error.code,
            **error.context,
        ) from None
    checkpoint.settle()  # its run may have died before; what we do from here on rests on it
    return head


def _fall_back(checkpoint: Checkpoint, policy: Policy, check: Callable[[Manifest], None]) -> None:
    planned = plan_repair(checkpoint)
    going = planned.reset
    if going is None:
        return
    check(going.manifest)
    check_idle(checkpoint, policy.second == "takeover", instead='Policy(second="takeover")')
    for one in planned.findings:
        log.warning("checkpoint %s: %s: %s", one.checkpoint, one.path, one.why)
    execute_reset(checkpoint, going, force=True)
    log.warning("back to checkpoint %d, the newest that is whole; abandoned: %s", going.to, ids_text(going.abandoned))
    if going.again:
        ids = ", ".join(str(number) for number, _ in going.again)
        log.warning("panes that were delivered come again under new ids: those of checkpoints %s", ids)


def _chain(checkpoint: Checkpoint, head: Head) -> Iterator[Finding]:
    number, before = head.manifest.id, head.manifest.follows
    try:
        if head.manifest.parent and checkpoint.load(before).checksum != head.manifest.parent:
            yield Finding("chain", number, manifest_path(number), f"it does not follow checkpoint {before}")
    except (CorruptionError, NotFoundError):
        return  # this one carries all state


def _files(
    checkpoint: Checkpoint, manifest: Manifest, newest: Manifest, checked: dict[str, Finding | None]
) -> list[Finding]:
    """What is wrong with files that a checkpoint needs, panes that a sink has yet to get among them."""
    needed = {ref.path: (ref, manifest.id) for ref in checkpoint.boundary().needed(manifest)}
    try:
        needed |= {ref.path: (ref, number) for number, ref in _due(checkpoint, manifest, newest)}
    except (CorruptionError, NotFoundError) as error:
        path = error.context.get("path") or manifest_path(error.context["id"])
        return [Finding("manifest", manifest.id, path, error.message)]
    unread = [(*one, True) for path, one in needed.items() if path not in checked]
    for (ref, _, _), found in prefetch_with_progress(
        checkpoint.seen, "files", lambda one: file_finding(checkpoint, *one), unread
    ):
        checked[ref.path] = found()
    return [one for path in needed if (one := checked[path]) is not None]


def _due(checkpoint: Checkpoint, manifest: Manifest, newest: Manifest) -> Iterator[tuple[int, FileRef]]:
    """Pane files up to a checkpoint that a sink has not acknowledged; none for a job without one."""
    had = delivered(checkpoint, newest)
    if had:
        boundary = checkpoint.boundary()
        for output in outputs_below(checkpoint.objects, boundary, had + 1, manifest.id - 1):
            if not manifest.abandons(output.id):
                yield from ((output.id, ref) for ref in output.panes)
        left = range(max(had, boundary.id) + 1, manifest.id)
        for number, read in checkpoint.load_each([one for one in left if not manifest.abandons(one)]):
            yield from ((number, ref) for ref in read().manifest.panes)
