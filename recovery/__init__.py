"""Checkpoints: the manifest, the commit, fencing, restore, and the command line.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recovery.checkpoint import Checkpoint as Checkpoint
    from recovery.checkpoint import Head as Head
    from recovery.manifest import Manifest as Manifest

_MODULE = {"Checkpoint": "recovery.checkpoint", "Head": "recovery.checkpoint", "Manifest": "recovery.manifest"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULE)
