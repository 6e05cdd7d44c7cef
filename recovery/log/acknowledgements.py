"""What sinks have acknowledged: a manifest records it for earlier checkpoints, a small file for the manifest itself.

A manifest cannot record the delivery of its own output. So a run that stops leaves
``delivered/<id>-<run>.<panes>-<late>.json``: while checkpoint ``id`` of that run was the newest, the sinks had
acknowledged all panes up to checkpoint ``panes`` and all ledger rows up to ``late``. Of a job with several outputs
there follows, if they differ, ``.<panes>-<panes>``: up to which checkpoint those of each, in the order of the
manifest. The name contains everything. It includes the run, so it applies to that one manifest, also in a copy of the
root, and to no other manifest with the same id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

import msgspec

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DIGITS, Delivered, Manifest
from tidestate.statestore.errors import ConflictError, invariant

DELIVERED_FOLDER = "delivered"
_NAME = re.compile(
    r"([0-9]{20})-([0-9a-f]{32})\.([0-9]{1,20})-([0-9]{1,20})(?:\.([0-9]{1,20}(?:-[0-9]{1,20})+))?\.json"
)


def acknowledge(checkpoint: Checkpoint, manifest: Manifest, so_far: Delivered) -> None:
    """Record what sinks have acknowledged while ``manifest`` is the newest.

    Durable when it returns, and idempotent. Raises `UnavailableError` or `CommitUnknownError`: it may be delivered
    again.
    """
    most = max(so_far.panes, so_far.late, *so_far.further.values())
    invariant(most <= manifest.id, "a sink acknowledges what exists", newest=manifest.id, delivered=so_far)
    up_to = [so_far.up_to("panes", name) for name in manifest.outputs]
    each = f".{'-'.join(map(str, up_to))}" if so_far.further else ""
    name = f"{manifest.id:0{DIGITS}d}-{manifest.writer}.{so_far.panes}-{so_far.late}{each}.json"
    record = {"checkpoint": manifest.id, "run": manifest.writer, "panes": so_far.panes, "late": so_far.late}
    with contextlib.suppress(ConflictError):
        checkpoint.objects.create(f"{DELIVERED_FOLDER}/{name}", msgspec.json.encode(record) + b"\n")


def delivered(checkpoint: Checkpoint, manifest: Manifest) -> Delivered:
    """What sinks have acknowledged, by ``manifest`` and by records made after it."""
    found = manifest.delivered
    for name in map(_NAME.fullmatch, checkpoint.objects.names(DELIVERED_FOLDER)):
        if name and (int(name[1]), name[2]) == (manifest.id, manifest.writer):
            panes, late = int(name[3]), int(name[4])
            each = [int(number) for number in name[5].split("-")] if name[5] else [panes] * len(manifest.outputs)
            if max(panes, late, *each) <= manifest.id and len(each) == len(manifest.outputs):
                found = _with(found, manifest, panes, late, each)
    return found


def _with(found: Delivered, manifest: Manifest, panes: int, late: int, each: Sequence[int]) -> Delivered:
    """What was acknowledged, with what one record says."""
    found = found.reached("late", late)
    if not manifest.outputs:
        return found.reached("panes", panes)
    pairs = zip(manifest.outputs, each, strict=True)
    return found.of_outputs({name: max(found.up_to("panes", name), number) for name, number in pairs})
