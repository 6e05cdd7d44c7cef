"""How far each side of a join has come whose rows are placed by positions of their own, such as offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.maxima import Maxima
from tidestate.operators.progress.progress import Claims, Progress
from tidestate.operators.progress.watermarks import Watermarks


def side_steps(watermarks: Watermarks, rows: pa.Table) -> dict[str, bytes]:
    """The packed steps of the positions of each side in ``rows``."""
    return {positions.side: positions.steps(rows) for positions in watermarks.positions}


def with_positions(watermarks: Watermarks, progress: Progress, claims: Iterable[Claims]) -> Progress:
    """``progress`` with the positions of a micro-batch's rows."""
    if not watermarks.positions:
        return progress
    pieces, ahead = list(claims), {}
    for side in _sides(watermarks):
        steps = [progress.tracker.ahead.get(side, b""), *(piece.newest.get(side, b"") for piece in pieces)]
        ahead[side] = Maxima.unpacked(steps)
    return Progress(msgspec.structs.replace(progress.tracker, ahead=_packed(ahead)), progress.generator)


def steps_of_sides(watermarks: Watermarks, progress: Progress) -> tuple[Maxima, ...]:
    """The steps of each side in a micro-batch that ends with this progress; without those of held rows."""
    bound, ahead = _passed_us(watermarks, progress), progress.tracker.ahead
    return tuple(Maxima.unpacked([ahead.get(side, b"")]).before(bound) for side in _sides(watermarks))


def newest_positions(watermarks: Watermarks, progress: Progress) -> tuple[int, ...]:
    """The largest position of each side; `BEGINNING_US` before its first row."""
    before = [progress.tracker.newest.get(side, BEGINNING_US) for side in _sides(watermarks)]
    by_side = zip(before, steps_of_sides(watermarks, progress), strict=True)
    return tuple(steps.last(first) for first, steps in by_side)


def as_stored(watermarks: Watermarks, progress: Progress) -> Progress:
    """``progress`` as it is stored: of the steps of positions only those of rows that are still held."""
    if not watermarks.positions:
        return progress
    by_side = zip(_sides(watermarks), newest_positions(watermarks, progress), strict=True)
    newest = {side: position for side, position in by_side if position != BEGINNING_US}
    bound = _passed_us(watermarks, progress)
    waiting = {side: Maxima.unpacked([steps]).since(bound) for side, steps in progress.tracker.ahead.items()}
    tracker = msgspec.structs.replace(progress.tracker, newest=newest, ahead=_packed(waiting))
    return Progress(tracker, progress.generator)


def _sides(watermarks: Watermarks) -> list[str]:
    return [positions.side for positions in watermarks.positions]


def _passed_us(watermarks: Watermarks, progress: Progress) -> int:
    """Rows before this time count already."""
    return progress.watermark_us if watermarks.in_order else END_US


def _packed(steps: Mapping[str, Maxima]) -> dict[str, bytes]:
    return {side: maxima.packed() for side, maxima in steps.items() if len(maxima.times)}
