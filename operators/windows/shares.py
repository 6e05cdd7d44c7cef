"""A step over many windows in shares of the keys, so that what it holds at once fits the budget. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Flags, Numbers, total
from tidestate.statestore.spec.changes import KeyBound, Lookup, Ranges, TableChanges
from tidestate.statestore.spec.keyhash import key_hash
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange
from tidestate.statestore.spec.store import StateView, TableView

ARRIVING_SHARE = 16
"""Arrivals of a share are at most this part of the budget: a step makes several copies of them."""
LEAST_ROWS = 1 << 13
"""Of a share: below that, its fixed cost is more than what it saves."""
Step = Callable[[StateView, pa.Table, Flags | None], Transition]
"""A step on state, with arrivals and which of them are alone (see `step_windows`); each key is for itself."""


def step_in_shares(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, step: Step, alone: Flags | None = None
) -> Transition:
    """``step`` over all ``arriving`` rows, at once or in turn for shares of the keys, state included."""
    count = min(-(-arriving.nbytes * ARRIVING_SHARE // context.budget_bytes), arriving.num_rows // LEAST_ROWS)
    if count <= 1 or not plan.key_names:
        return step(view, arriving, alone)
    owner = _share_of(plan, arriving, count)
    moved = []
    for number in range(count):
        here = owner == number
        rows = arriving.filter(pa.array(here))
        moved.append(step(_Shared(plan, view, number, count), rows, None if alone is None else alone[here]))
    return _together(moved)


def _share_of(plan: GroupTables, rows: pa.Table, count: int) -> Numbers:
    # The state partition is in the upper bits of the hash: the share is in the lower ones.
    return (key_hash(rows.select(plan.key_names)) % count).astype(np.int64)


@dataclass(frozen=True)
class _Shared:
    """State with the rows of one share of ``count`` only, where they are scanned."""

    plan: GroupTables
    view: StateView
    number: int
    count: int

    def __getitem__(self, table: str, /) -> TableView:
        return _SharedTable(self, self.view[table])


@dataclass(frozen=True)
class _SharedTable:
    shared: _Shared
    table: TableView

    @property
    def expired(self) -> int | None:
        return self.table.expired

    def lookup(self, keys: pa.Table) -> Lookup:
        return self.table.lookup(keys)

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        shared = self.shared
        for rows in self.table.scan(keys, reverse=reverse, folded=folded):
            yield rows.filter(pa.array(_share_of(shared.plan, rows, shared.count) == shared.number))

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        return self.table.ranges(prefixes, lower, upper)


def _together(moved: Sequence[Transition]) -> Transition:
    """The transitions of shares as one."""
    rejected = [one.rejected for one in moved if one.rejected is not None]
    return Transition(
        {name: _joined([one.changes[name] for one in moved if name in one.changes]) for name in _names(moved)},
        pa.concat_tables([one.panes for one in moved]),
        total([one.counters for one in moved]),
        pa.concat_tables(rejected) if rejected else None,
    )


def _names(moved: Sequence[Transition]) -> list[str]:
    return list(dict.fromkeys(name for one in moved for name in one.changes))


def _joined(parts: Sequence[TableChanges]) -> TableChanges:
    return TableChanges(
        _rows([one.delete for one in parts]),
        _rows([one.put for one in parts]),
        _rows([one.merge for one in parts]),
    )


def _rows(parts: Sequence[pa.Table | None]) -> pa.Table | None:
    there = [rows for rows in parts if rows is not None]
    return pa.concat_tables(there) if there else None
