"""The general operator on state of the fast path: windows are computed from slices until these have expired.

A window that the general operator has changed is a row of ``groups``. For any other window that row is computed from
its slices and the fired table when it is read. No state is rewritten; the two tables become empty as windows expire.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.general.names import (
    CLOCK,
    ELEMENTS,
    EMITTED,
    END,
    GROUPS,
    MARKS,
    NO_KEY,
    PANES,
    PENDING,
    START,
)
from tidestate.operators.windows.general.plan import GeneralPlan
from tidestate.operators.windows.slices.plan import SlicePlan
from tidestate.operators.windows.slices.step import bounds, by_window, values_of_windows
from tidestate.operators.windows.slices.tables import FIRED
from tidestate.statestore.arrays import Values
from tidestate.statestore.spec.changes import KeyBound, Lookup, Ranges, TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange, key_range
from tidestate.statestore.spec.store import StateView, TableView
from tidestate.statestore.spec.tables import TIME, TableSpec
from tidestate.statestore.table.layers import align
from tidestate.statestore.table.sorting import order


@dataclass(frozen=True)
class BridgePlan(GeneralPlan):
    """The general operator's plan on state of the fast path. ``fresh``: it has no tables of its own yet."""

    fresh: bool = False

    @property
    def slices(self) -> SlicePlan:
        """The plan of the fast path."""
        return SlicePlan(**{field.name: getattr(self, field.name) for field in fields(Plan)})

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (*super().tables, *self.slices.tables)

    @property
    def may_lack(self) -> tuple[str, ...]:
        """The general operator's own tables, at the first start."""
        return (GROUPS, CLOCK, MARKS) if self.fresh else ()

    @property
    def only_slices(self) -> bool:
        return self.fresh

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        """The step of the general operator, on windows of both."""
        moved = self._taken(BridgeView(self, view, self.expired_at(at.before)), arriving, at)
        slices = self.slices
        _, window_bound, slice_bound = bounds(slices, max(at.before, at.after))
        expired = {
            slices.slices.name: TableChanges(expire=slice_bound),
            slices.fired.name: TableChanges(expire=window_bound),
        }
        return Transition(dict(moved.changes) | expired, moved.panes, moved.counters, moved.rejected, moved.due_us)


class BridgeView(StateView):
    """A view of the general operator's state in which windows of the fast path that end after ``expired_us`` are
    groups too.
    """

    def __init__(self, plan: BridgePlan, view: StateView, expired_us: int = BEGINNING_US) -> None:
        self._view, self._groups = view, _Groups(plan, view, expired_us)

    def __getitem__(self, table: str) -> TableView:
        return self._groups if table == GROUPS else self._view[table]


class _Groups(TableView):
    """The groups table, with windows computed from slices."""

    def __init__(self, plan: BridgePlan, view: StateView, expired_us: int) -> None:
        self._plan, self._view, self._slices, self._expired_us = plan, view, plan.slices, expired_us
        self._stored = view[GROUPS]

    @property
    def expired(self) -> int | None:
        return self._stored.expired

    def lookup(self, keys: pa.Table) -> Lookup:
        """Stored groups, else those computed from slices."""
        found = self._stored.lookup(keys)
        if np.asarray(found.found).all():
            return found
        missing = self._plan.groups.conform_keys(keys).filter(pc.invert(found.found))
        windows = missing.rename_columns(["window_end" if name == END else name for name in missing.column_names])
        values = values_of_windows(self._slices, self._view, windows.select(self._slices.fired.key_names))
        made = self._as_groups(values.rows.filter(values.found))
        return align(self._plan.groups, keys, pa.concat_tables([found.rows.filter(found.found), made]))

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        """Groups of both. Bounds are window ends, as the general operator passes them."""
        stored = list(self._stored.scan(keys))
        low = max(self._expired_us, BEGINNING_US if keys.lower is None else int(keys.lower.values[0]) - 1)
        high = END_US if keys.upper is None else int(keys.upper.values[0]) - 1
        made = self._as_groups(self._between(low, high))
        names, both = self._plan.groups.key_names, pa.concat_tables([made.slice(0, 0), *stored])
        if made.num_rows:
            known = align(self._plan.groups, made.select(names), both)
            both = pa.concat_tables([both, made.filter(pc.invert(known.found))])
            both = both.take(pa.array(order(both.select(names))))
        yield both.take(pa.array(np.arange(both.num_rows)[::-1])) if reverse else both

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        """As stored: windows of the fast path have fixed bounds and are looked up."""
        return self._stored.ranges(prefixes, lower, upper)

    def _between(self, low: int, high: int) -> pa.Table:
        """Windows of slices with ``low < end <= high``."""
        slices = self._slices
        first = None if low == BEGINNING_US else (slices.windows.oldest_slice_after(low) + 1,)
        last = None if high >= END_US - 1 else (high + 1,)
        return by_window(slices, self._view[slices.slices.name].scan(key_range(first, last), folded=False), low, high)

    def _as_groups(self, windows: pa.Table) -> pa.Table:
        """Windows with these partials as rows of the groups table."""
        plan, count = self._plan, windows.num_rows
        fired = self._view[FIRED].lookup(windows.select(self._slices.fired.key_names))
        emitted = np.asarray(fired.found)
        columns: dict[str, Values] = {column.name: windows[column.name] for column in plan.state}
        if plan.mode == "discarding" and emitted.any():
            unseen = pa.array(np.arange(count), mask=emitted)
            columns = {name: values.take(unseen) for name, values in columns.items()}
        ends = windows["window_end"].cast(pa.int64()).to_numpy()
        elements = self._elements(windows)
        columns |= {name: windows[name] for name in plan.key_names}
        columns |= {
            NO_KEY: pa.array(np.zeros(count, np.int8)),
            START: pa.array(ends - self._slices.windows.size).cast(TIME),
            END: windows["window_end"],
            ELEMENTS: pa.array(elements),
            PENDING: pa.array(np.where(emitted, 0, elements)),
            PANES: pc.fill_null(pc.add(fired.rows["pane"], 1), 0),
            EMITTED: pa.array(emitted.astype(np.int64)),
        }
        columns |= {f"_last_{a.name}": fired.rows[a.name] for a in plan.aggregates}
        schema = plan.groups.schema
        zero = pa.array(np.zeros(count, np.int64))
        summed = {column.name for column in plan.progress if column.combiner in ("sum", "max")}
        defaults = {field.name: zero if field.name in summed else pa.nulls(count, field.type) for field in schema}
        return pa.table([columns.get(name, default) for name, default in defaults.items()], schema=schema)

    def _elements(self, windows: pa.Table) -> npt.NDArray[np.int64]:
        """The number of elements of each window if an aggregate counts them, else 1."""
        for bound in self._plan.aggregates:
            if bound.aggregate.function == "count" and bound.aggregate.column is None:
                counted: npt.NDArray[np.int64] = pc.fill_null(windows[bound.state[0].name], 1).to_numpy()
                return np.maximum(counted, 1)
        return np.ones(windows.num_rows, np.int64)
