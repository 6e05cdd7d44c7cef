"""Which runner a checkpoint belongs to: each knows its input by something else. Pure."""

from __future__ import annotations

from typing import Literal

from tidestate.operators.describe.configuration import BY_HAND
from tidestate.recovery.log.manifest import Manifest
from tidestate.statestore.errors import IncompatibleError, UsageError

Runner = Literal["spark", "standalone", "harness", "by hand"]
_CONTINUED = {
    "spark": "Spark has been writing this checkpoint: continue with on_spark",
    "standalone": "the standalone runner has been writing this checkpoint: continue with standalone",
    "harness": "a test harness has been writing this checkpoint: continue with harness",
    "by hand": "an operator by hand has been writing this checkpoint: continue with by_hand",
}


def runner_of(head: Manifest) -> Runner | None:
    """The runner whose input a checkpoint has; None where none has given any."""
    if head.spark is not None:
        return "spark"
    if head.input is not None:
        return "standalone"
    if any(BY_HAND in operator.configuration for operator in head.operators.values()):
        return "by hand"
    return "harness" if any(head.totals.values()) else None


def runner_note(head: Manifest) -> str | None:
    """Which runner a checkpoint belongs to, for a plan that does not know which one would start."""
    found = runner_of(head)
    return None if found is None else f"{_CONTINUED[found]}; another runner is refused"


def drained_error(checkpoint_id: int) -> UsageError:
    """Why a root takes no more input."""
    return UsageError(
        "this checkpoint is drained: every window has fired, and no more input is accepted; start with a new "
        "checkpoint folder",
        code="drained",
        id=checkpoint_id,
    )


def check_runner(head: Manifest | None, runner: Runner | None) -> None:
    """Raises `IncompatibleError` (``other-runner``) where another one has given the input of this checkpoint:
    this one would not know where it ended.
    """
    found = runner_of(head) if head is not None else None
    if head is not None and runner is not None and found not in (None, runner):
        raise IncompatibleError(f"{_CONTINUED[found]}, or use another folder", code="other-runner", id=head.id)
