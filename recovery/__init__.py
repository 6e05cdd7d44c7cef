"""Checkpoints: the manifest, the commit, fencing, restore, and the command line.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidestate.statestore import lazily

if TYPE_CHECKING:
    from tidestate.recovery.checkpoint import Checkpoint as Checkpoint
    from tidestate.recovery.checkpoint import Head as Head
    from tidestate.recovery.manifest import Manifest as Manifest

__getattr__, __dir__ = lazily.names(
    __name__, {"tidestate.recovery.checkpoint": ("Checkpoint", "Head"), "tidestate.recovery.manifest": ("Manifest",)}
)
