"""How far each side of a join has come whose rows are placed by positions of their own, such as offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.progress.maxima import Maxima, SidePositions, opening
from tidestate.operators.progress.progress import Claims, Observer, Progress
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US


@dataclass(frozen=True)
class NewestPositions(Observer):
    """The newest position of each side, and the first offset of those whose windows start there. With ``in_order``
    rows are held until the watermark passes them, and count from then on.

    The first offset is the smallest that has arrived when the first row of the side counts. From then on it stays, so
    the windows do not move under rows that have been paired by them.
    """

    sides: tuple[SidePositions, ...]
    in_order: bool

    def read(self, accepted: pa.Table, so_far: Progress) -> Claims:
        newest, first_offsets = {}, {}
        for side in self.sides:
            times, positions = side.places(accepted)
            steps, grid = Maxima.of(times, positions), side.grid(_recorded(so_far, side.side))
            newest[side.side] = (steps if grid is None else steps.in_windows(grid)).packed()
            if side.from_first and len(positions):
                first_offsets[side.side] = int(positions.min())
        return Claims(newest=newest, first_offsets=first_offsets)

    def after(self, progress: Progress, claims: Sequence[Claims]) -> Progress:
        passed = progress.watermark_us if self.in_order else END_US
        newest, steps, waiting, first_offsets = {}, {}, {}, dict(progress.first_offsets)
        for placed in self.sides:
            side = placed.side
            # A step that is here already is no step again, so it does not matter who has called this before.
            new = Maxima.unpacked([progress.ahead.get(side, b""), *(piece.newest.get(side, b"") for piece in claims)])
            waiting[side] = new.since(passed)
            steps[side] = Maxima.unpacked([progress.generator.steps.get(side, b""), new.before(passed).packed()])
            newest[side] = steps[side].last(progress.newest.get(side, BEGINNING_US))
            if not placed.from_first:
                continue
            arrived = [offsets[side] for offsets in (first_offsets, *_first_offsets(claims)) if side in offsets]
            if _recorded(progress, side) is None and arrived:
                first_offsets[side] = min(arrived)
            grid = placed.grid(first_offsets.get(side)) if newest[side] != BEGINNING_US else None
            if grid is not None:
                # Until now every position was kept, as the windows were not known.
                waiting[side], steps[side] = waiting[side].in_windows(grid), steps[side].in_windows(grid)
                newest[side] = int(opening(grid, np.array([newest[side]]))[0])
        return msgspec.structs.replace(
            progress,
            newest={side: position for side, position in newest.items() if position != BEGINNING_US},
            ahead=_packed(waiting),
            first_offsets=first_offsets,
            generator=msgspec.structs.replace(progress.generator, steps=_packed(steps)),
        )


def _recorded(progress: Progress, side: str) -> int | None:
    """The first offset of a side; None before its first row counts."""
    return progress.first_offsets.get(side) if side in progress.newest else None


def _first_offsets(claims: Sequence[Claims]) -> Iterator[Mapping[str, int]]:
    return (piece.first_offsets for piece in claims)


def _packed(steps: Mapping[str, Maxima]) -> dict[str, bytes]:
    return {side: maxima.packed() for side, maxima in steps.items() if len(maxima.times)}
