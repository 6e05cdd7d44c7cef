"""The progress of an operator as its manifest stores it."""

from __future__ import annotations

import msgspec

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.buffer_state import BufferState
from tidestate.operators.progress.maxima import STEP_BYTES
from tidestate.operators.progress.progress import GeneratorState, Progress
from tidestate.operators.progress.tracker import Tracker
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import CorruptionError

prepare(BufferState, Advance, Tracker)


def progress_of(operator: OperatorState) -> Progress | None:
    """The stored progress of an operator; None before the first batch. Raises `CorruptionError` if it is invalid."""
    if operator.progress is None:
        return None
    try:
        buffers = msgspec.convert(operator.buffers, BufferState) if operator.buffers is not None else None
        advances = msgspec.convert(operator.advances, dict[str, Advance])
        tracker = msgspec.convert(operator.progress, Tracker)
        if any(len(steps) % STEP_BYTES for steps in tracker.ahead.values()):
            raise msgspec.ValidationError("steps are pairs of a time and a position")
        return Progress(tracker, GeneratorState(advances, buffers, operator.origins))
    except msgspec.ValidationError as error:
        raise CorruptionError(
            f"the manifest is damaged ({error}): nothing was changed; restore a good copy",
            code="manifest-damaged",
            part="progress",
        ) from None
