"""What the user writes: an immutable description of a windowed computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self, cast

import msgspec
from msgspec.structs import replace

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.aggregates.arithmetic import max_, min_
from tidestate.operators.aggregates.stored import StoredAggregate
from tidestate.operators.aggregates.timestamps import EndOfWindow
from tidestate.operators.describe.given_ctis import watermarks_of_ctis
from tidestate.operators.describe.given_sides import columns_of
from tidestate.operators.describe.runnable import Runnable, checked_name
from tidestate.operators.describe.triggers import COMPOSITE, DEFAULT, Closing, OnTime, Trigger, Triggers
from tidestate.operators.describe.windows import Sessions, Sliding, Windows
from tidestate.operators.progress.cti_settings import Ctis, Settings
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.tables import Retention

AccumulationMode = Literal["accumulating", "discarding", "retracting"]
ACCUMULATING: AccumulationMode = "accumulating"
"""A later pane holds everything the window has seen."""
DISCARDING: AccumulationMode = "discarding"
"""A later pane holds only what is new since the one before."""
RETRACTING: AccumulationMode = "retracting"
"""As accumulating, and the last pane is taken back first."""


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
    """How messages are known and kept, see `Windowed.messages`. ``identity``: the origin columns, then the offset."""

    identity: tuple[str, ...]
    retention: Retention | None = None
    layout: str | None = None
    equal: tuple[str, ...] = ()


class Windowed(Runnable, frozen=True, tag="windowed"):
    """A windowed computation over a stream of events. Every method returns a new description.

    ``allowed_lateness_us``: how far behind the watermark an event is still accepted, by ``late_rule``; None: see
    `lateness_us`. ``signed``: rows whose column ``kind`` is ``retract`` retract others; set when it is bound.
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
    mode: AccumulationMode = msgspec.field(default=ACCUMULATING, name="accumulation")
    retained: Retained | None = None
    in_order: bool = False
    signed: bool = False
    known: KnownMessages | None = msgspec.field(default=None, name="messages")

    @property
    def lateness_us(self) -> int:
        """Allowed lateness: 60 seconds by default, 0 if the watermark is processing time or comes from CTIs; the span
        of the `horizon`, where that is the limit.
        """
        if self.allowed_lateness_us is not None:
            return self.allowed_lateness_us
        if (kept := self.horizon) is not None:
            return UNLIMITED_US if kept.time is None else kept.time
        advancing = self.watermarks is not None and isinstance(self.watermarks.generator, Ctis)
        return 0 if self.processing_time or advancing else USUAL_US

    @property
    def horizon(self) -> Retention | None:
        """The retention of messages, if it says which events are too late, as nothing else does."""
        timed = isinstance(self.windows, Sliding | Sessions) and not self.windows.by_offset
        if self.known is None or self.allowed_lateness_us is not None or self.processing_time or not timed:
            return None
        return self.known.retention

    def window(self, windows: Windows) -> Self:
        """The windows: `tumbling`, `sliding`, `session`, `count_window` or `global_window`. Without any, each row
        names its window in ``window_start`` and ``window_end``, as the panes of another operator do.
        """
        if not isinstance(windows, Windows):
            raise UsageError("give windows, as tumbling(…) or sessions(…)", code="window", found=repr(windows))
        return replace(self, windows=windows)

    @checked
    def advance_time(
        self,
        settings: Settings = None,
        *,
        at_source: Settings = None,
        shape: str = "point",
        end: str | None = None,
        shape_column: str | None = None,
        by: str | None = None,
        sources: Sequence[str] = (),
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """Use CTIs: the watermark of each source is its newest CTI, by settings made with `progress.advance_time`.
        Events behind it are dropped or adjusted.

        ``settings`` are those of the query, for all sources or by name; they replace those ``at_source``. ``sources``
        and the others are as in `watermark`. Events start at the event time; ``end`` and ``shape_column`` are the
        columns of their ends and shapes; without the latter all have one ``shape``. Rows count in the order (origin,
        offset), which `windowed` names; the source of a row is in the column ``by``, or else its origin. Lateness is
        0 unless `late` sets it.
        """
        marks = watermarks_of_ctis(
            self.event_time,
            (self.origin, self.offset),
            (settings, at_source),
            (end, shape, shape_column),
            by,
            (sources, idle_timeout, own_timeouts),
        )
        return replace(self, watermarks=marks)

    def aggregate(self, **aggregates: Aggregate) -> Self:
        """The results per key and window: ``name=count()``, ``name=mean("column")`` and so on."""
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                named = '; the name of the operator is .named("…")' if name == "name" else ""
                raise UsageError(
                    f"give an aggregate, as agg.count() or agg.mean(…){named}",
                    code="aggregate",
                    name=name,
                    found=repr(aggregate),
                )
        names = set(self.aggregates) & set(aggregates)
        if names:
            raise UsageError("this aggregate is there already", code="aggregate-twice", names=sorted(names))
        return replace(self, aggregates=self.aggregates | cast(dict[str, StoredAggregate], aggregates))

    @checked
    def late(
        self,
        allowed: Span | None = None,
        *,
        rule: LateRule = "event",
        keep: str | Sequence[str] = (),
        future: Span = "60 seconds",
    ) -> Self:
        """Accept events up to ``allowed`` behind the watermark (default: 60 seconds, 0 with `advance_time`); later
        ones go to the late ledger.

        ``rule``: compare the event's time ("event"), or the end of each window that would hold it ("window").
        ``keep`` names further input columns to record in the ledger. An event more than ``future`` ahead of
        the watermark and its delay together is processed, counted as future, and a warning.
        """
        allowed_us, future_us = None if allowed is None else span_us(allowed), span_us(future)
        kept = (keep,) if isinstance(keep, str) else tuple(keep)
        if (allowed_us or 0) < 0 or future_us < 0:
            raise UsageError("lateness and future tolerance cannot be negative", code="lateness", allowed=allowed)
        if rule not in ("event", "window"):
            raise UsageError("the rule of lateness is event or window", code="late-rule", found=repr(rule))
        return replace(
            self,
            allowed_lateness_us=allowed_us,
            late_rule=rule,
            ledger_columns=kept,
            future_tolerance_us=future_us,
        )

    @checked
    def retain(self, span: Span | None = None, *, windows: int | None = None) -> Self:
        """Retain a closed window for ``span`` after its end, for queries and reprocessing; with ``windows``, only
        that many of the newest. A window is always retained while it accepts events, which is the default.
        """
        span_of = span_us(span) if span is not None else None
        whole = windows is None or (isinstance(windows, int) and not isinstance(windows, bool) and windows > 0)
        if (span is None and windows is None) or (span_of is not None and span_of < 0) or not whole:
            raise UsageError(
                "retention is a span of time, or a number of windows, or both",
                code="retention",
                span=span,
                windows=windows,
            )
        return replace(self, retained=Retained(span_of, windows))

    def trigger(
        self,
        *,
        early: Trigger | None = None,
        on_time: OnTime = "always",
        late: Trigger | None = Trigger("each_batch"),  # noqa: B008  immutable
        closing: Closing | None = None,
        only_updated: bool = False,
        when: Trigger | None = None,
        per_element: bool = False,
    ) -> Self:
        """When a window emits a pane: ``early``, before the watermark passes its end; ``on_time``, as it passes
        (``always``, ``non_empty``: only with new events, ``never``); ``late``, after it; ``closing``, when the window
        closes (``never``, ``if_new``, ``always``; default: ``if_new`` if an event could otherwise stay out of every
        pane).

        ``only_updated`` suppresses a pane that equals the last one. ``when`` is a composite trigger in place of all
        these. With ``per_element`` a count of N emits a pane at each N-th element instead of at the end of the batch,
        and ``when`` is evaluated after each element.
        """
        if when is not None and (early is not None or on_time != "always" or late != Trigger("each_batch")):
            raise UsageError("a composite trigger stands alone", code="trigger-when")
        _check_triggers(early, late, when, on_time, closing)
        counts = [trigger for trigger in (early, late) if trigger is not None]
        if per_element and when is None and not _all_count(counts):
            raise UsageError(
                "a pane at each N-th element goes with each_element(), after_count(…) and composite triggers",
                code="trigger-element",
            )
        unseen = late != Trigger("each_batch") or on_time == "never" or when is not None
        chosen: Closing = closing if closing is not None else "if_new" if unseen else "never"
        return replace(self, triggers=Triggers(early, on_time, late, chosen, only_updated, when, per_element))

    @checked
    def messages(
        self,
        identity: str | Sequence[str] | None = None,
        *,
        retention: Retention | None = None,
        layout: str | None = None,
        equal: str | Sequence[str] = (),
    ) -> Self:
        """Know each message by its ``identity``: one that comes again takes part once, see
        docs/how-to/messages.md.

        ``identity`` names the origin columns, if there are any, and last the offset, as ``("partition", "offset")``;
        by default the origin and offset of `windowed`. An id of another type, as text, has no order, and is known by
        its value. Messages themselves are stored where an aggregate needs all of
        them (lists, medians, functions of rows), or with ``retention`` (how many are kept), ``layout`` (the name of
        their key) or ``equal`` (columns to query them by). Without `late` the retention is also the allowed lateness:
        a message within it goes into its window, an older one to the late ledger.
        """
        own = tuple(name for name in (self.origin, self.offset) if name)
        given = own if identity is None else columns_of(identity)
        if not given or len(set(given)) != len(given):
            raise UsageError(
                'an identity is an offset, with the columns of its origin in front: ("partition", "offset")',
                code="message-identity",
                found=given,
            )
        return replace(self, known=KnownMessages(given, retention, layout, columns_of(equal)))

    def timestamps(self, choice: Literal["end_of_window", "earliest", "latest"]) -> Self:
        """Add a column ``timestamp`` to panes, for readers that process them as events: the last moment of the
        window, or the earliest or latest event in the pane.
        """
        if choice not in ("end_of_window", "earliest", "latest"):
            raise UsageError(
                "a pane's timestamp is end_of_window, earliest or latest", code="pane-timestamp", found=repr(choice)
            )
        if choice == "end_of_window":
            return self.aggregate(timestamp=EndOfWindow())
        if self.event_time is None:
            raise UsageError("say which column is the event time", code="pane-timestamp", found=choice)
        return self.aggregate(timestamp=min_(self.event_time) if choice == "earliest" else max_(self.event_time))

    def accumulation(self, mode: AccumulationMode) -> Self:
        """How panes of one window relate: ACCUMULATING (default), DISCARDING or RETRACTING."""
        if mode not in (ACCUMULATING, DISCARDING, RETRACTING):
            raise UsageError(
                'the mode is "accumulating", "discarding" or "retracting"', code="accumulation", found=repr(mode)
            )
        return replace(self, mode=mode)


def _all_count(triggers: list[Trigger]) -> bool:
    return bool(triggers) and all(trigger.kind in ("each_batch", "after_count") for trigger in triggers)


def _check_triggers(
    early: Trigger | None, late: Trigger | None, when: Trigger | None, on_time: str, closing: str | None
) -> None:
    for trigger in (early, late):
        if trigger is not None and (not isinstance(trigger, Trigger) or trigger.kind in COMPOSITE):
            raise UsageError(
                "an early or late trigger is each_element(), each_batch(), after_count(…) or a span of time; give a "
                "composite one as when=",
                code="trigger",
                found=repr(trigger),
            )
    if late is not None and late.kind == "every_event_time":
        raise UsageError("only early panes go by event time", code="trigger", found=repr(late))
    if when is not None and not isinstance(when, Trigger):
        raise UsageError("give a trigger, as repeatedly(after_count(3))", code="trigger", found=repr(when))
    if on_time not in ("always", "non_empty", "never") or closing not in (None, "never", "if_new", "always"):
        raise UsageError("on_time or closing has no such choice", code="trigger", on_time=on_time, closing=closing)


@checked
def windowed(
    *,
    event_time: str | None = None,
    key: str | Sequence[str] | None = None,
    watermark_delay: Span = "0 seconds",
    name: str = "windows",
    processing_time: bool = False,
    offset: str | None = None,
    origin: str | None = None,
    in_order: bool = False,
) -> Windowed:
    """Begin a description: the column of event times, the key columns (none: one group for all), and how far the
    watermark stays behind the largest event time.

    ``name`` is the operator's identity in a checkpoint. With ``processing_time`` every event has the time at which
    its batch is processed, which is also the watermark. ``offset`` and ``origin`` are columns that order the input:
    where order matters, messages of a batch count by (origin, offset). Windows of offsets, and windows that rows name
    themselves, need no event time. With ``in_order`` events are held until the watermark passes them and processed in
    the order (time, origin, offset), so results that depend on order do not depend on the cut.
    """
    columns = (key,) if isinstance(key, str) else tuple(key or ())
    if len(set(columns)) != len(columns) or event_time in columns:
        raise UsageError("key columns differ from one another and from the event time", code="key-columns")
    delay_us = span_us(watermark_delay)
    if delay_us < 0:
        raise UsageError("a watermark delay cannot be negative", code="watermark-delay", found=watermark_delay)
    if processing_time and (event_time is not None or delay_us):
        raise UsageError("processing time has no event time and no delay", code="processing-time")
    if not isinstance(in_order, bool):
        raise UsageError("in_order= is True or False", code="in-order", found=repr(in_order))
    if origin is not None and offset is None:
        raise UsageError("an origin orders messages by their offset: name that too", code="offset", origin=origin)
    return Windowed(
        event_time, columns, delay_us, offset, origin, processing_time, in_order=in_order, name=checked_name(name)
    )
