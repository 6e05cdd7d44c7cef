"""Operators whose names differ in case alone: on a file system that ignores case their folders would be one."""

from __future__ import annotations

from collections.abc import Collection

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import differing_in_case
from tidestate.recovery.log.marker import MARKER
from tidestate.recovery.log.traces import FOLDERS
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.local import is_local


def check_letter_case(checkpoint: Checkpoint, operators: Collection[str], stored: Collection[str]) -> None:
    """Raise `UsageError` (``name-case``) for operators that a file system may take for one another, or, on one that
    ignores case, for an operator that the root had before. ``stored`` ones were taken by an older version: they go on
    where their folders are two.
    """
    objects = checkpoint.objects
    # Asked by the marker in capitals, which nobody writes. Object storage keeps case.
    ignored = is_local(objects.root) and objects.exists(MARKER.upper())
    folders = [name for folder in FOLDERS for name in objects.names(folder)] if ignored else []
    strange = set(differing_in_case({*operators, *folders}))
    if strange & set(operators) and (ignored or not strange <= set(stored)):
        raise UsageError(
            "the name of an operator is also the name of a folder, and these names, of operators or of earlier "
            "ones of this root, differ only in letter case: choose other names",
            code="name-case",
            names=sorted(strange),
            root=objects.root,
        )
