"""How far each side of a join has come whose rows are placed by positions of their own, such as offsets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.maxima import Maxima, SidePositions
from tidestate.operators.progress.progress import Claims, GeneratorState, Observer, Progress


@dataclass(frozen=True)
class NewestPositions(Observer):
    """The newest position of each side. With ``in_order`` rows are held until the watermark passes them, and count
    from then on.
    """

    sides: tuple[SidePositions, ...]
    in_order: bool

    def read(self, accepted: pa.Table, so_far: GeneratorState) -> Claims:
        return Claims(newest={side.side: side.steps(accepted) for side in self.sides})

    def after(self, progress: Progress, claims: Sequence[Claims]) -> Progress:
        tracker, passed = progress.tracker, progress.watermark_us if self.in_order else END_US
        newest, steps, waiting = {}, {}, {}
        for side in [placed.side for placed in self.sides]:
            # A step that is here already is no step again, so it does not matter who has called this before.
            new = Maxima.unpacked([tracker.ahead.get(side, b""), *(piece.newest.get(side, b"") for piece in claims)])
            waiting[side] = new.since(passed)
            steps[side] = Maxima.unpacked([progress.generator.steps.get(side, b""), new.before(passed).packed()])
            newest[side] = steps[side].last(tracker.newest.get(side, BEGINNING_US))
        tracker = msgspec.structs.replace(
            tracker,
            newest={side: position for side, position in newest.items() if position != BEGINNING_US},
            ahead=_packed(waiting),
        )
        return Progress(tracker, msgspec.structs.replace(progress.generator, steps=_packed(steps)))


def _packed(steps: Mapping[str, Maxima]) -> dict[str, bytes]:
    return {side: maxima.packed() for side, maxima in steps.items() if len(maxima.times)}
