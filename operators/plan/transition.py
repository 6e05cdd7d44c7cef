"""What a step is told and what it answers, whatever operator takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.operators.progress.maxima import Maxima
from tidestate.statestore.errors import invariant
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.table.sorting import ranks

FUTURE_US = 60_000_000
"""How far ahead of the watermark an event counts as one of the future, where nothing else is said."""
BUDGET_BYTES = 256 << 20
"""How much memory a step may take, where no store has a budget."""
TIMINGS, KINDS = ("early", "on_time", "late"), ("emit", "retract")


@dataclass(frozen=True)
class StepTimes:
    """The watermark and the processing time before and after a step, in microseconds; `BEGINNING_US` is none yet.

    ``reprocessing``: what arrives comes from the late ledger. ``sides_before`` and ``sides``: the newest position of
    each side of an operator that asks for them (`Watermarks.positions`), before and after; ``steps`` between them.
    ``budget_bytes``: how much memory a step may take for what it only makes to combine it.
    """

    before: int
    after: int
    was: int = 0
    now: int = 0
    reprocessing: bool = False
    sides_before: tuple[int, ...] = ()
    sides: tuple[int, ...] = ()
    steps: tuple[Maxima, ...] = ()
    budget_bytes: int = BUDGET_BYTES


@dataclass(frozen=True)
class Transition:
    """Everything a step wants done. ``panes`` are in order: retractions before what replaces them.

    ``rejected``: ledger rows of what windows did not take, beside those that never came so far. ``due_us``: the
    processing time at which something is due next; None for none.
    """

    changes: ChangeSet
    panes: pa.Table
    counters: dict[str, int] = field(default_factory=dict)
    rejected: pa.Table | None = None
    due_us: int | None = None


def check_on_time(windows: pa.Table, ends: npt.NDArray[np.int64] | None, before: int, after: int) -> None:
    """Raise `InvariantError` where a window would fire on time a second time.

    ``windows``: the keys of those that fire now, one row for each. The watermark passes an end once, from ``before``
    to ``after``; ``ends`` is None of windows whose end is no time.
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


def total(many: Sequence[dict[str, int]]) -> dict[str, int]:
    """Counters added up by name."""
    names = dict.fromkeys(name for counters in many for name in counters)
    return {name: sum(counters.get(name, 0) for counters in many) for name in names}
