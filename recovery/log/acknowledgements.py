"""What a sink has acknowledged: a manifest records it for earlier checkpoints, a small file for the manifest itself.

A manifest cannot record the delivery of its own panes. So a run that stops leaves ``delivered/<id>-<run>.<up
to>.json``: while checkpoint ``id`` of that run was the newest, the sink had acknowledged everything up to ``up to``.
The name contains everything. It includes the run, so it applies to that one manifest, also in a copy of the root, and
to no other manifest with the same id.
"""

from __future__ import annotations

import contextlib
import re

import msgspec

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.names import DIGITS
from tidestate.statestore.errors import ConflictError, invariant

DELIVERED_FOLDER = "delivered"
_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{32})\.([0-9]{1,20})\.json")


def acknowledge(checkpoint: Checkpoint, manifest: Manifest, up_to: int) -> None:
    """Record that a sink has acknowledged everything up to checkpoint ``up_to`` while ``manifest`` is the newest.

    Durable when it returns, and idempotent. Raises `UnavailableError` or `CommitUnknownError`: the panes may be
    delivered again.
    """
    invariant(up_to <= manifest.id, "a sink acknowledges panes that exist", newest=manifest.id, up_to=up_to)
    name = f"{manifest.id:0{DIGITS}d}-{manifest.writer}.{up_to}.json"
    record = {"checkpoint": manifest.id, "run": manifest.writer, "delivered": up_to}
    with contextlib.suppress(ConflictError):
        checkpoint.objects.create(f"{DELIVERED_FOLDER}/{name}", msgspec.json.encode(record) + b"\n")


def delivered(checkpoint: Checkpoint, manifest: Manifest) -> int:
    """The checkpoint up to which a sink has acknowledged panes, by ``manifest`` and by records made after it."""
    names = [_NAME.fullmatch(name) for name in checkpoint.objects.names(DELIVERED_FOLDER)]
    recorded = [int(name[3]) for name in names if name and (int(name[1]), name[2]) == (manifest.id, manifest.writer)]
    return max([manifest.delivered, *(up_to for up_to in recorded if up_to <= manifest.id)])
