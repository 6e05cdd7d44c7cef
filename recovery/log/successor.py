"""The next manifest: what follows from the one before, and what a writer may change. Pure.

A start, a step and a move (see `manifest`) change different fields; the rest follows by the same rules. So no writer
builds a manifest itself: it passes its changes to `successor`, which checks what holds for every manifest.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import msgspec

from tidestate.recovery.log.manifest import (
    MANIFEST_FORMAT,
    OUTPUT_KINDS,
    AnsweredRequest,
    CheckpointKind,
    Delivered,
    Head,
    Ids,
    InputPosition,
    Manifest,
    OperatorState,
    Restore,
    Scan,
    SparkPosition,
    Spent,
)
from tidestate.recovery.log.manifest_file import grown_needs, unknown_needs
from tidestate.statestore.errors import invariant
from tidestate.statestore.files.refs import FileRef

STEPS: tuple[CheckpointKind, ...] = ("batch", "tick", "feed", "bootstrap")
"""Kinds that a running driver publishes under its writer epoch; every other kind begins a new epoch."""


class Changes(TypedDict, total=False):
    """The fields of `Manifest` that a writer may set; others follow from the rules or are carried on."""

    id: int
    job_id: str
    epoch: int
    operators: dict[str, OperatorState]
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
    has_output = made.panes or made.late or made.counters
    invariant(made.kind in STEPS or not has_output, "only a step has panes, ledgers and counters", kind=made.kind)
    if made.needs != was.needs:
        invariant(not unknown_needs(made.needs), "what a manifest needs is registered", needs=made.needs)
    counts = {len(one.partitions) for one in made.operators.values()}
    invariant(len(counts) <= 1, "all operators have the same number of partitions", id=made.id, found=counts)
