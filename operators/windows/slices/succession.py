"""The general operator over a state that the fast path began: windows out of slices, until these are forgotten.

A window that the general operator has touched is a row of ``groups``, whole. Of any other its slices say what it
holds and the fired table what it showed last, so that row is made when it is asked for. Nothing is rewritten; the two
tables run empty as their windows are forgotten.
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
    END,
    GROUPS,
    MARKS,
    NO_KEY,
    PANES,
    PENDING,
    SHOWN,
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
class SucceedingPlan(GeneralPlan):
    """``first``: the general operator has no tables there yet."""

    first: bool = False

    @property
    def slices(self) -> SlicePlan:
        """The plan whose state this goes on from."""
        return SlicePlan(**{field.name: getattr(self, field.name) for field in fields(Plan)})

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (*super().tables, *self.slices.tables)

    @property
    def begun_empty(self) -> tuple[str, ...]:
        """Its own, where the fast path was at work until now."""
        return (GROUPS, CLOCK, MARKS) if self.first else ()

    @property
    def succeeds(self) -> bool:
        """Whether all of the state is the fast path's."""
        return self.first

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        """As the general operator, over windows of both."""
        moved = self._taken(Succession(self, view, self.expired_at(at.before)), arriving, at)
        slices = self.slices
        _, window_bound, slice_bound = bounds(slices, max(at.before, at.after))
        expired = {
            slices.slices.name: TableChanges(expire=slice_bound),
            slices.fired.name: TableChanges(expire=window_bound),
        }
        return Transition(dict(moved.changes) | expired, moved.panes, moved.counters, moved.rejected, moved.due_us)


class Succession(StateView):
    """A view of the general operator's state in which windows of the fast path that end after ``forgotten`` are
    groups too.
    """

    def __init__(self, plan: SucceedingPlan, view: StateView, forgotten: int = BEGINNING_US) -> None:
        self._view, self._groups = view, _Groups(plan, view, forgotten)

    def __getitem__(self, table: str) -> TableView:
        return self._groups if table == GROUPS else self._view[table]


class _Groups(TableView):
    """The groups table, with windows out of slices."""

    def __init__(self, plan: SucceedingPlan, view: StateView, forgotten: int) -> None:
        self._plan, self._view, self._slices, self._forgotten = plan, view, plan.slices, forgotten
        self._stored = view[GROUPS]

    @property
    def expired(self) -> int | None:
        return self._stored.expired

    def lookup(self, keys: pa.Table) -> Lookup:
        """Groups that are stored, else as slices and the fired table make them."""
        found = self._stored.lookup(keys)
        if np.asarray(found.found).all():
            return found
        asked = self._plan.groups.conform_keys(keys).filter(pc.invert(found.found))
        windows = asked.rename_columns(["window_end" if name == END else name for name in asked.column_names])
        values = values_of_windows(self._slices, self._view, windows.select(self._slices.fired.key_names))
        made = self._as_groups(values.rows.filter(values.found))
        return align(self._plan.groups, keys, pa.concat_tables([found.rows.filter(found.found), made]))

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        """Groups of both. Bounds are ends of windows, as the general operator gives them."""
        stored = list(self._stored.scan(keys))
        low = max(self._forgotten, BEGINNING_US if keys.lower is None else int(keys.lower.values[0]) - 1)
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
        """Rows of the groups table for windows with these partials."""
        plan, count = self._plan, windows.num_rows
        shown = self._view[FIRED].lookup(windows.select(self._slices.fired.key_names))
        was = np.asarray(shown.found)
        columns: dict[str, Values] = {column.name: windows[column.name] for column in plan.state}
        if plan.mode == "discarding" and was.any():
            unseen = pa.array(np.arange(count), mask=was)
            columns = {name: values.take(unseen) for name, values in columns.items()}
        ends = windows["window_end"].cast(pa.int64()).to_numpy()
        elements = self._elements(windows)
        columns |= {name: windows[name] for name in plan.key_names}
        columns |= {
            NO_KEY: pa.array(np.zeros(count, np.int8)),
            START: pa.array(ends - self._slices.windows.size).cast(TIME),
            END: windows["window_end"],
            ELEMENTS: pa.array(elements),
            PENDING: pa.array(np.where(was, 0, elements)),
            PANES: pc.fill_null(pc.add(shown.rows["pane"], 1), 0),
            SHOWN: pa.array(was.astype(np.int64)),
        }
        columns |= {f"_last_{one.name}": shown.rows[one.name] for one in plan.aggregates}
        schema = plan.groups.schema
        zero = pa.array(np.zeros(count, np.int64))
        summed = {column.name for column in plan.progress if column.combiner in ("sum", "max")}
        found = [
            columns[field.name]
            if field.name in columns
            else zero
            if field.name in summed
            else pa.nulls(count, field.type)
            for field in schema
        ]
        return pa.table(found, schema=schema)

    def _elements(self, windows: pa.Table) -> npt.NDArray[np.int64]:
        """How many elements each holds, where an aggregate counts them; else that there is one."""
        for one in self._plan.aggregates:
            if one.aggregate.function == "count" and one.aggregate.column is None:
                counted: npt.NDArray[np.int64] = pc.fill_null(windows[one.state[0].name], 1).to_numpy()
                return np.maximum(counted, 1)
        return np.ones(windows.num_rows, np.int64)
