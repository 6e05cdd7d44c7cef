"""The plan of an operator: a description bound to the schema of its input. Each kind of operator has a subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.aggregates.aggregate import KIND, BoundAggregate
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.triggers import Triggers
from tidestate.operators.describe.windows import NamedWindow, Sliding, Windows
from tidestate.operators.plan.checks import Check, HasPlace, NotNull, ShortKey, TimeInRange, window_checks
from tidestate.operators.plan.held_rows import Holding
from tidestate.operators.plan.reasons import NULL_KEY, NULL_TIME
from tidestate.operators.plan.timers import Timer
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.progress import Context, Observer
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.checksums import checksum
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, Group, TableSpec

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


@dataclass(frozen=True)
class Plan(ABC):
    """Everything that the steps of an operator need. Made by `bind_plan`; picklable, as Spark's tasks get it.

    ``event_time`` is the column of event times, or of offsets (``by_offset``): then watermark, lateness and retention
    are offsets too. ``order``: the columns that order messages, (origin, offset) or (offset,). ``added``: input
    columns that the operator adds. ``rule``: whether an event is late by its time or by its windows.
    """

    reprocesses: ClassVar[bool] = False
    """Whether late events may be reprocessed."""
    taken_again: ClassVar[str] = "whose windows are retained"
    """Which of them it then takes."""
    classifies_late: ClassVar[bool] = False
    """Whether events are classified next to the state, once it is known which of them are new."""
    future_option: ClassVar[str] = ""
    """The method that sets the tolerance for its future events; empty if there is none."""
    late_option: ClassVar[str] = ""
    """The method that sets its allowed lateness; empty if there is none."""

    name: str
    kind: Windows
    event_time: str
    input_schema: pa.Schema
    key_fields: tuple[pa.Field, ...]
    aggregates: tuple[BoundAggregate, ...]
    watermarks: Watermarks
    allowed_us: int
    future_us: int
    mode: str
    configuration: dict[str, Any]
    triggers: Triggers
    rule: str
    order: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    retain_us: int | None = 0
    retain_windows: int | None = None
    signed: bool = False
    """Whether the input has retractions."""
    renames: Renames = SAME_NAMES
    gone_us: int = BEGINNING_US
    """Windows that end at or before this had expired under earlier settings."""
    closed_us: int | None = None
    """The last closed window end when settings changed; None after the next step."""
    upstream_delay_us: int = 0
    """The longest watermark delay of the operators that it reads."""
    settles: bool = False
    """Whether triggers have changed before the next step: late events may wait for a trigger that is gone."""
    in_order: bool = False
    """Whether rows are held until the watermark passes them, and processed in the order of their times."""
    rows_are: RowKind = "live"
    """What the rows of its input are, in this micro-batch; see `for_late_rows`."""

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [field.name for field in self.key_fields]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns of state tables whose hash is the state partition of a row, as in `classify`."""
        return tuple(self.key_names)

    def for_late_rows(self) -> Self:
        """The same for a micro-batch whose rows are from the late ledger: their windows take them until they expire,
        and they claim no watermark.
        """
        return replace(self, rows_are="ledger")

    @property
    def reprocessing(self) -> bool:
        """Whether the rows of its input were read before: from the late ledger, or as a replay."""
        return self.rows_are != "live"

    @property
    def named_by(self) -> list[str]:
        """The columns that identify an event in logs."""
        by = [self.watermarks.by] if self.watermarks.by else []
        return [self.event_time, *self.key_names, *by, *self.order]

    @property
    def never_null(self) -> list[str]:
        """The columns in which a null rejects a row, without event time and order."""
        return self.key_names

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """What a row must meet: the first that it fails gives the reason in the ledger. Lateness comes after."""
        keys = tuple(dict.fromkeys([*self.never_null, *self.order]))
        return (
            *window_checks(self.kind, signed=self.signed),
            *((HasPlace(order=self.order),) if self.order else ()),
            NotNull(columns=(self.event_time,), reason=NULL_TIME),
            NotNull(columns=tuple(self.never_null), reason=NULL_KEY),
            ShortKey(columns=keys),
            TimeInRange(),
        )

    @property
    def read_names(self) -> list[str]:
        """The columns that are read from the input."""
        return [name for name in self.input_schema.names if name not in self.added]

    @property
    def by_offset(self) -> bool:
        """Whether event times are offsets."""
        return self.kind.by_offset

    @property
    def clocked(self) -> bool:
        """Whether time alone may emit panes: by the watermark, by idle sources, or by triggers."""
        return self.watermarks.clocked or self.triggers.by_clock

    @property
    def retracts(self) -> bool:
        """Whether panes may be retractions."""
        return self.mode == "retracting"

    @property
    def repeats(self) -> bool:
        """Whether a window and key may emit several panes."""
        triggers = self.triggers
        retained = self.allowed_us > 0 or self.retain_windows is not None or (self.retain_us or 0) > 0
        late = retained and (triggers.late is not None or triggers.closing != "never")
        return late or triggers.early is not None or triggers.when is not None

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

    def expired_at(self, watermark: int) -> int:
        """Windows that end at or before this are no longer retained."""
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
    def fingerprint(self) -> str:
        """A checksum of the configuration and the types of the input."""
        types = {field.name: type_text(field.type) for field in self.input_schema}
        return checksum(msgspec.json.encode([self.configuration, types], order="sorted"))

    @property
    def state_groups(self) -> tuple[Group, ...]:
        """State columns of all aggregates that are combined together."""
        return tuple(group for aggregate in self.aggregates for group in aggregate.groups)

    @property
    def bound_type(self) -> pa.DataType:
        """The type of window starts and ends."""
        return self.mark_type

    @property
    @abstractmethod
    def tables(self) -> tuple[TableSpec, ...]:
        """The state tables of the operator. Raises `UsageError` where a column cannot be stored."""

    @property
    def computed(self) -> tuple[Column, ...]:
        """Columns that `arrive` adds to rows of the input."""
        return ()

    @cached_property
    def exchanged(self) -> TableSpec:
        """The rows that are sent from the input to the state: by default those of the input, not partials."""
        key = self.key_specs or (Column(self.event_time, str(self.mark_type)),)
        names = {column.name for column in key}
        values = (Column(field.name, type_text(field.type)) for field in self.input_schema if field.name not in names)
        return TableSpec("rows", key, (*values, *self.computed))

    @property
    def taken(self) -> TableSpec:
        """Schema of the rows that `step` receives; by default the rows sent by `arrive`."""
        return self.exchanged

    @property
    def held_by(self) -> tuple[str, ...]:
        """The columns of ``taken`` that order held rows: first their times."""
        return (self.event_time,)

    @cached_property
    def holding(self) -> Holding | None:
        """How rows are held; None where they are taken as they come."""
        if not self.in_order:
            return None
        time, *then = self.held_by
        return Holding(self.taken, time, self.key_specs, tuple(then))

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

    @property
    def delay_us(self) -> int:
        """How far its watermark stays behind the newest event."""
        return max(self.watermarks.delay_us, self.upstream_delay_us)

    def refused(self, accepted: pa.Table, times: Times, watermark: int) -> pa.Table | None:
        """Accepted events that some of their windows refuse, a row per event and window with its bounds; None if
        there are none.
        """
        return None

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        """Accepted events as rows of ``exchanged``; keys may repeat."""
        return self.exchanged.conform(accepted)

    @abstractmethod
    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        """The transition of the state in ``view`` by ``arriving``, rows of ``exchanged``. Pure."""

    def output_watermark(self, watermark: int, column: str) -> int:
        """The lower bound of ``column`` in later panes except late ones: the watermark of their readers.

        Raises `UsageError` if there is no bound.
        """
        raise no_bound(self, column, "its rows have no time that follows the watermark")

    def lifted(self, accepted: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        """One partial per event: the state columns of all aggregates; int64 where `combine` makes decimals."""
        return [column for bound in self.aggregates for column in bound.lift(accepted)]

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """The columns of panes: window, key and results, then what kind of pane it is."""
        small = pa.dictionary(pa.int8(), pa.string())
        return pa.schema(
            [
                pa.field("window_start", self.bound_type),
                pa.field("window_end", self.bound_type),
                *self.key_fields,
                *(pa.field(a.name, a.result_type) for a in self.aggregates),
                pa.field("pane", pa.int64()),
                pa.field("timing", small),
                pa.field("kind", small),
                pa.field("last", pa.bool_()),
            ]
        )

    @cached_property
    def late_schema(self) -> pa.Schema:
        """The columns of the late ledger: those of the input, reason, watermark, and the bounds of the window if only
        some of an event's windows refused it.
        """
        facts = [pa.field("reason", pa.string()), pa.field("watermark", self.mark_type)]
        names = self.ledger_bounds if self.names_windows else ()
        # If rows have windows of their own, the bounds are among the input's columns.
        bounds = [pa.field(name, self.bound_type) for name in names if name not in self.input_schema.names]
        return pa.schema([*self.input_schema, *facts, *bounds])

    @property
    def ledger_bounds(self) -> tuple[str, str]:
        """The columns of the ledger with the bounds of a window that refused an event."""
        taken = not isinstance(self.kind, NamedWindow) and not set(BOUNDS).isdisjoint(self.input_schema.names)
        return OTHER_BOUNDS if taken else BOUNDS

    @property
    def steps_together(self) -> bool:
        """Whether, if one state partition steps, all do: as what expires in one follows from its own state."""
        return False

    @property
    def overlapping(self) -> bool:
        """Whether an event may be too late for only some of its windows."""
        return isinstance(self.kind, Sliding) and self.kind.shares_events

    @property
    def names_windows(self) -> bool:
        """Whether ledger rows may be for one window of an event."""
        return self.overlapping or self.triggers.finishes

    @property
    def key_specs(self) -> tuple[Column, ...]:
        """The key columns of state tables."""
        return tuple(Column(field.name, type_text(field.type), "key") for field in self.key_fields)


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
    def replayable(self) -> tuple[str, ...]:
        """The state tables whose rows a replay of the input puts back if their files were lost."""

    @property
    def may_stand(self) -> bool:
        """Whether panes are withheld while messages are missing."""
        return False

    @property
    def stands(self) -> bool:
        return self.may_stand and self.loss is not None

    def while_missing(self, loss: Loss) -> Self:
        """The same while messages are missing."""
        return replace(self, loss=loss)

    def resuming(self) -> Self:
        """The same for the first micro-batch after a loss is over."""
        return replace(self, resumes=True)

    def for_replay(self) -> Self:
        """The same for a micro-batch whose input is a replay: it puts messages back."""
        return replace(self, rows_are="replay")

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
