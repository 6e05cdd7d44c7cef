"""The plan of an operator: a description bound to the schema of its input. Each kind of operator has a subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import KIND
from tidestate.operators.describe.output_origin import ORIGIN_FIELDS, OutputOrigin
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windows import WINDOW_TIMING, NamedWindow, Sliding, Windows, window_timing
from tidestate.operators.plan.held_rows import Holding
from tidestate.operators.plan.input_spec import (
    Check,
    InputSpec,
    any_null,
    beyond_range,
    misplaced,
    too_long_keys,
    window_checks,
)
from tidestate.operators.plan.reasons import BAD_OFFSET, KEY_TOO_LONG, NULL_KEY, NULL_TIME, OUT_OF_RANGE
from tidestate.operators.plan.slicing import SlicedRows, Slicing
from tidestate.operators.plan.stages import COMPUTED
from tidestate.operators.plan.transition import Timer, Transition
from tidestate.operators.progress.progress import Context, Observer
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.zones.rules import ZoneRules
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.checksums import checksum
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import InvariantError, UsageError
from tidestate.statestore.spec.arrowtypes import type_text, type_texts
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, TableSpec

PROCESSING_TIME = "processing_time"
"""The column that is added to an input without an event time."""
PANE_KIND = KIND
"""The column of panes that marks retractions."""
ONLY = "__only"
"""A column of late events to reprocess: the start of the one window that refused them, null for all windows."""
BOUNDS, OTHER_BOUNDS = ("window_start", "window_end"), ("refusing_window_start", "refusing_window_end")
"""The columns of the late ledger with the bounds of the one window that refused an event; the others where the input
has columns of the first names, as panes of another operator do.
"""
RECEIVED, REFUSED = "_received", "_refused"
"""Columns of events whose identity is asked for after a generator has read them: the time as it was received, and why
the generator refused the event, null if it did not.
"""
RowKind = Literal["live", "ledger", "replay"]
"""Rows of the input, late ones of the ledger that come again, or a replay that puts lost messages back."""
RESERVED = {
    "window_start",
    "window_end",
    "slice_end",
    "pane",
    "timing",
    "kind",
    "last",
    "reason",
    "watermark",
}


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """An operator, bound to the types of its input: all that the engine reads of it. Pure functions over tables, and
    data; made by `bind_plan`, and picklable, as Spark's tasks get it.

    A new operator has tables, a schema of panes, what is too late, and a step; the rest has defaults. The engine asks
    for nothing that is not here: what windows have in addition, it does not know. Where event times are offsets
    (``by_offset``), lateness and retention are offsets too.
    """

    taken_again: ClassVar[str] = "whose windows are retained"
    """Which of them it then takes."""
    classifies_late: ClassVar[bool] = False
    """Whether events are classified next to the state, once it is known which of them are new."""
    future_option: ClassVar[str] = ""
    """The method that sets the tolerance for its future events; empty if there is none."""
    late_option: ClassVar[str] = ""
    """The method that sets its allowed lateness; empty if there is none."""

    name: str
    input: InputSpec
    configuration: dict[str, Any]
    renames: Renames = SAME_NAMES
    allowed_us: int = 0
    """How far behind the watermark a row may be."""
    in_order: bool = False
    """Whether rows are held until the watermark passes them, and processed in the order of their times."""
    gone_us: int = BEGINNING_US
    """What ends at or before this had expired under earlier settings."""
    closed_us: int | None = None
    """The last end that was closed when settings changed; None after the next step."""
    settles: bool = False
    """Whether triggers have changed before the next step: late events may wait for a trigger that is gone."""
    zones: Mapping[str, ZoneRules] = field(default_factory=dict)
    """The rules of the time zones that its expressions name, as its manifest has them."""
    rows_are: RowKind = "live"
    """What the rows of its input are, in this micro-batch: windows take those of the late ledger until they expire,
    and they claim no watermark; those of a replay put messages back.
    """

    def with_input(self, **changes: Any) -> Self:
        """The same with these changes to its input."""
        return replace(self, input=replace(self.input, **changes))

    def begun_as(self, described: Runnable) -> Self:
        """The same as it goes on from a checkpoint in which it is ``described`` so: where a setting that is not named
        meant something else when the operator began, with that.
        """
        return self

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns of state tables whose hash is the state partition of a row, as in `classify`."""
        return tuple(self.input.key_names)

    @property
    def reprocesses(self) -> bool:
        """Whether late events may be reprocessed."""
        return False

    @property
    def reprocessing(self) -> bool:
        """Whether the rows of its input were read before: from the late ledger, or as a replay."""
        return self.rows_are != "live"

    @property
    def named_by(self) -> list[str]:
        """The columns that identify an event in logs."""
        by = [self.input.watermarks.by] if self.input.watermarks.by else []
        return [self.input.event_time, *self.input.key_names, *by, *self.input.order]

    @property
    def never_null(self) -> list[str]:
        """The columns in which a null rejects a row, without event time and order."""
        return self.input.key_names

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """What a row must meet: the first that it fails gives the reason in the ledger. Lateness comes after."""
        order, keys = self.input.order, tuple(dict.fromkeys([*self.never_null, *self.input.order]))
        return (
            *self.own_checks,
            *(((BAD_OFFSET, partial(misplaced, order)),) if order else ()),
            (NULL_TIME, partial(any_null, (self.input.event_time,))),
            (NULL_KEY, partial(any_null, tuple(self.never_null))),
            (KEY_TOO_LONG, partial(too_long_keys, keys)),
            (OUT_OF_RANGE, beyond_range),
        )

    @property
    def own_checks(self) -> tuple[Check, ...]:
        """What rows must meet for this operator, before what all must meet."""
        return ()

    @property
    def by_offset(self) -> bool:
        """Whether event times are offsets."""
        return False

    @property
    def clocked(self) -> bool:
        """Whether time alone may emit panes: by the watermark, by idle sources, or by triggers."""
        return self.input.watermarks.clocked

    @property
    def retracts(self) -> bool:
        """Whether panes may be retractions."""
        return False

    @property
    def has_plain_rows(self) -> bool:
        """Whether its rows are the user's alone: no column of them is one of panes, whatever it is called."""
        return False

    @property
    def waits_by(self) -> str | None:
        """The setting of allowed lateness with its value, for messages; None if there is none."""
        return f"{self.late_option} (now {text_of(self.allowed_us)})" if self.late_option else None

    @property
    def observers(self) -> tuple[Observer, ...]:
        """What else it has to know of its input, besides the watermark."""
        return ()

    @property
    def mark_type(self) -> pa.DataType:
        """The type of watermarks: times, or int64 where these are offsets."""
        return pa.int64() if self.by_offset else TIME

    @property
    def stands(self) -> bool:
        """Whether its output stands: panes are withheld until lost messages have been replayed."""
        return False

    def standing(self, context: Context) -> Context:
        """The context with the watermarks at which its output stands while rows are missing, if it does."""
        return context

    def closed_at(self, watermark: int) -> int:
        """Windows that end at or before this accept no more events, except reprocessed ones."""
        if watermark in (BEGINNING_US, END_US):
            return watermark
        return max(BEGINNING_US, self.gone_us, watermark - self.allowed_us)

    def refused_at(self, watermark: int) -> int:
        """Windows that end at or before this accept no more of the rows that come; late ones that come again are
        refused by what has expired alone.
        """
        return self.expired_at(watermark) if self.reprocessing else self.closed_at(watermark)

    def closed_before(self, watermark: int) -> int:
        """Windows that end at or before this were closed before a step that begins at this watermark."""
        return self.closed_at(watermark) if self.closed_us is None else self.closed_us

    def passed_spans(self, context: Context, *, closing: bool) -> list[tuple[int, int]]:
        """Ranges of window ends, exclusive to inclusive, that a step with these times passes: of windows that fire on
        time and, where it looks at ``closing`` ones, of those that accept no more events from then on.
        """
        before, after = context.watermark_before, context.watermark
        spans = [(before, after)]
        if closing or self.settles:
            reached = before if self.settles else min(self.closed_at(after), before)
            spans.append((self.closed_before(before), reached))
        return [(low, high) for low, high in spans if low < high]

    def expired_at(self, watermark: int) -> int:
        """Windows that end at or before this are no longer retained."""
        return self.closed_at(watermark)

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the configuration and the types of the input."""
        types = type_texts(self.input.schema)
        staged = [] if self.input.stages is None else [type_texts(self.input.read_schema)]
        return checksum(msgspec.json.encode([self.configuration, types, *staged], order="sorted"))

    @property
    @abstractmethod
    def tables(self) -> tuple[TableSpec, ...]:
        """The state tables of the operator. Raises `UsageError` where a column cannot be stored."""

    @property
    def computed(self) -> tuple[Column, ...]:
        """Columns that `arrive` adds to rows of the input."""
        return ()

    @property
    def keeps_received(self) -> bool:
        """Whether rows have the time with which they came next to the one that a generator gives them."""
        return self.classifies_late and self.input.watermarks.filters_rows

    @property
    def stores_rows(self) -> bool:
        """Whether rows of the input are stored with the columns that are read of them, and used later."""
        return self.in_order

    @cached_property
    def exchanged(self) -> TableSpec:
        """The rows that are sent from the input to the state: by default those of the input, not partials."""
        return self.whole_rows

    @cached_property
    def whole_rows(self) -> TableSpec:
        """Rows of the input with the columns that are `computed`; not stored."""
        key = self.input.key_specs or (Column(self.input.event_time, str(self.mark_type)),)
        names = {column.name for column in key}
        values = (Column(field.name, type_text(field.type)) for field in self.input.schema if field.name not in names)
        return TableSpec("rows", key, (*values, *self.computed))

    @property
    def taken(self) -> TableSpec:
        """Schema of the rows that `step` receives; by default the rows sent by `arrive`."""
        return self.exchanged

    @property
    def held_by(self) -> tuple[str, ...]:
        """The columns of ``taken`` that order held rows: first their times."""
        return (self.input.event_time,)

    @cached_property
    def holding(self) -> Holding | None:
        """How rows are held; None where they are taken as they come."""
        if not self.in_order:
            return None
        time, *then = self.held_by
        return Holding(self.taken, time, self.input.key_specs, tuple(then))

    @property
    def held_tables(self) -> tuple[TableSpec, ...]:
        """The tables of rows that are held."""
        return self.holding.tables if self.holding else ()

    def taking(
        self, view: StateView, arriving: pa.Table, context: Context, step: Callable[[pa.Table], Transition]
    ) -> Transition:
        """A ``step`` with what arrives, or with the rows whose turn it is where they are held."""
        return self.holding.through(view, arriving, context.watermark, step) if self.holding else step(arriving)

    def timers(self, context: Context) -> tuple[Timer, ...]:
        """What of the state is due when, after a step with these times."""
        return self.holding.timers if self.holding else ()

    def expiry(self, context: Context) -> dict[str, int]:
        """The bounds up to which rows of tables expire in a step with these times: the same in all state partitions,
        whether they take it or not. What follows from the state itself a step adds in its changes.
        """
        return self.holding.expiry(context.watermark) if self.holding else {}

    def wakes(self, context: Context) -> bool:
        """Whether each state partition takes a step with these times, whatever its timers say."""
        return self.reprocessing

    @abstractmethod
    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """Which events are too late, by their times and windows. Shape ``(events,)``."""

    def outside(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """Which events are behind the watermark by more than the lateness, and in no window at all; of length 0 if
        each event has a window. Shape ``(events,)``.
        """
        return np.zeros(0, bool)

    def refused(self, accepted: pa.Table, times: Times, watermark: int) -> pa.Table | None:
        """Accepted events that some of their windows refuse, a row per event and window with its bounds; None if
        there are none.
        """
        return None

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        """Accepted events as rows of ``exchanged``; keys may repeat."""
        return self.exchanged.conform(accepted)

    @property
    def slicing(self) -> Slicing | str:
        """How its rows can be combined by slice and key before they are handed over; else why they cannot."""
        return "the operator does not combine rows by slices"

    def arrive_sliced(self, accepted: SlicedRows) -> pa.Table:
        """Accepted events, combined as `slicing` says, as rows of ``exchanged``; keys may repeat."""
        raise InvariantError(
            "only rows of an operator with slices are combined", code="invariant", operator=self.name
        )

    @abstractmethod
    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        """The transition of the state in ``view`` by ``arriving``, rows of ``exchanged``. Pure."""

    def output_watermark(self, watermark: int, column: str) -> int:
        """The lower bound of ``column`` in later panes except late ones: the watermark of their readers.

        Raises `UsageError` if there is no bound.
        """
        raise no_bound(self, column, "its rows have no time that follows the watermark")

    @property
    @abstractmethod
    def pane_schema(self) -> pa.Schema:
        """The columns of panes: the rows that the operator emits."""

    @cached_property
    def output_origin(self) -> OutputOrigin | None:
        """As which origin the operator numbers its output; None: it does not."""
        stored = self.configuration.get("output_origin")
        return None if stored is None else msgspec.convert(stored, OutputOrigin)

    @cached_property
    def delivered_schema(self) -> pa.Schema:
        """The columns of the rows that a job with this output operator delivers."""
        schema = self.pane_schema
        return schema if self.output_origin is None else pa.schema([*schema, *ORIGIN_FIELDS])

    @property
    def ledger_facts(self) -> list[pa.Field]:
        """The columns of the late ledger that say why a row was rejected."""
        return [pa.field("reason", pa.string()), pa.field("watermark", self.mark_type)]

    @cached_property
    def late_schema(self) -> pa.Schema:
        """The columns of the late ledger: those of the input, those that its stages read, then `ledger_facts`."""
        arrivals = [] if self.input.stages is None else self.input.stages.ledger_fields
        return pa.schema([*self.input.schema, *arrivals, *self.ledger_facts])

    def ledger(self, rejected: pa.Table, reasons: str | pa.Array, watermark_us: int | None) -> pa.Table:
        """Rows of the late ledger for ``rejected`` events: each with its reason and the watermark; without a window
        if all windows of the event refused it.
        """
        count = rejected.num_rows
        nowhere = np.zeros(count, np.int64)
        why = pa.array([reasons]).take(pa.array(nowhere)) if isinstance(reasons, str) else reasons
        marks = pa.nulls(count, self.mark_type)
        if watermark_us is not None and abs(watermark_us) < 2**62:  # else it does not fit into a timestamp
            marks = pa.array([watermark_us], pa.int64()).cast(self.mark_type).take(pa.array(nowhere))
        given = {"reason": why, "watermark": marks, **self.window_facts(rejected, watermark_us)}
        if self.input.stages is not None and self.input.stages.is_marked:
            given[COMPUTED] = self.input.stages.computed_of(rejected)
        columns = [
            given[field.name]
            if field.name in given
            else rejected[field.name]
            if field.name in rejected.column_names
            else pa.nulls(count, field.type)
            for field in self.late_schema
        ]
        return pa.table(columns, names=self.late_schema.names).cast(self.late_schema)

    @property
    def pane_key(self) -> tuple[str, ...] | None:
        """The columns that, with the window if there is one, name a pane once; None where panes may repeat them."""
        return None

    @property
    def key_alone(self) -> bool:
        """Whether panes have of the input the columns of the key alone; else all of it."""
        return False

    @property
    def partial_panes(self) -> str:
        """Why the newest pane of a window is not its result; empty where it is."""
        return ""

    @property
    def calls_user_code(self) -> bool:
        """Whether its step calls functions of the user, which need not bear several threads."""
        return False

    @property
    def names_windows(self) -> bool:
        """Whether a ledger row may be for one of several windows of a row."""
        return False

    def named_windows(self, late: pa.Table) -> pa.ChunkedArray | None:
        """The start of the one window that each row of the ledger is for, null for all of its windows; int64. None if
        rows name no windows.
        """
        return None

    def window_facts(self, rejected: pa.Table, watermark: int | None) -> dict[str, pa.ChunkedArray]:
        """Columns of the ledger that rejected rows do not have, as windows give them at this watermark."""
        return {}

    def current_window(self, watermark: int | None) -> tuple[int, int] | None:
        """Start and end of the window that says which events are in time, past and future, see
        `tidestate.operators.describe.windows`; None where no grid of windows does.
        """
        return None

    def needed_until(self, late: pa.Table) -> Times:
        """The last time at which something stored takes each of these rows of the ledger. Shape ``(rows,)``."""
        return np.full(late.num_rows, END_US)

    @property
    def message_tables(self) -> tuple[str, ...]:
        """The state tables with stored messages, whose files may be lost while everything else is whole."""
        return ()

    @property
    def steps_together(self) -> bool:
        """Whether, if one state partition steps, all do: as what expires in one follows from its own state."""
        return False


@dataclass(frozen=True, kw_only=True)
class WindowedPlan(Plan):
    """An operator whose rows lie in windows."""

    kind: Windows
    ledger_timing: bool = False
    """Whether the late ledger says of each row if it was in time, past or future by the current window."""

    @cached_property
    def by_offset(self) -> bool:  # type: ignore[override]
        return self.kind.by_offset

    @cached_property
    def has_gaps(self) -> bool:
        """Whether an event may be in no window: between two, or before the first."""
        return isinstance(self.kind, Sliding) and self.kind.has_gaps

    @property
    def bound_type(self) -> pa.DataType:
        """The type of window starts and ends."""
        return self.mark_type

    @property
    def own_checks(self) -> tuple[Check, ...]:
        return window_checks(self.kind, signed=self.input.signed)

    @cached_property
    def overlapping(self) -> bool:
        """Whether an event may be too late for only some of its windows."""
        return isinstance(self.kind, Sliding) and self.kind.shares_events

    @property
    def names_windows(self) -> bool:
        return self.overlapping

    @property
    def ledger_bounds(self) -> tuple[str, str]:
        """The columns of the ledger with the bounds of a window that refused an event."""
        taken = not isinstance(self.kind, NamedWindow) and not set(BOUNDS).isdisjoint(self.input.schema.names)
        return OTHER_BOUNDS if taken else BOUNDS

    @property
    def ledger_facts(self) -> list[pa.Field]:
        """With the bounds of the window if only some of an event's windows refused it, and where it lay from the
        current window.
        """
        names = self.ledger_bounds if self.names_windows else ()
        # If rows have windows of their own, the bounds are among the input's columns.
        bounds = [pa.field(name, self.bound_type) for name in names if name not in self.input.schema.names]
        timing = [pa.field(WINDOW_TIMING, pa.string())] if self.ledger_timing else []
        return [*super().ledger_facts, *bounds, *timing]

    def current_window(self, watermark: int | None) -> tuple[int, int] | None:
        return self.kind.current(watermark) if isinstance(self.kind, Sliding) else None

    def named_windows(self, late: pa.Table) -> pa.ChunkedArray | None:
        start, _ = self.ledger_bounds
        if not self.names_windows or start not in late.column_names:
            return None
        return late[start].cast(self.bound_type).cast(pa.int64())

    def window_facts(self, rejected: pa.Table, watermark: int | None) -> dict[str, pa.ChunkedArray]:
        facts = self._window_again(rejected)
        if self.ledger_timing and (window := self.current_window(watermark)) is not None:
            facts[WINDOW_TIMING] = window_timing(rejected[self.input.event_time], *window)
        return facts

    def _window_again(self, rejected: pa.Table) -> dict[str, pa.ChunkedArray]:
        """The bounds of the one window that a row was given again for."""
        if ONLY not in rejected.column_names or not isinstance(self.kind, Sliding):
            return {}
        starts = rejected[ONLY]
        bounds = zip(self.ledger_bounds, (starts, pc.add(starts, self.kind.size)), strict=True)
        return {name: values.cast(self.bound_type) for name, values in bounds if name not in rejected.column_names}


BY_WATERMARK = "what its CTIs or buffers did with a message depends on what had come before it"
"""Why a replay cannot put back messages that a watermark has rejected, changed or held."""


class Loss(NamedTuple):
    """Messages were lost: the checkpoint ``since`` which they are missing, and the watermark that it had."""

    since: int = 0
    watermark: int = BEGINNING_US


@dataclass(frozen=True, kw_only=True)
class ReplayedPlan(Plan):
    """A plan whose messages a replay can put back. The fields say what state a micro-batch begins with: variants of
    the plan, which the driver puts in place, so no step asks which kind of micro-batch it is in.
    """

    may_lose_again: ClassVar[bool] = True
    """Whether messages may be lost a second time before a replay has put all of them back."""

    loss: Loss | None = None
    """Since when messages are missing; None if none are."""
    resumes: bool = False
    """Whether it is the first micro-batch since all are back, or were given up."""

    @property
    @abstractmethod
    def not_replayable(self) -> str:
        """Why identities and a replay cannot put back messages that are stored; empty where they can, or where none
        are stored.
        """

    @property
    @abstractmethod
    def not_run_again(self) -> str:
        """Why the recorded input, run again, cannot put back messages that are stored; empty as above."""

    @property
    def replayable(self) -> tuple[str, ...]:
        """The state tables whose rows a replay of the input puts back, by their identities."""
        return () if self.not_replayable else self.message_tables

    @property
    @abstractmethod
    def stored_under(self) -> dict[str, tuple[str, ...]]:
        """By the table that has the identities of messages: the tables with those of them that are not missing."""

    @property
    def knows_late(self) -> bool:
        """Whether a row may have been taken whose identity is not known yet, as it is held."""
        return self.in_order

    @property
    def may_stand(self) -> bool:
        """Whether panes are withheld while messages are missing."""
        return False

    @property
    def stands(self) -> bool:
        return self.may_stand and self.loss is not None

    @property
    def replaying(self) -> bool:
        """Whether its input is a replay."""
        return self.rows_are == "replay"

    @property
    def mended_loss(self) -> Loss:
        """The loss that a replay mends; one at the beginning where none is known."""
        return self.loss or Loss()

    def wakes(self, context: Context) -> bool:
        return super().wakes(context) or self.resumes


def no_bound(plan: Plan, column: str, why: str) -> UsageError:
    """The error for a column that cannot be the event time of operators downstream."""
    return UsageError(
        "later values of this column have no lower bound, so it cannot be the event time of the next operator: "
        f"{why}",
        code="chain-time",
        operator=plan.name,
        column=column,
    )
