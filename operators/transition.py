"""What a step is told and what it answers, whatever operator takes it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from statestore.changes import ChangeSet

BEGINNING_US, END_US = -(2**63), 2**63 - 1
TIMINGS, KINDS = ("early", "on_time", "late"), ("emit", "retract")


@dataclass(frozen=True)
class Moments:
    """The watermark and the processing time before and after a step, in microseconds; `BEGINNING_US` is none yet."""

    before: int
    after: int
    was: int = 0
    now: int = 0


@dataclass(frozen=True)
class Transition:
    """Everything a step wants done. ``panes`` are in order: retractions before what replaces them."""

    changes: ChangeSet
    panes: pa.Table
    counters: dict[str, int] = field(default_factory=dict)


def constant(rows: int, value: str, values: tuple[str, ...]) -> pa.DictionaryArray:
    """``value``, one of ``values``, in every row."""
    codes = np.full(rows, values.index(value), np.int8)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values))
