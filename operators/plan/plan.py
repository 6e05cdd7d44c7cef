"""A description bound to the schema of its input: what all operators share. Each kind fills in the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from tidestate.operators.aggregates.aggregate import KIND, BoundAggregate
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.triggers import Triggers
from tidestate.operators.describe.windows import Sliding, Windows
from tidestate.operators.plan.held_rows import Holding
from tidestate.operators.plan.transition import BUDGET_BYTES, StepTimes, Transition
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.checksums import checksum
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, Group, TableSpec

PROCESSING_TIME, PANE_TIME = "processing_time", "pane_time"
"""Columns that are added to the input where it has no event time of its own."""
PANE_KIND = KIND
"""The column by which a pane says whether it takes back what was shown."""
ONLY = "__only"
"""Beside events that come back from the ledger: the start of the one window that refused them, null for all."""
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
class Arrival:
    """How accepted events arrive: at this watermark (None: none yet) and clock.

    ``reprocessing``: they come back from the late ledger. ``budget_bytes``: how much memory may go to
    what is only made to combine it.
    """

    watermark_us: int | None
    now_us: int = 0
    reprocessing: bool = False
    budget_bytes: int = BUDGET_BYTES


@dataclass(frozen=True)
class Plan(ABC):
    """What an operator needs to know. Built by `bind_plan`; picklable, so it travels to Spark's tasks.

    ``event_time`` is the column that places events: by time, or by offset (``by_offset``); then watermark, lateness
    and retention are offsets too. ``order`` names the columns by which messages count, (origin, offset) or (offset,).
    """

    reprocesses: ClassVar[bool] = False
    """Whether it keeps windows, to which events of the late ledger may be fed back."""
    late_option: ClassVar[str] = ""
    """How people set its allowed lateness; empty where they cannot."""

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
    """Whether rows of the kind ``retract`` take others back."""
    renames: Renames = SAME_NAMES
    gone_us: int = BEGINNING_US
    """Windows that end at or before this were forgotten under settings before."""
    closed_us: int | None = None
    """Up to which end windows were closed when settings changed, until the next step."""
    in_order: bool = False
    """Whether rows are held until the watermark passes them, and taken in the order of their times."""

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [field.name for field in self.key_fields]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns of state tables by which rows go to state partitions, as `classify` sends them."""
        return tuple(self.key_names)

    @property
    def named_by(self) -> list[str]:
        """The columns by which people find an event again."""
        by = [self.watermarks.by] if self.watermarks.by else []
        return [self.event_time, *self.key_names, *by, *self.order]

    @property
    def never_null(self) -> list[str]:
        """The columns that reject a row by a null, beside its time and place."""
        return self.key_names

    @property
    def read_names(self) -> list[str]:
        """The input columns that are read."""
        return [name for name in self.input_schema.names if name not in self.added]

    @property
    def by_offset(self) -> bool:
        """Whether offsets stand for times."""
        return self.kind.by_offset

    @property
    def clocked(self) -> bool:
        """Whether time alone may show panes: the watermark follows it, sources fall idle, or triggers wait for it."""
        return self.watermarks.clocked or self.triggers.by_clock

    @property
    def retracts(self) -> bool:
        """Whether panes may take back others."""
        return self.mode == "retracting"

    @property
    def repeats(self) -> bool:
        """Whether a window and key may show several panes."""
        triggers = self.triggers
        kept = self.allowed_us > 0 or self.retain_windows is not None or (self.retain_us or 0) > 0
        late = kept and (triggers.late is not None or triggers.closing != "never")
        return late or triggers.early is not None or triggers.when is not None

    @property
    def waits_by(self) -> str | None:
        """Which of its settings waits for events behind the watermark, and its value; None where none does."""
        return f"{self.late_option} (now {text_of(self.allowed_us)})" if self.late_option else None

    @property
    def one_origin(self) -> str | None:
        """The column of which only one value is taken, ever: offsets of two origins do not make one line."""
        return self.order[0] if self.by_offset and len(self.order) == 2 else None

    @property
    def mark_type(self) -> pa.DataType:
        """The type of watermarks."""
        return pa.int64() if self.by_offset else TIME

    def closed_at(self, watermark: int) -> int:
        """Windows that end at or before this take no ordinary event any more."""
        if watermark in (BEGINNING_US, END_US):
            return watermark
        return max(BEGINNING_US, self.gone_us, watermark - self.allowed_us)

    def closed_before(self, watermark: int) -> int:
        """Windows that end at or before this have been closed, in a step that begins at this watermark."""
        return self.closed_at(watermark) if self.closed_us is None else self.closed_us

    def expired_at(self, watermark: int) -> int:
        """Windows that end at or before this are kept no longer."""
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
        """A checksum of the configuration and the types it was bound to."""
        types = {field.name: type_text(field.type) for field in self.input_schema}
        return checksum(msgspec.json.encode([self.configuration, types], order="sorted"))

    @property
    def state_groups(self) -> tuple[Group, ...]:
        """Groups of state columns that combine together."""
        return tuple(group for aggregate in self.aggregates for group in aggregate.groups)

    @property
    def bound_type(self) -> pa.DataType:
        """The type of window starts and ends."""
        return TIME

    @property
    @abstractmethod
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""

    @property
    def may_lack(self) -> tuple[str, ...]:
        """Names of tables that need not be there when it takes over a checkpoint."""
        return ()

    @property
    def computed(self) -> tuple[Column, ...]:
        """Columns that `arrive` adds to rows of the input."""
        return ()

    @cached_property
    def exchanged(self) -> TableSpec:
        """Rows that travel from the input to the state: those of the input, unless they become partials first."""
        key = self.key_specs or (Column(self.event_time, str(TIME)),)
        names = {column.name for column in key}
        values = (Column(field.name, type_text(field.type)) for field in self.input_schema if field.name not in names)
        return TableSpec("rows", key, (*values, *self.computed))

    @property
    def held_by(self) -> tuple[str, ...]:
        """The columns of ``exchanged`` in whose order rows are taken that are held: times, and what follows them."""
        return (self.event_time,)

    @cached_property
    def holding(self) -> Holding | None:
        """How rows are held; None where they are taken as they come."""
        if not self.in_order:
            return None
        time, *then = self.held_by
        return Holding(self.exchanged, time, self.key_specs, tuple(then))

    @property
    def held_tables(self) -> tuple[TableSpec, ...]:
        """The tables of rows that are held."""
        return self.holding.tables if self.holding else ()

    def taking(
        self, view: StateView, arriving: pa.Table, at: StepTimes, step: Callable[[pa.Table], Transition]
    ) -> Transition:
        """A ``step`` with what arrives, or with the rows whose turn it is where they are held."""
        return self.holding.through(view, arriving, at, step) if self.holding else step(arriving)

    @abstractmethod
    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """Which events of these times are taken no more. Shape ``(events,)``."""

    def refused(self, accepted: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> pa.Table | None:
        """Accepted events that some of their windows take no more, with the bounds of those; None if there are none.

        A row per event and window.
        """
        return None

    def arrive(self, accepted: pa.Table, times: Times, arrival: Arrival) -> pa.Table:
        """What accepted events bring to the state: rows of ``exchanged``."""
        return self.exchanged.conform(accepted)

    @abstractmethod
    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        """Take ``arriving`` into the state that ``view`` shows. Pure."""

    def output_watermark(self, watermark: int, column: str) -> int:
        """What the panes from now on, but for late ones, have at least in ``column``: a watermark for who reads them.

        Raises `UsageError` where nothing can be said.
        """
        raise no_bound(self, column, "its rows have no time that follows the watermark")

    def lifted(self, accepted: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        """Each event as a partial of its own: the state columns of all aggregates, in order."""
        return [column for bound in self.aggregates for column in bound.lift(accepted)]

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Columns of a pane row."""
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
        """Columns of a late-ledger row: the input's, why it was rejected, at which watermark, and by which window
        where it is only some of an event's windows that refused it.
        """
        facts = [pa.field("reason", pa.string()), pa.field("watermark", self.mark_type)]
        names = ("window_start", "window_end") if self.names_windows else ()
        # Where rows name their windows themselves, the bounds are among the input's columns.
        bounds = [pa.field(name, self.bound_type) for name in names if name not in self.input_schema.names]
        return pa.schema([*self.input_schema, *facts, *bounds])

    @property
    def overlapping(self) -> bool:
        """Whether an event may be too late for some of its windows, and not for others."""
        return isinstance(self.kind, Sliding) and self.kind.size > self.kind.slide

    @property
    def names_windows(self) -> bool:
        """Whether ledger rows may be about one window of an event."""
        return self.overlapping or self.triggers.finishes

    @property
    def key_specs(self) -> tuple[Column, ...]:
        """Key columns as tables have them."""
        return tuple(Column(field.name, type_text(field.type), "key") for field in self.key_fields)


def no_bound(plan: Plan, column: str, why: str) -> UsageError:
    """The error of a column that says nothing of how far panes have come."""
    return UsageError(
        f"nothing is known of later values of this column, so it cannot be the time of what comes after: {why}",
        code="chain-time",
        operator=plan.name,
        column=column,
    )
