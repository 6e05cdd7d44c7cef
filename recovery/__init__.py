"""Checkpoints: the manifest, the commit, fencing, restore, and the command line.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore import lazily

if TYPE_CHECKING:
    from recovery.checkpoint import Checkpoint as Checkpoint
    from recovery.checkpoint import Head as Head
    from recovery.manifest import Manifest as Manifest

__getattr__, __dir__ = lazily.names(
    __name__, {"recovery.checkpoint": ("Checkpoint", "Head"), "recovery.manifest": ("Manifest",)}
)
