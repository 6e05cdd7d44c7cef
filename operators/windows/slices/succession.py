"""The general operator over a state that the fast path began: windows out of slices, until these are forgotten.

A window that the general operator has touched is a row of ``groups``, whole. Of any other its slices say what it
holds and the fired table what it showed last, so that row is made when it is asked for. Nothing is rewritten; the two
tables run empty as their windows are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from tidestate.statestore.spec.changes import Lookup, Ranges, TableChanges
from tidestate.statestore.spec.keyrange import Key
from tidestate.statestore.spec.store import StateView
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
        moved = self._taken(Succession(self, view, self.forgotten(at.before)), arriving, at)
        slices = self.slices
        _, window_bound, slice_bound = bounds(slices, max(at.before, at.after))
        expired = {
            slices.slices.name: TableChanges(expire=slice_bound),
            slices.fired.name: TableChanges(expire=window_bound),
        }
        return Transition(dict(moved.changes) | expired, moved.panes, moved.counters, moved.rejected, moved.due_us)


class Succession:
    """A view of the general operator's state in which windows of the fast path are groups too, but for those that end
    at or before ``forgotten``.
    """

    def __init__(self, plan: SucceedingPlan, view: StateView, forgotten: int = BEGINNING_US) -> None:
        self._plan, self._view, self._slices, self._forgotten = plan, view, plan.slices, forgotten

    def lookup(self, table: str, keys: pa.Table) -> Lookup:
        """Groups as they are, else as slices and what was shown make them."""
        found = self._view.lookup(table, keys)
        if table != GROUPS or np.asarray(found.found).all():
            return found
        asked = self._plan.groups.conform_keys(keys).filter(pc.invert(found.found))
        windows = asked.rename_columns(["window_end" if name == END else name for name in asked.column_names])
        values = values_of_windows(self._slices, self._view, windows.select(self._slices.fired.key_names))
        made = self._as_groups(values.rows.filter(values.found))
        return align(self._plan.groups, keys, pa.concat_tables([found.rows.filter(found.found), made]))

    def scan(
        self,
        table: str,
        lower: Key | None = None,
        upper: Key | None = None,
        *,
        prefix: Key = (),
        reverse: bool = False,
        folded: bool = True,
    ) -> Iterator[pa.Table]:
        """Groups of both; with a prefix those that are there already, alone."""
        if table != GROUPS or prefix:
            yield from self._view.scan(table, lower, upper, prefix=prefix, reverse=reverse, folded=folded)
            return
        stored = list(self._view.scan(table, lower, upper))
        low = max(self._forgotten, BEGINNING_US if lower is None else int(lower[0]) - 1)
        high = END_US if upper is None else int(upper[0]) - 1
        made = self._as_groups(self._between(low, high))
        names, both = self._plan.groups.key_names, pa.concat_tables([made.slice(0, 0), *stored])
        if made.num_rows:
            known = align(self._plan.groups, made.select(names), both)
            both = pa.concat_tables([both, made.filter(pc.invert(known.found))])
            both = both.take(pa.array(order(both.select(names))))
        yield both.take(pa.array(np.arange(both.num_rows)[::-1])) if reverse else both

    @property
    def expired(self) -> Mapping[str, int]:
        """As in the state."""
        return self._view.expired

    def ranges(
        self,
        table: str,
        prefixes: pa.Table,
        lower: pa.Array | pa.ChunkedArray | None = None,
        upper: pa.Array | pa.ChunkedArray | None = None,
    ) -> Ranges:
        """As they are: the windows in question have fixed bounds, and are not asked for so."""
        return self._view.ranges(table, prefixes, lower, upper)

    def _between(self, low: int, high: int) -> pa.Table:
        """Windows of slices with ``low < end <= high``."""
        slices = self._slices
        first = None if low == BEGINNING_US else (slices.windows.oldest_slice_after(low) + 1,)
        last = None if high >= END_US - 1 else (high + 1,)
        return by_window(slices, self._view.scan(slices.slices.name, first, last, folded=False), low, high)

    def _as_groups(self, windows: pa.Table) -> pa.Table:
        """Rows of the groups table for windows with these partials."""
        plan, count = self._plan, windows.num_rows
        shown = self._view.lookup(FIRED, windows.select(self._slices.fired.key_names))
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
