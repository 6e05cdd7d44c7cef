"""Checkpoints: the manifest, the commit, fencing, restore, and the command line.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidestate.statestore import lazy_exports

if TYPE_CHECKING:
    from tidestate.recovery.log.checkpoint import Checkpoint as Checkpoint
    from tidestate.recovery.log.manifest import Head as Head
    from tidestate.recovery.log.manifest import Manifest as Manifest

lazy_exports.export(
    __name__,
    {"tidestate.recovery.log.checkpoint": ("Checkpoint",), "tidestate.recovery.log.manifest": ("Head", "Manifest")},
)
