"""The times of a step and its result, for every operator."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.operators.progress.instants import END_US
from tidestate.operators.progress.maxima import Maxima
from tidestate.statestore.errors import invariant
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.table.sorting import ranks

FUTURE_US = 60_000_000
"""The default distance ahead of all events before it from which an event is counted as future."""
BUDGET_BYTES = 256 << 20
"""The default memory budget of a step."""
TIMINGS, KINDS = ("early", "on_time", "late"), ("emit", "retract")


@dataclass(frozen=True)
class StepTimes:
    """The watermark (``before``, ``after``) and the processing time (``was``, ``now``) before and after a step, in
    microseconds; `BEGINNING_US` is no watermark yet.

    ``reprocessing``: arrivals are from the late ledger; ``rebuilding``: they are a replay, for messages that were
    lost. ``incomplete``: some were lost, and windows may lack them: since the checkpoint ``lost_since``, with the
    watermark ``lost_at``. ``resumes``: it is the first step after that. ``sides_before`` and ``sides``: the largest
    position of each side (`Watermarks.positions`) before and after; ``steps`` between them. ``budget_bytes``: memory
    for intermediate rows. ``due_mark``: that of the stored state, if it is known, and neither watermark nor clock
    reaches anything in this step: then only arrivals have effects. None otherwise.
    """

    before: int
    after: int
    was: int = 0
    now: int = 0
    reprocessing: bool = False
    rebuilding: bool = False
    incomplete: bool = False
    lost_since: int = 0
    lost_at: int = END_US
    resumes: bool = False
    sides_before: tuple[int, ...] = ()
    sides: tuple[int, ...] = ()
    steps: tuple[Maxima, ...] = ()
    budget_bytes: int = BUDGET_BYTES
    due_mark: int | None = None


@dataclass(frozen=True)
class Transition:
    """The result of a step. ``panes`` are in order: each retraction is before the pane that replaces it.

    ``rejected``: ledger rows of arrivals that windows refused. ``due``: the watermark at which there is something to
    do that none of `Plan.timers` says; `END_US` for nothing, None if only the next step can tell.

    Until ``due`` and the timers a state partition without arrivals is skipped: its next steps must change nothing,
    emit nothing and count nothing but what `Plan.expiry` says.
    """

    changes: ChangeSet
    panes: pa.Table
    counters: dict[str, int] = field(default_factory=dict)
    rejected: pa.Table | None = None
    due: int | None = END_US


def check_on_time(windows: pa.Table, ends: npt.NDArray[np.int64] | None, before: int, after: int) -> None:
    """Raise `InvariantError` if a window would fire on time a second time.

    ``windows``: the keys of windows that fire now, a row for each. The watermark passes an end once, between
    ``before`` and ``after``; ``ends`` is None for windows without a time.
    """
    if not windows.num_rows:
        return
    invariant(ranks(windows)[1] == windows.num_rows, "a window fires on time once in a step", rows=windows.num_rows)
    if ends is not None:
        first, last = int(ends.min()), int(ends.max())
        invariant(
            before < first and last <= after,
            "a window fires on time when the watermark passes its end",
            before=before,
            after=after,
            first=first,
            last=last,
        )


def constant(rows: int, value: str, values: tuple[str, ...]) -> pa.DictionaryArray:
    """``value``, one of ``values``, in every row."""
    codes = np.full(rows, values.index(value), np.int8)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values))
