"""What collection records: the boundary, below which checkpoints were collected, and pins, which keep one. Pure.

No manifest at or below the id of the **boundary** counts any more. A **pin** keeps a checkpoint regardless of the
boundary. See docs/internals/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from tidestate.recovery.log.manifest import (
    Manifest,
    Natural,
    Output,
    OutputKind,
    TimeUs,
    operator_of_file,
    output_of,
    state_files,
)
from tidestate.statestore.files.refs import FileRef


class Boundary(msgspec.Struct, frozen=True, omit_defaults=True):
    """No manifest at or below ``id`` counts any more, except pinned ones.

    ``outputs`` are the files that list the outputs of collected checkpoints, oldest first. Pane files of checkpoints
    up to ``panes_gone`` have been deleted too, ledger files up to ``late_gone``; of a job with several outputs those
    of some up to a later one, ``further_gone``.
    """

    number: Natural
    id: Natural
    created_us: TimeUs
    writer: str
    outputs: tuple[FileRef, ...] = ()
    panes_gone: Natural = 0
    late_gone: Natural = 0
    further_gone: dict[str, Natural] = {}

    def remaining(self, output: Output) -> Output:
        """The output of a checkpoint without the files that have been deleted."""
        panes = tuple(ref for ref in output.panes if output.id > self.gone("panes", operator_of_file(ref)))
        late = () if output.id <= self.gone("late") else output.late
        return msgspec.structs.replace(output, panes=panes, late=late)

    def gone(self, kind: OutputKind, operator: str = "") -> int:
        """The checkpoint up to which output of this kind has been deleted; of panes, those of one output, by default
        of all outputs.
        """
        return max(self.panes_gone, self.further_gone.get(operator, 0)) if kind == "panes" else self.late_gone

    def any_gone(self, kind: OutputKind) -> int:
        """The checkpoint up to which some output of this kind has been deleted."""
        return max(self.gone(kind), *(self.further_gone.values() if kind == "panes" else ()), 0)

    def needed(self, manifest: Manifest) -> Iterator[FileRef]:
        """The files that a checkpoint needs; one that was collected and is pinned needs its state only."""
        yield from state_files(manifest)
        yield from manifest.spark.refs if manifest.spark is not None else ()
        if manifest.id > self.id:
            output = self.remaining(output_of(manifest))
            yield from (*output.panes, *output.late)


NO_BOUNDARY = Boundary(0, 0, 0, "")
"""The boundary before the first collection."""


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint that is kept, with a note; ``fork`` is the root of the fork that needs it."""

    name: str
    checkpoint: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    created_us: TimeUs
    writer: str
    note: str = ""
    fork: str = ""
