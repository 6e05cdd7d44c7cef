"""Windowed aggregations, of one stream and of several in one state, as a manifest holds them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidestate.operators.aggregates.stored import StoredAggregate
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.sides import Sides
from tidestate.operators.describe.triggers import DEFAULT, Triggers
from tidestate.operators.describe.windows import Sessions, Sliding, Windows
from tidestate.operators.expressions.tree import ExprNode
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.added import Added

AccumulationMode = Literal["accumulating", "discarding", "retracting"]
LateRule = Literal["event", "window"]


USUAL_US = 60_000_000
"""The usual lateness, and tolerance of times in the future."""
UNLIMITED_US = 1 << 60
"""The lateness where only the number or size of messages limits it."""


class Retained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a window is kept after its end: for a span, and among so many windows of the grid; at least as long as
    it takes events.
    """

    span_us: int | None = None
    windows: int | None = None


class KnownMessages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How messages are known and kept. ``identity``: the origin columns, then the offset. ``layout``: the name of the
    key that they are stored under; ``equal``: columns to query them by.
    """

    identity: tuple[str, ...]
    retention: Retention | None = None
    layout: str | None = None
    equal: tuple[str, ...] = ()


class Windowed(Runnable, frozen=True, tag="windowed"):
    """Results per key and window of a stream of events. Without windows each row names its window itself.

    ``allowed_lateness_us``: how far behind the watermark an event is still accepted, by ``late_rule``; None: see
    `lateness_us`. ``ledger_timing``: whether the late ledger says where each row lay from the current window.
    ``signed``: rows whose column ``kind`` is ``retract`` retract others: those of a stream that says so, and behind
    operators that retract, where it is set when it is bound.
    ``having``: panes are emitted where it is true. ``window_offsets``: windows store the first and last offset of
    their messages.
    """

    event_time: str | None
    key: tuple[str, ...]
    watermark_delay_us: int
    offset: str | None = None
    origin: str | None = None
    processing_time: bool = False
    windows: Windows | None = msgspec.field(default=None, name="window")
    aggregates: dict[str, StoredAggregate] = {}
    allowed_lateness_us: int | None = None
    late_rule: LateRule = "event"
    ledger_columns: tuple[str, ...] = ()
    future_tolerance_us: int = USUAL_US
    triggers: Triggers = DEFAULT
    mode: AccumulationMode = msgspec.field(default="accumulating", name="accumulation")
    retained: Retained | None = None
    in_order: bool = False
    signed: bool = False
    known: KnownMessages | None = msgspec.field(default=None, name="messages")
    window_offsets: Annotated[bool, Added("window-offsets/1")] = False
    ledger_timing: Annotated[bool, Added("window-timing/1")] = False
    having: Annotated[ExprNode | None, Added("panes-by-condition/1")] = None

    @property
    def lateness_us(self) -> int:
        """Allowed lateness: 60 seconds by default, 0 if the watermark is processing time or comes from CTIs; the span
        of the `horizon`, where that is the limit.
        """
        if self.allowed_lateness_us is not None:
            return self.allowed_lateness_us
        if (kept := self.horizon) is not None:
            return UNLIMITED_US if kept.time is None else kept.time
        advancing = self.watermarks is not None and self.watermarks.generator.by_ctis
        return 0 if self.processing_time or advancing else USUAL_US

    @property
    def emits_unfinished(self) -> bool:
        """Whether a session may emit a pane before it is certain not to grow."""
        early = self.triggers.early is not None or self.triggers.when is not None
        numbered = self.windows is not None and self.windows.numbered  # nothing comes late
        return early or (self.triggers.late is not None and self.lateness_us > 0 and not numbered)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that order its messages: origin and offset, or none."""
        return tuple(name for name in (self.origin, self.offset) if name)

    @property
    def horizon(self) -> Retention | None:
        """The retention of messages, if it says which events are too late, as nothing else does."""
        timed = isinstance(self.windows, Sliding | Sessions) and not self.windows.by_offset
        if self.known is None or self.allowed_lateness_us is not None or self.processing_time or not timed:
            return None
        return self.known.retention


class Merge(Windowed, Sided, frozen=True, kw_only=True, tag="merge"):  # type: ignore[misc]  # a stream for each side
    """A windowed computation over several streams: all of `Windowed`, over columns of the one stream."""

    sides: Sides
    delays_us: tuple[int, ...]

    def __post_init__(self) -> None:
        self.sides.check_each(self.delays_us, "watermark delays")

    def order_of(self, side: str) -> tuple[str, ...]:
        return self.order
