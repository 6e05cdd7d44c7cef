"""Groups of a step as data: what was gathered of them, in which phase each is, and which show a pane. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.instants import END_US
from tidestate.operators.windows.general.names import CLOSED, END, START
from tidestate.statestore.arrays import Flags, Numbers

NEVER = END_US


@dataclass(frozen=True)
class Gathered:
    """``groups``: rows of `GeneralTables.whole`.

    ``stored``: those there were; ``new``: what the batch brings, in order, where each event travels by itself; and
    ``owner`` to which of the groups.
    ``replaced``: stored sessions that became part of others, as stored; ``became``: the end of what they are now.
    ``reached``: of counted windows how many messages their key has now; ``counts``: rows of the counted table to put.
    ``refused``: what the batch brings to windows that have closed for good, with their bounds.
    """

    groups: pa.Table
    owner: Numbers
    stored: pa.Table
    new: pa.Table
    replaced: pa.Table
    became: Numbers
    reached: Numbers
    refused: pa.Table
    counts: pa.Table | None = None

    @property
    def touched(self) -> Flags:
        """To which groups the batch brings something."""
        found = np.zeros(self.groups.num_rows, bool)
        found[self.owner] = True
        return found


@dataclass(frozen=True)
class Phases:
    """Where each group's end lies: behind both watermarks, or between them; whether it takes no event any more
    (``over``), since this step (``closing``); and whether it is not kept any longer (``gone``).
    """

    behind: Flags
    passing: Flags
    over: Flags
    closing: Flags
    gone: Flags

    @property
    def open(self) -> Flags:
        """Not passed yet."""
        return ~self.behind & ~self.passing


@dataclass(frozen=True)
class Fired:
    """Masks over groups: which show an early, an on-time, a late pane; disjoint."""

    early: Flags
    on_time: Flags
    late: Flags

    @property
    def any(self) -> Flags:
        """Those that show a pane at all."""
        return self.early | self.on_time | self.late

    def among(self, where: Flags) -> Fired:
        """Those of them ``where`` it holds."""
        return Fired(self.early & where, self.on_time & where, self.late & where)


def column_numbers(rows: pa.Table, name: str, missing: int = 0) -> Numbers:
    """A column as int64, nulls as ``missing``. Shape ``(rows,)``."""
    column = rows[name].cast(pa.int64())
    filled = pc.fill_null(column, missing) if column.null_count else column
    values: Numbers = filled.to_numpy()
    return values


def closed(groups: pa.Table) -> Flags:
    """Groups whose composite trigger has finished: they take nothing more."""
    return column_numbers(groups, CLOSED) > 0


def int_bounds(rows: pa.Table) -> pa.Table:
    """``rows`` with window bounds as whole numbers."""
    for name in (START, END):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.int64()))
    return rows
