"""Up to where checkpoints were collected, and which are kept on purpose: what the small records say. Pure.

A **boundary** says that no manifest at or below an id counts any more. A **pin** keeps a checkpoint whatever the
boundary. docs/PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidestate.recovery.log.manifest import Manifest, state_files
from tidestate.recovery.log.outputs import Output, output_of
from tidestate.statestore.files.refs import FileRef


class Boundary(msgspec.Struct, frozen=True, omit_defaults=True):
    """No manifest at or below ``id`` counts any more, but for pinned ones.

    ``outputs`` name what the collected checkpoints put out, oldest first. Of checkpoints up to ``panes_gone`` the
    pane files have been deleted too, up to ``late_gone`` the ledger files.
    """

    number: int
    id: int
    created_us: int
    writer: str
    outputs: tuple[FileRef, ...] = ()
    panes_gone: int = 0
    late_gone: int = 0

    def left(self, output: Output) -> Output:
        """What is still there of what a checkpoint put out."""
        panes = () if output.id <= self.panes_gone else output.panes
        late = () if output.id <= self.late_gone else output.late
        return msgspec.structs.replace(output, panes=panes, late=late)

    def needed(self, manifest: Manifest) -> Iterator[FileRef]:
        """The files that must be there for a checkpoint: of a pinned one that was collected, those of its state."""
        yield from state_files(manifest)
        yield from manifest.spark.refs if manifest.spark is not None else ()
        if manifest.id > self.id:
            there = self.left(output_of(manifest))
            yield from (*there.panes, *there.late)


NO_BOUNDARY = Boundary(0, 0, 0, "")
"""Where nothing was ever collected."""


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint that is kept: who or why, and for a fork its root."""

    name: str
    checkpoint: int
    created_us: int
    writer: str
    note: str = ""
    fork: str = ""
