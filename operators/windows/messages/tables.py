"""The plan of windows whose messages are known by an identity: its tables, and functions that read messages. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.custom import ApplyRows
from tidestate.operators.describe.windows import Counted, Global, Sessions, Sliding, Windows
from tidestate.operators.plan.plan import BY_WATERMARK, ONLY, RECEIVED, REFUSED, ReplayedPlan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, LIMIT_US
from tidestate.operators.windows.assignment import FIRST_US, LAST_US, gaps_of, lifetime_ends
from tidestate.operators.windows.messages.identity import Identity
from tidestate.operators.windows.messages.window_metadata import WindowTables
from tidestate.operators.windows.names import END, START
from tidestate.operators.windows.tables import GroupTables, with_columns
from tidestate.statestore.arrays import Flags, Numbers, Times, Values
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.messages.identities import first_of_each
from tidestate.statestore.messages.keys import KeyMeasure, Layout
from tidestate.statestore.messages.retention import read_marks
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, MessageTables, Retention
from tidestate.statestore.spec.arrowtypes import positions, type_text
from tidestate.statestore.spec.changes import Ranges, TableChanges
from tidestate.statestore.spec.lists import whole
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, TableSpec
from tidestate.statestore.table.fold import combine_values
from tidestate.statestore.table.sorting import order

NUMBER = "_number"
"""Of messages in counted windows: which of its key it is."""
FOR_WINDOW = "_for_window"
"""Of late events that are reprocessed for one window: its start."""
_RECEIVED, _REFUSED = Column(RECEIVED, "int64"), Column(REFUSED, "string")
HORIZON, HORIZON_BEFORE = "horizon", "horizon_before"
"""Marks of the end of the latest window that is closed, in this step and in the one before."""
METADATA = "metadata"
"""The name of the tables of window metadata."""
Read = Callable[[pa.Table], Ranges]
"""The messages of each of some windows: rows with window bounds and key, as the groups table has them."""


def _unread(windows: pa.Table) -> Ranges:
    raise UsageError("messages can be read only within a step", code="message-range", windows=windows.num_rows)


@dataclass(frozen=True)
class FromMessages(BoundAggregate):
    """An aggregate that needs every message of a window: computed from the message store when the window emits."""

    inner: BoundAggregate
    names: tuple[tuple[str, str], ...]
    """What each input column that it reads is called in the message store."""
    turn: tuple[str, ...] = ()
    """The columns of the message store that order the messages of a window; none for its own order."""
    read: Read = _unread

    @property
    def state(self) -> tuple[Column, ...]:
        """Nothing of its own: the messages are the state."""
        return ()

    @property
    def result_type(self) -> pa.DataType:
        return self.inner.result_type

    def lift(self, events: pa.Table) -> list[Values]:
        """No columns: the state is the messages, which are stored as they are."""
        return []

    def finish(self, partials: pa.Table) -> Values:
        """Over all messages of each window."""
        found = self.read(partials)
        if self.turn:
            sorted_by = found.rows.select(self.turn).add_column(0, "__window", found.request_index)
            by_turn = pa.array(order(sorted_by))
            found = Ranges(found.request_index.take(by_turn), found.rows.take(by_turn))
        events = pa.table({name: found.rows[kept] for name, kept in self.names})
        spec = TableSpec("of_messages", (Column("window", "int64"),), self.inner.state, None, self.inner.groups)
        names = spec.schema.names[1:]
        lifted = pa.table(self.inner.lift(events), names=names).cast(pa.schema(list(spec.schema)[1:]))
        windows, owner = np.unique(np.asarray(found.request_index), return_inverse=True)
        if not len(windows):
            return self._of_none(partials.num_rows)
        values = self.inner.finish(combine_values(spec, lifted, owner, len(windows)))
        if len(windows) == partials.num_rows:
            return values
        places = np.full(partials.num_rows, len(windows))
        places[windows] = np.arange(len(windows))
        return pa.concat_arrays([whole(values), self._of_none(1)]).take(pa.array(places))

    def _of_none(self, count: int) -> pa.Array:
        """The results of ``count`` windows of which no message is there: all were lost."""
        if isinstance(self.inner.aggregate, ApplyRows) or not pa.types.is_list(self.result_type):
            return pa.nulls(count, self.result_type)
        return pa.array([[]] * count, self.result_type)


@dataclass(frozen=True, kw_only=True)
class MessageWindows(GroupTables, ReplayedPlan):
    """``messages`` is None where nothing needs the messages again: then only their identities are kept."""

    classifies_late = True
    not_run_again = ""

    known_by: Identity
    identities: MessageTables
    messages: MessageTables | None
    metadata: WindowTables
    retention: Retention | None
    horizon: bool = False
    """Whether the number or size of messages says how late one may be: then each state partition has a `gone_us` of
    its own.
    """

    @property
    def named_by(self) -> list[str]:
        """With the columns of the identity."""
        return list(dict.fromkeys([*super().named_by, *self.known_by.columns]))

    @property
    def message_tables(self) -> tuple[str, ...]:
        return () if self.messages is None else (self.messages.name,)

    @property
    def not_replayable(self) -> str:
        """Their numbers, or what a CTI or buffer did with them, may depend on how they had arrived; or a read of a
        window has others than it took: with lifetimes those from before its start are missing, and where windows
        refuse messages by themselves, those of others are there.
        """
        reasons = {
            "the numbers of its messages depend on the order in which they arrived": self.by_number,
            BY_WATERMARK: self.input.watermarks.filters_rows,
            "with lifetimes a window also holds messages from before its start": self.touching,
            "a window may have refused a message that another one has stored": self._refuse_apart,
        }
        return "" if self.messages is None else next((why for why, holds in reasons.items() if holds), "")

    @property
    def stored_under(self) -> dict[str, tuple[str, ...]]:
        return {} if self.messages is None else {self.identities.seen.name: (self.messages.name,)}

    @property
    def _refuse_apart(self) -> bool:
        """Whether a window that is retained may refuse a message that another one stores."""
        retained = self.retain_us != 0 or self.retain_windows is not None or self.retention is not None
        return retained and (self.overlapping or self.sessions) and (self.rule == "window" or self.by_offset)

    @property
    def steps_together(self) -> bool:
        return self.retention is not None

    @property
    def asks_refused(self) -> bool:
        """Whether it matters which messages a closed window has refused: to read it, or to reprocess them."""
        return self.messages is not None or self.retain_us != 0 or self.retain_windows is not None

    @property
    def reads_messages(self) -> bool:
        """Whether a function reads the messages of a window."""
        return any(isinstance(aggregate, FromMessages) for aggregate in self.aggregates)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        kept = self.messages
        own = () if kept is None else (kept.messages, *((kept.sizes,) if kept.counts_sizes else ()))
        return (*super().tables, *own, self.identities.seen, self.identities.marks, *self.metadata.specs)

    @cached_property
    def exchanged(self) -> TableSpec:  # type: ignore[override]
        """The form in which events go to the task of their key: they themselves, as nothing is combined before."""
        names = set(self.input.key_names)
        last = self.known_by.columns[-1]
        key = self.input.key_specs or (Column(last, type_text(self.input.schema.field(last).type)),)
        names |= {column.name for column in key}
        values = [Column(field.name, type_text(field.type)) for field in self.input.schema if field.name not in names]
        values += [Column(FOR_WINDOW, "int64")] if self.names_windows else []
        return TableSpec("rows", key, (*values, *self._generated))

    @property
    def keeps_received(self) -> bool:
        """But not of a number, which it did not have when it came."""
        return super().keeps_received and not self.kind.numbered

    @property
    def _generated(self) -> tuple[Column, ...]:
        """The columns that events have from a generator which read them before."""
        if not self.input.watermarks.filters_rows:
            return ()
        return (_RECEIVED, _REFUSED) if self.keeps_received else (_REFUSED,)

    def sent(self, events: pa.Table) -> pa.Table:
        """Events as rows of `exchanged`. Raises `UsageError` for one without an identity."""
        equal = self.messages.equal_names if self.messages is not None else []
        self.known_by.check_known(events, [name for name in equal if name not in self.input.key_names])
        if self.names_windows:
            only = events[ONLY] if ONLY in events.column_names else pa.nulls(events.num_rows, pa.int64())
            events = events.append_column(FOR_WINDOW, only)
        for column in self._generated:
            if column.name not in events.column_names:
                events = events.append_column(column.name, pa.nulls(events.num_rows, column.arrow))
        return events.select(self.exchanged.schema.names).cast(self.exchanged.schema)

    def events_in(self, arriving: pa.Table) -> pa.Table:
        """The events in rows of `exchanged`."""
        events = arriving.select([*self.input.schema.names, *(column.name for column in self._generated)])
        if FOR_WINDOW in arriving.column_names and arriving[FOR_WINDOW].null_count < arriving.num_rows:
            events = events.append_column(ONLY, arriving[FOR_WINDOW])
        return events

    @abstractmethod
    def window_rows(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        """Accepted events as rows of `taken`."""

    @abstractmethod
    def window_step(self, view: StateView, rows: pa.Table, context: Context) -> Transition:
        """The step of the windows alone, by rows of `taken`."""

    def over_at(self, watermark: int) -> int | None:
        """Windows that end at or before this are over by lateness; None while that is none, and in the end all."""
        over = self.expired_at(watermark)
        return None if over in (BEGINNING_US, END_US) else over

    def last_instants(self, windows: pa.Table) -> pa.ChunkedArray:
        """The last position at which each of these windows may hold a message. Sessions of a constant gap may overlap
        one that is closed to their messages; all of its own are a gap before its end.
        """
        return pc.subtract(windows[END].cast(pa.int64()), self.gap if self.in_cells else 1)

    def needless_at(self, over: int) -> int | None:
        """Messages at or before this are in no window that ends after ``over``, and too late for any."""
        kind = self.kind
        if self.by_number:
            return over - 1 if self.identities.layout.by_time else None
        if isinstance(kind, Sliding):
            return min(kind.oldest_slice_after(over), over) - 1
        if isinstance(kind, Sessions):
            # Of a gap of its own a message is known until that is over, see `known_until`.
            return over - 1 if kind.gap_column is not None else over - kind.gap
        return over - 1 if self.messages is None and self.rule == "event" else None

    def forgotten_at(self, view: StateView, watermark: int) -> int | None:
        """Identities at or before this position are forgotten at this watermark; None for none."""
        if self.by_number and not self.identities.layout.by_time:
            return view[self.identities.seen.name].expired
        if self.retention is not None and not self.horizon and not self.by_number:
            return read_marks(self.identities, view).bound
        over = self.over_at(watermark)
        return None if over is None else self.needless_at(over)

    def within(self, view: StateView) -> Self:
        """The plan with the horizon that this state has: windows that end at or before it are closed."""
        if not self.horizon:
            return self
        found = view[self.identities.marks.name].lookup(pa.table({"mark": [HORIZON, HORIZON_BEFORE]}))
        now, before = (BEGINNING_US if at is None else at for at in found.rows["at"].to_pylist())
        return replace(self, gone_us=max(self.gone_us, now), closed_us=max(self.gone_us, before))

    @property
    def layout(self) -> Layout | None:
        """The key layout of the messages."""
        return self.messages.layout if self.messages else None

    def reading(self, read: Read) -> Self:
        """The same plan with its functions over messages reading by ``read``."""
        given = tuple(replace(a, read=read) if isinstance(a, FromMessages) else a for a in self.aggregates)
        return replace(self, aggregates=given)

    def message_column(self, name: str) -> str:
        """What an input column is called in the message store."""
        known_by = self.known_by
        return {
            self.input.event_time: MESSAGE_TIME,
            known_by.origin: known_by.stored_as,
            known_by.offset: OFFSET,
        }.get(name, name)

    def as_messages(self, rows: pa.Table) -> pa.Table:
        """Events with the columns of the message store."""
        origin = None if self.known_by.origin is not None else self.known_by.origin_of(rows)
        rows = rows.rename_columns([self.message_column(name) for name in rows.column_names])
        if origin is not None:
            rows = rows.append_column(self.known_by.stored_as, origin)
        if self.by_offset:
            rows = rows.append_column(MESSAGE_TIME, rows[OFFSET].cast(TIME))
        by_session = self.messages is not None and self.messages.layout.by_session
        return self.keyed(rows) if by_session else rows


def message_times(plan: MessageWindows, events: pa.Table, context: Context) -> tuple[Times, Flags]:
    """The time of each event, of one without a usable time the watermark: until that it is known; and which have
    one.
    """
    given = events[RECEIVED] if RECEIVED in events.column_names else events[plan.input.event_time].cast(pa.int64())
    times: npt.NDArray[np.int64] = pc.fill_null(given, 2**63 - 1).to_numpy()
    usable = (times <= LIMIT_US) & (times >= -LIMIT_US)
    return np.where(usable, times, now_of(context)), usable


def known_until(plan: MessageWindows, events: pa.Table, times: Times) -> pa.ChunkedArray:
    """The position up to which each event may be in a window, if it is accepted: its offset, or its last instant."""
    kind, places = plan.identities.seen.values[0].arrow, times
    if not plan.identities.layout.by_time:
        return plan.known_by.of(events)[OFFSET].cast(kind)
    if plan.touching:
        places = np.clip(lifetime_ends(plan.slices, times, events) - 1, times, LIMIT_US)
    if plan.sessions and not plan.in_cells:
        places = np.clip(times + gaps_of(of_type(plan.kind, Sessions), events) - 1, times, LIMIT_US)
    return pa.chunked_array([pa.array(places).cast(kind)])


def now_of(context: Context) -> int:
    """The watermark, up to which those are known that are in no window."""
    return 0 if context.watermark == BEGINNING_US else min(context.watermark, LIMIT_US)


def known_as_rejected(
    plan: MessageWindows, view: StateView, identities: pa.Table, starts: Values, context: Context
) -> TableChanges:
    """Changes by which the messages with these ``identities`` are known under another position than their own: the
    next one, or with a lifetime one that follows its start, as its end may be far.
    """
    seen = plan.identities.seen
    known = view[seen.name].lookup(seen.conform_keys(identities))
    once = np.asarray(known.found, bool) & (
        first_of_each(identities.select(seen.key_names)) == np.arange(identities.num_rows)
    )
    found, own = known.rows.filter(pa.array(once)), positions(known.rows["position"].filter(pa.array(once)))
    place = own + 1
    if plan.touching:
        soon = np.maximum(pc.fill_null(starts, 0).to_numpy()[once] + 1, now_of(context))
        place = np.where(soon < own, soon, place)
    found = with_columns(found, {"position": pa.array(place).cast(seen.values[0].arrow)})
    return TableChanges(put=seen.conform(found))


def batch_of(plan: MessageWindows, rows: pa.Table, starts: Numbers, ends: Numbers) -> pa.Table:
    """Rows of messages and windows as the metadata takes them: key, bounds, identity."""
    identity = plan.known_by.of(rows)
    names = [*plan.group_keys, START, END, *identity.column_names]
    bounds = [pa.array(values).cast(plan.bound_type) for values in (starts, ends)]
    return pa.table([*plan.keys_of(rows), *bounds, *identity.columns], names=names)


def of_tuples(kind: Windows) -> bool:
    """Whether windows are of messages, by number or by offset."""
    return isinstance(kind, Counted) or kind.by_offset


def metadata_tables(kind: Windows, keys: tuple[Column, ...], origin: str, by: tuple[str, ...]) -> WindowTables:
    """The metadata tables of windows of this kind, by these key columns; spread over state partitions ``by`` some of
    them.
    """
    size = None if isinstance(kind, Sessions) else _size_of(kind)
    measure: KeyMeasure = "tuple" if of_tuples(kind) else "time"
    return WindowTables(measure, size, keys, origin=origin, name=METADATA, partition_by=by)


def _size_of(kind: Windows) -> int:
    if isinstance(kind, Global):
        return LAST_US - FIRST_US
    return kind.count if isinstance(kind, Counted) else of_type(kind, Sliding).size
