"""A checkpoint root by its name, and as of which checkpoint it is read."""

from __future__ import annotations

from dataclasses import dataclass

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.moments import CheckpointAt, head_at
from tidestate.statestore.errors import UsageError


@dataclass(frozen=True, repr=False)
class Rooted:
    """What all parts of `Root` share. Nothing is open: each call opens the root, and sees what is there then."""

    url: str
    moment: CheckpointAt = None

    def _open(self) -> Checkpoint:
        return Checkpoint.open(self.url)

    def _as_of(self) -> tuple[Checkpoint, Manifest]:
        """The open root, and the checkpoint as of which it is read."""
        checkpoint = self._open()
        return checkpoint, head_at(checkpoint, self.moment).manifest

    def _whole(self, method: str) -> Checkpoint:
        """The open root, for what is of all its checkpoints. Raises `UsageError` (``root-at``) as of one of them."""
        self._check_whole(method)
        return self._open()

    def _check_whole(self, method: str) -> None:
        if self.moment is not None:
            raise UsageError(
                f"{method} needs the root with all its checkpoints, and this is the root as of one of them: call "
                "it without .at(…)",
                code="root-at",
                at=str(self.moment),
            )
