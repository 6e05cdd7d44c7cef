"""The result of a step, and the rows of the state that wait for a time, for every operator. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tidestate.operators.progress.watermarks import END_US
from tidestate.statestore.arrays import one_table, total
from tidestate.statestore.spec.changes import ChangeSet

TIMINGS, KINDS = ("early", "on_time", "late"), ("emit", "retract")


@dataclass(frozen=True)
class Transition:
    """The result of a step. ``panes`` are in order: each retraction is before the pane that replaces it.

    ``rejected``: ledger rows of arrivals that windows refused. ``due``: the watermark at which there is something to
    do next; `END_US` for nothing, None if only the next step can tell. ``due_us``: the processing time at which there
    is; None for nothing. An operator leaves to its `Plan.timers` what these say.

    Until ``due`` and the timers a state partition without arrivals is skipped: its next steps must change nothing,
    emit nothing and count nothing but what `Plan.expiry` says.
    """

    changes: ChangeSet
    panes: pa.Table
    counters: dict[str, int] = field(default_factory=dict)
    rejected: pa.Table | None = None
    due: int | None = END_US
    due_us: int | None = None


def joined_steps(changes: ChangeSet, steps: Sequence[Transition]) -> Transition:
    """Several steps as one, which makes these changes."""
    return Transition(
        changes,
        pa.concat_tables([moved.panes for moved in steps]),
        total([moved.counters for moved in steps]),
        one_table(moved.rejected for moved in steps),
    )


class Grid(Protocol):
    """Ends of windows that are made of slices."""

    @property
    def slide(self) -> int:
        """From one window end to the next."""

    def first_end_at_or_after(self, time_us: int) -> int:
        """The first window end at or after a time."""

    def oldest_slice_after(self, time_us: int) -> int:
        """Slices that end at or before this are in no window that ends after a time."""


@dataclass(frozen=True)
class Timer:
    """Rows of a state table wait for a time.

    ``column`` holds a time (or an offset), and the table's key begins with it. A row is due each of ``delays`` after
    that, in ascending order: by the watermark, or with ``clock`` by processing time. With a ``grid`` its rows are
    slices, by their end: one is due with each window that has it.
    """

    table: str
    column: str
    delays: tuple[int, ...] = (0,)
    clock: bool = False
    grid: Grid | None = None
