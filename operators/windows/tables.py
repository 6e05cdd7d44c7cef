"""Tables of the window operator: a group is a row per window and key, for any kind of window. Of the groups of a step
there are the rows and columns, the phase of each, and which fire.

| windows | ``groups``: key; expires by | other table |
|---|---|---|
| tumbling, sliding | window end, window start, key; end | ``parts``: slice end, key; windows that are not due |
| rolling | window end, window start, key; end | ``parts``: window end, key; the events with which it ends |
| global, those that rows name | window end, window start, key; end | – |
| sessions | key, window start; end | ``ends``: window end, key, window start; ``parts``: cell, key |
| counted | key, window start | ``counted``: key; messages so far |

``clock`` and ``marks`` have the time at which a group is due next, by processing time and by event time: (due, key,
window start, window end). A timer that differs from its group is outdated, and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.custom import OwnAggregate
from tidestate.operators.aggregates.sketches import UNITE
from tidestate.operators.describe.triggers import Trigger, Triggers
from tidestate.operators.describe.windows import Counted, Rolling, Sessions, Sliding
from tidestate.operators.plan.plan import Plan, WindowedPlan
from tidestate.operators.plan.transition import KINDS, TIMINGS
from tidestate.operators.progress.numbers import LoneOrigin
from tidestate.operators.progress.progress import Context, Observer
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.names import (
    CELL,
    CLOCK,
    CLOSED,
    COARSE,
    COUNTED,
    DUE_CLOCK,
    DUE_MARK,
    ELEMENTS,
    EMITTED,
    END,
    ENDS,
    EVENT,
    GROUPS,
    MARKS,
    NET,
    NO_KEY,
    PANES,
    PARTS,
    PENDING,
    SINCE,
    SLICE_END,
    START,
    TIME_OF,
)
from tidestate.operators.windows.shown import PaneCondition
from tidestate.operators.windows.tracked import RANGES, TrackedOffsets
from tidestate.statestore.arrays import Flags, Numbers, Values, constant, flags_at
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.arrowtypes import positions, type_text
from tidestate.statestore.spec.lists import flat
from tidestate.statestore.spec.tables import HASHED, TIME, Column, Group, TableSpec
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
        return flags_at(self.groups.num_rows, self.owner)


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


COMMUTATIVE = ("moments", "union", "tally", RANGES, UNITE)
"""Combiners of groups that give the same in any order, but for the rounding of doubles."""
COARSE_FROM = 64
"""Windows of so many slices or more have coarse parts."""


@dataclass(frozen=True, kw_only=True)
class GroupTables(WindowedPlan):
    """The settings of aggregates in windows, and their columns and tables."""

    aggregates: tuple[BoundAggregate, ...]
    mode: str
    """What a later pane of a window has: "accumulating", "discarding" or "retracting"."""
    triggers: Triggers
    rule: str
    """Whether an event is late by its time or by its windows: "event" or "window"."""
    retain_us: int | None = 0
    """How long after the watermark has passed them windows are kept; None: for ever."""
    retain_windows: int | None = None
    """The number of the newest windows that are kept, by time; None: by ``retain_us`` alone."""
    tracked: TrackedOffsets | None = None
    """The offsets of messages that windows store; None for none."""
    shown: PaneCondition | None = None
    """Which panes are emitted, see `tidestate.operators.windows.shown`; None: all."""

    late_option = ".allowed_lateness(…)"
    future_option = ".allowed_lateness(future_tolerance=…)"

    @property
    def reprocesses(self) -> bool:
        """But not where messages are numbered: none is late by its number."""
        return not self.kind.numbered

    @cached_property
    def by_clock(self) -> bool:
        """Whether a trigger waits for processing time."""
        return self.triggers.by_clock

    @cached_property
    def finishes(self) -> bool:
        """Whether a window may close for good before it is over, by its composite trigger."""
        return self.triggers.finishes

    @property
    def clocked(self) -> bool:
        return super().clocked or self.by_clock

    @property
    def retracts(self) -> bool:
        return self.mode == "retracting"

    @property
    def repeats(self) -> bool:
        """Whether a window and key may emit several panes."""
        triggers = self.triggers
        retained = self.allowed_us > 0 or self.retain_windows is not None or (self.retain_us or 0) > 0
        late = retained and (triggers.late is not None or triggers.closing != "never")
        return late or triggers.early is not None or triggers.when is not None

    @property
    def steps_by_element(self) -> bool:
        """Whether each element takes a step of its own: where a composite trigger looks after each, and in sessions,
        which an element may merge.
        """
        return self.triggers.per_element and (self.triggers.when is not None or self.sessions)

    @property
    def pane_key(self) -> tuple[str, ...]:
        return tuple(self.input.key_names)

    @property
    def key_alone(self) -> bool:
        return True

    @property
    def partial_panes(self) -> str:
        if not self.repeats:
            return ""
        if self.mode == "discarding":
            return 'with "discarding" the panes of a window are parts of its result, which have to be combined'
        if self.sessions and not self.retracts:
            return "sessions that grow do not retract their earlier panes unless the job is retracting"
        return ""

    @property
    def calls_user_code(self) -> bool:
        return any(isinstance(bound.aggregate, OwnAggregate) for bound in self.aggregates)

    @property
    def names_windows(self) -> bool:
        return super().names_windows or self.finishes

    def expired_at(self, watermark: int) -> int:
        closed = self.closed_at(watermark)
        if closed in (BEGINNING_US, END_US):
            return closed
        by_time = by_size = BEGINNING_US
        if self.retain_us is not None:
            by_time = max(by_time, watermark - self.retain_us)
        if self.retain_windows is not None and isinstance(self.kind, Sliding):
            by_size = self.kind.last_end_at_or_before(watermark) - self.retain_windows * self.kind.slide
        return min(closed, max(by_time, by_size, self.gone_us))

    @cached_property
    def lazy(self) -> bool:
        """Whether windows may stay unmerged until the watermark reaches them: no trigger, order or retraction has to
        look at them earlier.

        Sessions only if their state neither grows, as it is copied from part to part, nor depends on the order of
        arrival, which cells do not keep.
        """
        triggers = self.triggers
        looks = triggers.early is not None or triggers.when is not None or triggers.per_element or self.in_order
        late = triggers.late.kind if triggers.late is not None else ""
        timed = triggers.on_time == "never" and late == "after_processing_time"  # since the first element
        grows = any(group.combiner not in ("moments", RANGES) for group in self.state_groups)
        kept_whole = self.in_cells and (grows or self.sees_order)
        # An event that touches several slices of a window would count in each of them.
        sliced = self.touching and not self.slices.tumbles
        return self.has_parts and not looks and not timed and not kept_whole and not sliced

    @property
    def only_changes(self) -> bool:
        """Whether a window emits no pane that equals its last one: a retraction takes back only what has changed."""
        return self.triggers.only_updated or self.mode == "retracting"

    @cached_property
    def looks_at_closing(self) -> bool:
        """Whether a step looks at windows that close: for a pane, or as triggers of retained ones stop waiting."""
        late, retained = self.triggers.late, self.retain_us is None or self.retain_us > self.allowed_us
        waits = self.triggers.when is not None or (late is not None and late.kind != "each_batch")
        return self.triggers.closing != "never" or (waits and (retained or self.retain_windows is not None))

    @property
    def has_parts(self) -> bool:
        """Whether windows of this kind may wait in parts."""
        return isinstance(self.kind, Sliding) or self.in_cells

    @property
    def rolling(self) -> bool:
        """Whether windows are of the last span before each event: see `rolling`."""
        return isinstance(self.kind, Rolling)

    @property
    def touching(self) -> bool:
        """Whether events are in every window that their lifetime touches."""
        return isinstance(self.kind, Sliding) and self.kind.end_column is not None

    @property
    def in_cells(self) -> bool:
        """Whether they are sessions of a constant gap, whose parts are of cells: see `session_slices`."""
        return isinstance(self.kind, Sessions) and self.kind.gap_column is None

    @property
    def gap(self) -> int:
        """The gap of all sessions, in microseconds or offsets."""
        return of_type(self.kind, Sessions).gap

    @cached_property
    def slices(self) -> Sliding:
        """The kind of window, of those that have parts: sliding, or tumbling."""
        return of_type(self.kind, Sliding)

    @property
    def rolls(self) -> Rolling:
        """The kind of window, of rolling ones."""
        return of_type(self.kind, Rolling)

    @cached_property
    def observers(self) -> tuple[Observer, ...]:  # type: ignore[override]
        """Windows of offsets take one origin."""
        if not self.by_offset or len(self.input.order) != 2:
            return ()
        return (LoneOrigin({"": self.input.order[0]}),)

    @property
    def by_number(self) -> bool:
        """Whether windows hold a number of messages, not a span of time or offsets."""
        return isinstance(self.kind, Counted)

    @property
    def sessions(self) -> bool:
        """Whether windows are sessions, which grow and merge."""
        return isinstance(self.kind, Sessions)

    @cached_property
    def bound_type(self) -> pa.DataType:
        return pa.int64() if self.by_number or self.by_offset else TIME

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """Key columns of all tables; a constant if the stream has no key."""
        return self.input.key_specs or (Column(NO_KEY, "int8", "key"),)

    @property
    def group_keys(self) -> list[str]:
        """Names of the key columns in tables."""
        return [column.name for column in self.key_columns]

    def keys_of(self, rows: pa.Table) -> list[Values]:
        """The key columns of tables, for rows of the input."""
        return [rows[name] for name in self.input.key_names] or [pa.array(np.zeros(rows.num_rows, np.int8))]

    def keyed(self, rows: pa.Table) -> pa.Table:
        """Rows of the input, or of a table, with the constant that is the key where the stream has none."""
        if self.input.key_names or NO_KEY in rows.column_names:
            return rows
        return rows.append_column(NO_KEY, self.keys_of(rows)[0])

    def counted_parts(self, parts: pa.Table) -> pa.Table:
        """Parts, or what is combined of them, with the number of their events: at least one."""
        if ELEMENTS in parts.column_names:
            return parts
        return parts.append_column(ELEMENTS, pa.array(np.maximum(column_numbers(parts, self.counted_by), 1)))

    @property
    def identity(self) -> list[str]:
        """The columns that identify a group, in the order of the groups table's key."""
        return self.groups.key_names

    @cached_property
    def state(self) -> tuple[Column, ...]:
        """State columns of all aggregates, and of offsets."""
        return (*self.emptied, *(self.tracked.state if self.tracked else ()))

    @cached_property
    def emptied(self) -> tuple[Column, ...]:
        """Those that begin anew after a pane of a discarding window: of aggregates alone."""
        return tuple(column for aggregate in self.aggregates for column in aggregate.state)

    @cached_property
    def state_groups(self) -> tuple[Group, ...]:
        """State columns that are combined together."""
        groups = tuple(group for aggregate in self.aggregates for group in aggregate.groups)
        return (*groups, *(self.tracked.groups if self.tracked else ()))

    @cached_property
    def nodes(self) -> tuple[Trigger, ...]:
        """All parts of the composite trigger, parents first."""
        return self.triggers.when.nodes if self.triggers.when else ()

    @property
    def reopens(self) -> bool:
        """Whether more lateness takes all late events of windows that are kept; one may be of a forgotten session."""
        return not self.sessions

    def refuses_by_windows(self, watermark: int) -> bool:
        """Whether events are refused by the windows that are closed, and not by their time alone."""
        reopened = self.reopens and self.gone_us > max(BEGINNING_US, watermark - self.allowed_us)
        return self.rule == "window" or self.reprocessing or reopened

    @property
    def sizes(self) -> tuple[Column, ...]:
        """The number of elements of a window, for its triggers; and the number left if some retract others."""
        elements = Column(ELEMENTS, "int64", "count", "sum")
        return (elements, Column(NET, "int64", "", "sum")) if self.input.signed else (elements,)

    @cached_property
    def counted_by(self) -> str:
        """The state column that has the number of elements of a part, if an aggregate counts all of them; else
        empty, and a column of its own has it.
        """
        for bound in () if self.input.signed else self.aggregates:
            if bound.aggregate.counts_rows:
                return bound.state[0].name
        return ""

    @cached_property
    def part_values(self) -> tuple[Column, ...]:
        """The columns of a part of a window that waits: the number of its events, and the state of aggregates."""
        return (*(column for column in self.sizes if column.name != ELEMENTS or not self.counted_by), *self.state)

    @cached_property
    def parts(self) -> TableSpec:
        """The state table of windows that are not due, by slice (a tumbling window is one slice) or cell."""
        if self.in_cells:
            bounds = (replace(column, combiner=how) for column, how in zip(self._bounds, ("min", "max"), strict=True))
            key = (Column(CELL, "int64"), *self.key_columns)
            return TableSpec(PARTS, key, (*bounds, *self.part_values), CELL, self.state_groups, self.partition_by)
        role = SLICE_END if self.rolling or not self.slices.tumbles else END
        key = (Column(SLICE_END, type_text(self.bound_type), role), *self.key_columns)
        return TableSpec(PARTS, key, self.part_values, SLICE_END, self.state_groups, self.partition_by)

    def last_needless_slice(self, watermark: int) -> int:
        """Slices that end at or before this are in no window that is due after ``watermark``."""
        if watermark == BEGINNING_US:
            return watermark
        return END_US - 1 if watermark == END_US else self.slices.oldest_slice_after(watermark)

    @cached_property
    def coarse_slices(self) -> int:
        """The number of slices in a coarse part; 0 for windows that need none."""
        slices = self.kind.size // self.kind.slice if isinstance(self.kind, Sliding) and self.has_parts else 0
        return round(slices**0.5) if slices >= COARSE_FROM else 0

    @cached_property
    def coarse(self) -> TableSpec:
        """The state table of parts that combine many slices, by the end of the last one."""
        key = (Column(SLICE_END, type_text(self.bound_type), "coarse_end"), *self.key_columns)
        return TableSpec(COARSE, key, self.part_values, SLICE_END, self.state_groups, self.partition_by)

    @cached_property
    def windows(self) -> TableSpec:
        """Parts combined by window; not stored."""
        key = (Column(END, type_text(self.bound_type), END), *self.key_columns)
        return TableSpec("windows", key, self.part_values, None, self.state_groups)

    @cached_property
    def chained(self) -> TableSpec:
        """Parts combined by session; not stored."""
        return TableSpec("chained", self.bare.key, self.part_values, None, self.state_groups)

    @cached_property
    def progress(self) -> tuple[Column, ...]:
        """The progress of a window's triggers; combined when sessions merge."""
        sums = (*self.sizes, Column(PENDING, "int64", "", "sum"))
        most = tuple(Column(name, "int64", "", "max") for name in (PANES, EMITTED, CLOSED))
        parts = [
            (Column(f"_count_{node}", "int64", "", "sum"), Column(f"_done_{node}", "int64", "", "max"))
            for node in range(len(self.nodes))
        ]
        since = (SINCE, *(f"_since_{node}" for node in range(len(self.nodes))))
        least = tuple(Column(name, "int64", "", "min") for name in since)
        return (*sums, *most, *least, *(column for pair in parts for column in pair))

    @cached_property
    def remembered(self) -> tuple[Column, ...]:
        """Columns that are lost when a window's bounds change: when it is due, and the result it last emitted."""
        dues = (Column(DUE_CLOCK, "int64"), Column(DUE_MARK, "int64"))
        return (*dues, *(Column(f"_last_{a.name}", type_text(a.result_type), "result") for a in self.aggregates))

    @cached_property
    def _unset(self) -> frozenset[str]:
        """Columns of progress and dues that these triggers never set."""
        early = self.triggers.early
        clock = () if self.by_clock else (SINCE, DUE_CLOCK)
        marks = () if early is not None and early.kind == "every_event_time" else (DUE_MARK,)
        return frozenset((*clock, *marks, *(() if self.triggers.when else (CLOSED,))))

    def as_whole(self, stored: pa.Table) -> pa.Table:
        """Rows of `groups` as rows of `whole`; what is not stored is null."""
        for name in sorted(self._unset):
            stored = stored.append_column(name, pa.nulls(stored.num_rows, pa.int64()))
        return self.whole.conform(stored)

    @cached_property
    def groups(self) -> TableSpec:
        """The state table with one row per window and key."""
        columns = (*self.progress, *self.state, *self.remembered)
        values = tuple(column for column in columns if column.name not in self._unset)
        start, end = self._bounds
        if self.sessions or self.by_number:
            expiry = END if self.sessions else None
            key = (*self.key_columns, start)
            return TableSpec(GROUPS, key, (end, *values), expiry, self.state_groups, self.partition_by)
        return TableSpec(GROUPS, (end, start, *self.key_columns), values, END, self.state_groups, self.partition_by)

    @cached_property
    def arriving(self) -> TableSpec:
        """The arrivals of a batch by group; not stored."""
        values = (*self.sizes, *self.state)
        return TableSpec("arriving", self.bare.key, values, None, self.state_groups)

    @cached_property
    def slices_of_events(self) -> TableSpec:
        """The arrivals of a batch by slice, for windows that share events; not stored."""
        key = (*self.key_columns, Column("slice_end", type_text(self.bound_type)))
        return TableSpec("by_slice", key, (*self.sizes, *self.state), None, self.state_groups)

    @cached_property
    def sees_order(self) -> bool:
        """Whether a result depends on the order in which elements arrive."""
        appends = any(column.combiner == "append" for column in self.state)
        return appends or any(group.combiner not in COMMUTATIVE for group in self.state_groups)

    @cached_property
    def orderless(self) -> bool:
        """Whether elements are combined by sums and extremes alone, to the same bits in any order."""
        return not self.state_groups and all(column.combiner in HASHED for column in self.state)

    @cached_property
    def merging(self) -> TableSpec:
        """Groups keyed by their new bounds, to combine stored rows and arrivals; not stored."""
        values = (*self.progress, *self.state)
        return TableSpec("merging", self.bare.key, values, None, self.state_groups)

    @cached_property
    def whole(self) -> TableSpec:
        """All columns of a group, by key and bounds; not stored."""
        values = (*self.progress, *self.state, *self.remembered)
        return TableSpec("whole", self.bare.key, values, None, self.state_groups)

    @cached_property
    def bare(self) -> TableSpec:
        """Key and bounds of a group; not stored."""
        return TableSpec("bare", (*self.key_columns, *self._bounds), ())

    @cached_property
    def ends(self) -> TableSpec:
        """The state table of sessions by their end."""
        return TableSpec(
            ENDS, (self._bounds[1], *self.key_columns, self._bounds[0]), (), END, partition_by=self.partition_by
        )

    @cached_property
    def counted(self) -> TableSpec:
        """The state table with the number of messages so far, by key."""
        return TableSpec(
            COUNTED, self.key_columns, (Column("count", "int64", "count"),), partition_by=self.partition_by
        )

    @cached_property
    def clock(self) -> TableSpec:
        """The state table of groups by the processing time at which they are due."""
        return TableSpec(CLOCK, self._due_key, (), "due", partition_by=self.partition_by)

    @cached_property
    def marks(self) -> TableSpec:
        """The state table of groups by the watermark at which they are due before their end."""
        return TableSpec(MARKS, self._due_key, (), "due", partition_by=self.partition_by)

    @property
    def _due_key(self) -> tuple[Column, ...]:
        return (Column("due", "int64"), *self.bare.key)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        waiting = ((self.parts, self.coarse) if self.coarse_slices else (self.parts,)) if self.has_parts else ()
        other = (self.ends,) if self.sessions else (self.counted,) if self.by_number else ()
        first = (*waiting, self.groups) if self.lazy else (self.groups, *waiting)
        return (*first, *other, self.clock, self.marks, *self.held_tables)

    @cached_property
    def per_event(self) -> bool:
        """Whether events reach the state one by one: to number, refuse or order them, or for a pane after each."""
        return self.by_number or self.triggers.per_element or self.finishes or self.in_order

    @property
    def exchanged(self) -> TableSpec:  # type: ignore[override]
        return self.taken

    @cached_property
    def taken(self) -> TableSpec:  # type: ignore[override]
        if self.lazy:
            return self.parts
        if not self.per_event:
            return self.arriving
        types = [type_text(self.input.schema.field(name).type) for name in self.input.order]
        extra = [Column(name, kind) for name, kind in zip(self.order_names, types, strict=True)]
        if self.in_order:
            extra.append(Column(TIME_OF, "int64"))
        if self.finishes:
            # By number: names of input columns may be anything.
            fields = [pa.field(f"_{number}", field.type) for number, field in enumerate(self.input.schema)]
            extra.append(Column(EVENT, type_text(pa.struct(fields))))
        return TableSpec("arriving", self.arriving.key, (*self.arriving.values, *extra))

    @property
    def order_names(self) -> list[str]:
        """Names of the order's columns in `taken`, if events are taken one by one."""
        return [f"_order_{number}" for number in range(len(self.input.order))]

    @property
    def held_by(self) -> tuple[str, ...]:
        return (TIME_OF, *self.order_names)

    def lifted(self, accepted: pa.Table) -> list[Values]:
        """One partial per event: the columns of `state`; int64 where `combine` makes decimals."""
        columns = [column for bound in self.aggregates for column in bound.lift(accepted)]
        return columns if self.tracked is None else [*columns, *self.tracked.lift(accepted)]

    @cached_property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        """The columns of panes: window, key and results, then what kind of pane it is."""
        small = pa.dictionary(pa.int8(), pa.string())
        return pa.schema(
            [
                pa.field("window_start", self.bound_type),
                pa.field("window_end", self.bound_type),
                *self.input.key,
                *(pa.field(a.name, a.result_type) for a in self.aggregates),
                pa.field("pane", pa.int64()),
                pa.field("timing", small),
                pa.field("kind", small),
                pa.field("last", pa.bool_()),
            ]
        )

    def panes(
        self,
        groups: pa.Table,
        values: pa.Table,
        number: pa.ChunkedArray,
        timing: str,
        kind: str,
        last: Flags,
    ) -> pa.Table:
        """Panes of ``groups``, in `pane_schema`, with these values, pane numbers and flags ``last``."""
        count = groups.num_rows
        columns = [
            groups[START],
            groups[END],
            *(groups[name] for name in self.input.key_names),
            *values.columns,
            number,
            constant(count, timing, TIMINGS),
            constant(count, kind, KINDS),
            pa.array(last),
        ]
        return pa.table(columns, schema=self.pane_schema)

    @property
    def _bounds(self) -> tuple[Column, Column]:
        kind = type_text(self.bound_type)
        return Column(START, kind, START), Column(END, kind, END)


def aggregates_of(plan: Plan) -> tuple[BoundAggregate, ...]:
    """The aggregates of an operator; of one without windows none."""
    return plan.aggregates if isinstance(plan, GroupTables) else ()


def retractions(plan: GroupTables, groups: pa.Table, timing: str) -> pa.Table:
    """The last panes of ``groups`` again, as retractions."""
    results = [groups[f"_last_{a.name}"] for a in plan.aggregates]
    values = pa.table(results, names=[a.name for a in plan.aggregates])
    number = pc.subtract(groups[PANES], 1)
    return plan.panes(groups, values, number, timing, "retract", np.zeros(groups.num_rows, bool))


def replaced_panes(plan: GroupTables, gathered: Gathered, context: Context) -> list[pa.Table]:
    """Retractions of the panes of sessions that were merged into others, with the timing of the merged ones."""
    rows, emitted = plan.as_whole(gathered.replaced), column_numbers(gathered.replaced, EMITTED) > 0
    behind, passed = gathered.became <= context.watermark_before, gathered.became <= context.watermark
    timings = (("late", behind), ("on_time", passed & ~behind), ("early", ~passed & ~behind))
    return [retractions(plan, rows.filter(pa.array(mask & emitted)), timing) for timing, mask in timings]
