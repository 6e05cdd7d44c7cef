"""What a sink has acknowledged: the manifest says it of the checkpoints before it, a small file of that one itself.

A manifest cannot say that its own panes were taken. So a run that stops leaves ``delivered/<id>-<run>.<up to>.json``:
when checkpoint ``id`` of that run was the newest, the sink had taken everything up to ``up to``. The name says it
all. It names the run, so it holds for that very manifest, also in a copy or on a line that was abandoned and taken
up again, and for no other manifest with the same id.
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
    """Record that while ``manifest`` is the newest, a sink has taken everything up to checkpoint ``up_to``.

    Durable when it returns; again is fine. Raises `UnavailableError`, `CommitUnknownError`: the panes may come again.
    """
    invariant(up_to <= manifest.id, "a sink has taken what is there", newest=manifest.id, up_to=up_to)
    name = f"{manifest.id:0{DIGITS}d}-{manifest.writer}.{up_to}.json"
    record = {"checkpoint": manifest.id, "run": manifest.writer, "delivered": up_to}
    with contextlib.suppress(ConflictError):
        checkpoint.objects.create(f"{DELIVERED_FOLDER}/{name}", msgspec.json.encode(record) + b"\n")


def delivered(checkpoint: Checkpoint, manifest: Manifest) -> int:
    """Up to which checkpoint a sink has acknowledged panes, as of ``manifest`` and what was recorded after it."""
    found = [_NAME.fullmatch(name) for name in checkpoint.objects.names(DELIVERED_FOLDER)]
    own = [int(one[3]) for one in found if one and (int(one[1]), one[2]) == (manifest.id, manifest.writer)]
    return max([manifest.delivered, *(up_to for up_to in own if up_to <= manifest.id)])
