"""When a window emits a pane: descriptions only. `tidestate.operators.windows.step` evaluates them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.added import Added

TriggerKind = Literal[
    "each_batch",
    "after_count",
    "every_processing_time",
    "after_processing_time",
    "every_event_time",
    "after_watermark",
    "any_of",
    "all_of",
    "repeatedly",
    "or_finally",
]
OnTime = Literal["always", "non_empty", "never"]
Closing = Literal["never", "if_new", "always"]
TriggerSide = Literal["early", "late"]
"""Before or after the watermark passes the end of a window."""
COMPOSITE = ("any_of", "all_of", "repeatedly", "or_finally", "after_watermark")


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition, evaluated at the end of each batch; a tree of them for composite triggers."""

    kind: TriggerKind
    count: int = 0
    span_us: int = 0
    of: tuple[Trigger, ...] = ()

    @property
    def by_number(self) -> bool:
        """Whether it looks at how many elements there are, and not at a time."""
        return self.kind in ("each_batch", "after_count")

    @property
    def nodes(self) -> tuple[Trigger, ...]:
        """This trigger and all of its parts, parents first."""
        return (self, *(node for part in self.of for node in part.nodes))


class EachElement(Trigger, frozen=True):
    """A pane for each element, as a user writes it: descriptions store `Triggers.per_element`."""


class Triggers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a window fires before, at and after the passage of the watermark; or ``when`` a composite trigger says."""

    early: Trigger | None = None
    on_time: OnTime = "always"
    late: Trigger | None = Trigger("each_batch")
    closing: Closing = "never"
    only_updated: bool = False
    when: Trigger | None = None
    per_element: bool = False
    by_batch: Annotated[tuple[TriggerSide, ...], Added("panes-by-element-or-batch/1")] = ()
    """Where panes are of elements: which of the triggers looks at the end of a batch all the same."""

    def looks_at_elements(self, side: TriggerSide) -> bool:
        """Whether this trigger looks at each element, and not at the end of a batch."""
        return self.per_element and side not in self.by_batch

    @property
    def by_clock(self) -> bool:
        """Whether a trigger waits for processing time."""
        given = [trigger for trigger in (self.early, self.late, self.when) if trigger is not None]
        kinds = {node.kind for trigger in given for node in trigger.nodes}
        return bool(kinds & {"every_processing_time", "after_processing_time"})

    @property
    def finishes(self) -> bool:
        """Whether a window may close for good before it is over."""
        return self.when is not None and self.when.kind != "repeatedly"


DEFAULT = Triggers()
"""On time, and late with each batch."""


@checked
def each_batch() -> Trigger:
    """A pane for each key and window with events in the batch: conditions are evaluated at its end."""
    return Trigger("each_batch")


@checked
def each_element() -> Trigger:
    """A pane for each element, in the order of offsets where the stream names them, else of arrival."""
    return EachElement("each_batch")


@checked
def after_count(count: int) -> Trigger:
    """A pane whenever ``count`` elements are in no pane yet, again and again. It looks at the end of each batch; with
    ``.trigger(evaluate="element")`` at each element. `each_batch` is ``count=1``.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**63:
        raise UsageError("a count trigger needs a whole number, 1 or more", code="trigger-count", found=count)
    return Trigger("each_batch") if count == 1 else Trigger("after_count", count=count)


@checked
def every_processing_time(span: Span) -> Trigger:
    """A pane at each multiple of ``span`` of processing time, changed or not (see ``only_updated``)."""
    return Trigger("every_processing_time", span_us=_positive(span))


@checked
def batched(span: Span = "10 seconds") -> Trigger:
    """The late updates of a window together, a pane ``span`` of processing time after the first of them: the late
    arrival policy of the window operator design of Samza (SAMZA-552), with its default. The same as
    `after_processing_time` of that span.
    """
    return after_processing_time(span)


@checked
def after_processing_time(span: Span) -> Trigger:
    """A pane ``span`` of processing time after the first element that is in no pane yet."""
    return Trigger("after_processing_time", span_us=_positive(span))


@checked
def every_event_time(span: Span) -> Trigger:
    """A pane each time the watermark passes another ``span`` of the window, counted from its start, changed or not
    (see ``only_updated``).
    """
    return Trigger("every_event_time", span_us=_positive(span))


@checked
def after_watermark() -> Trigger:
    """In a composite trigger: when the watermark passes the end of the window."""
    return Trigger("after_watermark")


@checked
def any_of(*triggers: Trigger) -> Trigger:
    """Fires, and is finished, with the first of them."""
    return Trigger("any_of", of=_parts(triggers, 1))


@checked
def all_of(*triggers: Trigger) -> Trigger:
    """Fires, and is finished, once all of them would have fired."""
    return Trigger("all_of", of=_parts(triggers, 1))


@checked
def repeatedly(trigger: Trigger) -> Trigger:
    """Fires with it, and starts it again whenever it has finished."""
    return Trigger("repeatedly", of=_parts((trigger,), 1))


@checked
def or_finally(trigger: Trigger, until: Trigger) -> Trigger:
    """Fires with ``trigger``; fires a last time, and is finished, with ``until``."""
    if isinstance(until, Trigger) and until.kind == "repeatedly":
        raise UsageError(
            "a repeated trigger never finishes, so it cannot be until=: remove repeatedly", code="trigger-parts"
        )
    return Trigger("or_finally", of=_parts((trigger, until), 2))


def _parts(triggers: tuple[Trigger, ...], least: int) -> tuple[Trigger, ...]:
    wrong = [part for part in triggers if not isinstance(part, Trigger)]
    inside = [part for part in triggers if isinstance(part, Trigger) and part.kind in _NOT_INSIDE]
    if len(triggers) < least or wrong or inside:
        raise UsageError(
            "a composite trigger can be made only of counts, after_processing_time, after_watermark and other "
            "composite triggers",
            code="trigger-parts",
            found=[repr(part) for part in (wrong or inside or triggers)],
        )
    return tuple(_counting(part) for part in triggers)


_NOT_INSIDE = ("every_processing_time", "every_event_time")


def _counting(trigger: Trigger) -> Trigger:
    """In a composite, a count of one is a count that can be finished."""
    if isinstance(trigger, EachElement):
        return trigger
    return Trigger("after_count", count=1) if trigger.kind == "each_batch" else trigger


def _positive(span: Span) -> int:
    found = span_us(span)
    if found <= 0:
        raise UsageError(
            'a trigger needs a span above 0, such as "1 minute"', code="trigger-span", found=text_of(found)
        )
    return found
