"""The errors for checkpoints that are not there: never made, collected, or gone."""

from __future__ import annotations

from collections.abc import Sequence

from tidestate.recovery.log.listing import Listing
from tidestate.recovery.log.manifest import Ids
from tidestate.recovery.log.ranges import ids_text
from tidestate.statestore.errors import CorruptionError, NotFoundError


def no_root(root: str) -> NotFoundError:
    """The error for a folder that is no checkpoint root."""
    return NotFoundError(
        "this folder has no checkpoint: give the folder that the job has as checkpoint=",
        code="no-checkpoint",
        root=root,
    )


def not_begun(root: str) -> NotFoundError:
    """The error for a root without a checkpoint."""
    return NotFoundError("this root has no checkpoint yet: start the job first", code="no-such-checkpoint", root=root)


def no_such(checkpoint_id: int) -> NotFoundError:
    """The error for an id that nothing has used."""
    return NotFoundError("this checkpoint does not exist", code="no-such-checkpoint", id=checkpoint_id)


def before_the_first(checkpoint_id: int, first: int) -> NotFoundError:
    """The error for an id below the first one of a root."""
    return NotFoundError(
        "this root begins with a later checkpoint: choose that one or a newer one",
        code="no-such-checkpoint",
        id=checkpoint_id,
        first=first,
    )


def collected(checkpoint_id: int, found: Listing) -> NotFoundError:
    """The error for a checkpoint at or below the boundary."""
    return NotFoundError(
        "this checkpoint has been deleted by a collection: choose one that is left",
        code="collected",
        id=checkpoint_id,
        boundary=found.boundary.id,
        oldest=found.ids[0] if found.ids else None,
    )


def manifests_gone(lost: Sequence[Ids]) -> CorruptionError:
    """The error for ranges of ids without manifests."""
    return CorruptionError(
        "manifests are missing, and with them the record of panes and files: restore them, or go back to a "
        "checkpoint before them (tidestate rewind)",
        code="manifest-gone",
        ids=ids_text(lost),
    )


def newer_manifests_gone(root: str, newest: int, beyond: int) -> CorruptionError:
    """The error for a root with traces of checkpoint ``beyond``, above its newest manifest."""
    return CorruptionError(
        "the manifests of the newest checkpoints are missing, but other files show that they existed: restore the "
        "manifests, or go on without them: tidestate repair ROOT --to newest-good",
        code="root-further",
        root=root,
        newest=newest,
        traces_up_to=beyond,
    )
