"""The groups of a step: their rows and columns, the phase of each, and which fire. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.watermarks import END_US
from tidestate.operators.windows.names import CLOSED, END, START
from tidestate.statestore.arrays import Flags, Numbers, Values
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.lists import flat
from tidestate.statestore.table.group_ids import map_entries

NEVER = END_US
"""The time of a timer that is not set."""


@dataclass(frozen=True)
class Gathered:
    """``groups``: rows of `GroupTables.whole`, arrivals included.

    ``stored``: the groups before the step. ``new``: the arrivals, in order if they are single events; ``owner``: the
    index of the group of each. ``replaced``: stored sessions that were merged into others; ``became``: the ends of
    these. ``refused``: arrivals at windows whose composite trigger has finished, with the bounds of the window.
    Of count windows ``reached`` is the number of messages of each group's key, ``counts`` the rows of the counted
    table to put.
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
        """Which groups have arrivals in this step. Of shape ``(groups,)``."""
        touched = np.zeros(self.groups.num_rows, bool)
        touched[self.owner] = True
        return touched


@dataclass(frozen=True)
class Phases:
    """Masks over groups: the watermark had passed the end before this step (``behind``), or passes it (``passing``);
    the window accepts no more events (``closed``), from this step on (``closing``); its state is dropped
    (``expired``).
    """

    behind: Flags
    passing: Flags
    closed: Flags
    closing: Flags
    expired: Flags

    def taken(self, where: Flags) -> Phases:
        """The phases of the groups ``where``."""
        if where.all():
            return self
        return Phases(*(mask[where] for mask in (self.behind, self.passing, self.closed, self.closing, self.expired)))

    @property
    def open(self) -> Flags:
        """Groups whose end the watermark has not passed yet."""
        return ~self.behind & ~self.passing


@dataclass(frozen=True)
class Fired:
    """Masks over groups, disjoint: which emit an early, an on-time and a late pane."""

    early: Flags
    on_time: Flags
    late: Flags

    @property
    def any(self) -> Flags:
        """All groups that emit a pane."""
        return self.early | self.on_time | self.late

    def taken(self, where: Flags) -> Fired:
        """The masks over the groups ``where`` alone."""
        return self if where.all() else Fired(self.early[where], self.on_time[where], self.late[where])

    def among(self, where: Flags) -> Fired:
        """Which of the groups ``where`` fire; no other one does. Shapes as given."""
        return Fired(self.early & where, self.on_time & where, self.late & where)


def column_numbers(rows: pa.Table, name: str, missing: int = 0) -> Numbers:
    """A column as int64 of shape ``(rows,)``; nulls become ``missing``."""
    column = rows[name]
    if not column.null_count:
        return positions(column)
    values: Numbers = pc.fill_null(column.cast(pa.int64()), missing).to_numpy()
    return values


def trigger_finished(groups: pa.Table) -> Flags:
    """Groups whose composite trigger has finished: they accept no more elements."""
    return column_numbers(groups, CLOSED) > 0


def int_bounds(rows: pa.Table) -> pa.Table:
    """``rows`` with window bounds as int64."""
    for name in (START, END):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.int64()))
    return rows


def equal(now: Values, then: Values) -> Flags:
    """Whether two columns are equal, row by row: nulls equal nulls, NaN equals NaN, lists are compared by value."""
    missing = np.asarray(pc.is_null(now)), np.asarray(pc.is_null(then))
    if pa.types.is_map(now.type):
        return equal(map_entries(now), map_entries(then))
    if pa.types.is_nested(now.type) and not pa.types.is_struct(now.type):
        same = _equal_lists(now, then)
    elif pa.types.is_struct(now.type):
        fields = range(now.type.num_fields)
        parts = [equal(pc.struct_field(now, [n]), pc.struct_field(then, [n])) for n in fields]
        same = np.logical_and.reduce(parts) if parts else np.ones(len(now), bool)
    else:
        same = np.asarray(pc.fill_null(pc.equal(now, then), False))
        if pa.types.is_floating(now.type):
            same |= np.asarray(pc.fill_null(pc.and_(pc.is_nan(now), pc.is_nan(then)), False))
    equal_rows: Flags = np.where(missing[0] | missing[1], missing[0] & missing[1], same)
    return equal_rows


def _equal_lists(now: Values, then: Values) -> Flags:
    """Whether lists have the same length and equal values."""
    sizes = [np.bincount(flat(lists)[1], minlength=len(lists)) for lists in (now, then)]
    same: Flags = sizes[0] == sizes[1]
    where = pa.array(same)
    values, owners = flat(now.filter(where))
    others, _ = flat(then.filter(where))
    if len(values):
        differ = np.bincount(owners[~equal(values, others)], minlength=int(same.sum()))
        same[np.flatnonzero(same)] = differ == 0
    return same


def chosen(where: pa.Array, new: pa.Array | pa.ChunkedArray, old: pa.ChunkedArray) -> pa.ChunkedArray:
    """Rows of ``new`` if ``where``, else of ``old``; for any type."""
    both = pa.chunked_array([*(new.chunks if isinstance(new, pa.ChunkedArray) else [new]), *old.chunks], old.type)
    places = np.arange(len(old))
    return both.take(pa.array(np.where(np.asarray(where), places, places + len(old))))


def with_columns(groups: pa.Table, changed: Mapping[str, Any]) -> pa.Table:
    """``groups`` with these columns replaced; `NEVER` is null in a ``_since_`` column of ours, which is NumPy's."""
    for name, values in changed.items():
        if name.startswith("_since_") and isinstance(values, np.ndarray):
            values = pa.array(values, mask=values == NEVER)
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        place = groups.column_names.index(name)
        groups = groups.set_column(place, groups.schema.field(name), column)
    return groups
