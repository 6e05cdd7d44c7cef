"""Triggers of a windowed aggregation, as the stored description of it. Pure."""

from __future__ import annotations

from typing import Literal, TypeVar

from msgspec.structs import replace

from tidestate.operators.describe.triggers import (
    COMPOSITE,
    Closing,
    EachElement,
    OnTime,
    Trigger,
    Triggers,
    TriggerSide,
)
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Sessions
from tidestate.statestore.errors import UsageError

_W = TypeVar("_W", bound=Windowed)
EACH_BATCH = Trigger("each_batch")
"""A pane a batch, where the window has new events."""
FOLLOWING = Trigger("each_batch")
"""The late trigger where none is given: it looks when the others do. Known by identity: `each_batch` that a user
writes equals it, and means each batch.
"""
Evaluate = Literal["element", "batch"]


def with_triggers(
    made: _W,
    early: Trigger | None,
    on_time: OnTime,
    late: Trigger | None,
    closing: Closing | None,
    when: Trigger | None,
    only_updated: bool,
    evaluate: Evaluate | None,
) -> _W:
    """`made`, which emits panes by these triggers alone. Raises `UsageError` where they do not go together."""
    # By identity: each_batch() that is written means that, and the default follows the others.
    triggers = [
        trigger for trigger in (early, late, when) if isinstance(trigger, Trigger) and trigger is not FOLLOWING
    ]
    by_element = any(isinstance(node, EachElement) for trigger in triggers for node in trigger.nodes)
    if evaluate not in (None, "element", "batch"):
        raise UsageError('evaluate= must be "element" or "batch"', code="trigger-element", found=evaluate)
    if by_element and evaluate == "batch":
        raise UsageError(
            'each_element() makes a pane for each element: remove evaluate="batch"', code="trigger-element"
        )
    by_batch = _by_batch(early, late) if by_element else ()
    if by_batch and isinstance(made.windows, Sessions):
        raise UsageError(
            "each element of a session takes a step, so its panes are made either by element or by batch: use one "
            "kind of trigger",
            code="trigger-element",
        )
    chosen = evaluate or ("element" if by_element else "batch")
    _check_kinds(early, late, when, on_time, closing)
    stored_late = stored_trigger(late)
    with_each_batch = stored_late == EACH_BATCH
    if when is not None and (early is not None or on_time != "always" or not with_each_batch):
        raise UsageError("when= cannot be combined with other triggers: remove them", code="trigger-when")
    unseen = not with_each_batch or on_time == "never" or when is not None
    stored = Triggers(
        stored_trigger(early),
        on_time,
        stored_late,
        closing or ("if_new" if unseen else "never"),
        only_updated,
        stored_trigger(when),
        chosen == "element",
        by_batch,
    )
    simple = [trigger for trigger in (stored.early, stored.late) if trigger is not None]
    if stored.per_element and when is None and not any(trigger.by_number for trigger in simple):
        raise UsageError(
            "none of these triggers looks at elements: for panes by element use each_element(), after_count(…) or a "
            "composite trigger, early or late",
            code="trigger-element",
        )
    return replace(made, triggers=stored)


def _check_kinds(
    early: Trigger | None, late: Trigger | None, when: Trigger | None, on_time: str, closing: str | None
) -> None:
    for trigger in (early, late):
        if trigger is not None and (not isinstance(trigger, Trigger) or trigger.kind in COMPOSITE):
            raise UsageError(
                "an early or late trigger must be each_element(), each_batch(), after_count(…), "
                "every_processing_time(…), after_processing_time(…) or every_event_time(…), which all repeat; "
                "give a composite trigger as when=",
                code="trigger",
                found=repr(trigger),
            )
    if late is not None and late.kind == "every_event_time":
        raise UsageError(
            "every_event_time(…) is only for early panes: choose another late trigger",
            code="trigger",
            found=repr(late),
        )
    if when is not None and not isinstance(when, Trigger):
        raise UsageError(
            "when= must be a trigger, such as repeatedly(after_count(3))", code="trigger", found=repr(when)
        )
    if on_time not in ("always", "non_empty", "never") or closing not in (None, "never", "if_new", "always"):
        raise UsageError(
            'on_time= must be "always", "non_empty" or "never", and closing= "never", "if_new" or "always"',
            code="trigger",
            on_time=on_time,
            closing=closing,
        )


def _by_batch(early: Trigger | None, late: Trigger | None) -> tuple[TriggerSide, ...]:
    """Which triggers are `each_batch`, as a user wrote it next to one for each element."""
    written: tuple[tuple[TriggerSide, Trigger | None], ...] = (("early", early), ("late", late))
    chosen = [(side, trigger) for side, trigger in written if trigger is not None and trigger is not FOLLOWING]
    return tuple(
        side for side, trigger in chosen if trigger.kind == "each_batch" and not isinstance(trigger, EachElement)
    )


def stored_trigger(trigger: Trigger | None) -> Trigger | None:
    """A trigger as a description stores it: whether it looks at each element is another setting."""
    if not isinstance(trigger, Trigger):
        return trigger
    if isinstance(trigger, EachElement):
        return Trigger("each_batch")
    return replace(trigger, of=tuple(_inside(part) for part in trigger.of))


def _inside(trigger: Trigger) -> Trigger:
    """A part of a composite, where each element is a count of one."""
    if isinstance(trigger, EachElement):
        return Trigger("after_count", count=1)
    return replace(trigger, of=tuple(_inside(part) for part in trigger.of))
