"""Settings and histories for the ordered twin, small and nasty, as Hypothesis strategies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.twins.general_streams import sensible
from tests.twins.ordered import Message, OrderedSetting, OrderedTwin, inherited, offset_session, offset_window
from tests.twins.words import EACH_BATCH, Trigger, global_window, session, sliding, tumbling
from tests.twins.words import count_window as counted

# Settings


COUNTS = [EACH_BATCH, Trigger("after_count", 2), Trigger("after_count", 3)]
EARLY = [None, None, *COUNTS, Trigger("every_processing_time", 4), Trigger("after_processing_time", 3)]
ON_AN_AXIS = [tumbling(5), tumbling(4, 1), sliding(6, 2), sliding(6, 4, 1), session(3), session(6)]
KEYS: list[tuple[str, ...]] = [("k",), ("k",), ("k",), ()]


@st.composite
def triggers(draw: st.DrawFn, per_element: bool = False) -> dict[str, Any]:
    """Choices that are allowed: something can be observed."""
    some = [None, *COUNTS] if per_element else EARLY
    found = {
        "early": draw(st.sampled_from(some)),
        "on_time": draw(st.sampled_from(["always", "always", "non_empty", "never"])),
        "late": draw(st.sampled_from([EACH_BATCH, EACH_BATCH, *some])),
        "closing": draw(st.sampled_from(["never", "if_new", "if_new", "always"])),
        "only_updated": draw(st.sampled_from([False, False, True])),
        "mode": draw(st.sampled_from(["accumulating", "discarding", "retracting"])),
        "key": draw(st.sampled_from(KEYS)),
    }
    return found


@st.composite
def ordered_settings(draw: st.DrawFn) -> OrderedSetting:
    """Windows of offsets, of counts with a declared order, of processing time, and panes per element."""
    kind = draw(st.sampled_from(["offsets", "offsets", "offset sessions", "counts", "clock", "each", "each"]))
    each = kind == "each" or (kind in ("offsets", "counts") and draw(st.booleans()))
    choices = draw(triggers(each)) | {"per_element": each}
    if kind in ("offsets", "offset sessions"):
        choices |= {"late_by": draw(st.sampled_from([None, 0, 1, 5])), "origin": draw(st.booleans())}
    else:
        choices |= {
            "allowed": draw(st.sampled_from([0, 0, 2, 5, 30])),
            "rule": draw(st.sampled_from(["event", "window"])),
        }
    late_by = choices.pop("late_by", None)
    if kind == "offsets":
        size, step = draw(st.sampled_from([(3, 3), (4, 2), (5, 3), (2, 3), (1, 1)]))
        return offset_window(size, step, late_by, **choices)
    if kind == "offset sessions":
        return offset_session(draw(st.sampled_from([1, 3, 5])), late_by, **choices | {"per_element": False})
    if kind == "counts":
        made = draw(st.sampled_from([counted(2), counted(3, 1), counted(2, 3)]))
        return OrderedSetting(made, offset=True, origin=draw(st.booleans()), **choices)
    if kind == "clock":
        made = draw(st.sampled_from([*ON_AN_AXIS, global_window(), counted(2)]))
        return OrderedSetting(made, axis="processing", **choices | {"rule": "event"})
    made = draw(st.sampled_from([tumbling(5), sliding(6, 2), global_window(), counted(3, 2)]))
    return OrderedSetting(made, offset=True, origin=draw(st.booleans()), **choices)


@st.composite
def feeding_settings(draw: st.DrawFn) -> OrderedSetting:
    """Windows that are kept for longer than they take events."""
    kind = draw(st.sampled_from(["event"] * 6 + ["offsets", "each", "inherited", "closing"]))
    choices = draw(triggers(kind == "each"))
    allowed = draw(st.sampled_from([0, 0, 2, 5]))
    if kind == "offsets":
        size, step = draw(st.sampled_from([(3, 3), (4, 2), (5, 3)]))
        return offset_window(size, step, allowed, newest=draw(st.sampled_from([1, 2, 5])), **choices)
    choices |= {"allowed": allowed, "retain": draw(st.sampled_from([None, allowed, allowed + 4, allowed + 12, 1000]))}
    choices["rule"] = draw(st.sampled_from(["event", "window"]))
    if kind == "inherited":
        return inherited(timeless=draw(st.booleans()), **choices)
    made = draw(st.sampled_from([*ON_AN_AXIS, global_window()]))
    if kind in ("each", "closing"):
        made = draw(st.sampled_from([tumbling(5), sliding(6, 2)]))
    if made.name == "global":
        choices["retain"] = None
    if made.name == "sliding" and choices["retain"] is not None:
        choices["newest"] = draw(st.sampled_from([None, None, 1, 2]))
    if kind == "closing":
        choices |= {"early": None, "late": EACH_BATCH, "on_time": "always", "only_updated": False}
        choices["when"] = draw(
            st.sampled_from(
                [Trigger(name, n) for name in ("after_count", "count_or_end", "count_and_end") for n in (2, 3)]
            )
        )
        choices["closing"] = draw(st.sampled_from(["if_new", "always"]))
    return OrderedSetting(made, offset=kind == "each", per_element=kind == "each", **choices)


@st.composite
def inherited_settings(draw: st.DrawFn) -> OrderedSetting:
    """Windows of input panes."""
    choices = draw(triggers()) | {"allowed": draw(st.sampled_from([0, 0, 2, 5]))}
    choices["rule"] = draw(st.sampled_from(["event", "window"]))
    return inherited(timeless=draw(st.booleans()), **choices)


# Histories


class Step(NamedTuple):
    """``feed`` of events; ``W`` or ``P`` moved to a time; ``back``: the ledger, or ``events`` that are ``given``."""

    kind: str
    events: tuple[Message, ...] = ()
    time: int = 0
    given: bool = False


History = tuple[Step, ...]
NUMBER = st.integers(-3, 3) | st.none()


@st.composite
def message(draw: st.DrawFn, setting: OrderedSetting, base: int, taken: set[tuple]) -> Message:
    """An event around ``base`` on whatever axis; of each place in the order there is one (in ``taken``)."""
    broken = draw(st.sampled_from(["nothing"] * 20 + ["time", "k", "offset", "origin"]))
    behind = draw(st.sampled_from([*range(-14, 7), *range(-5, 4), *range(-3, 2)]))
    time: int | None = base + behind
    origin: int | None = 7 if setting.axis == "offset" else draw(st.integers(0, 2))
    offset: int | None = max(0, base + 12 + behind) if setting.axis == "offset" else draw(st.integers(0, 99))
    while (place := (origin if setting.origin else 0, offset)) in taken and offset is not None:
        offset += 1
    taken.add(place)
    bounds: tuple[int | None, int | None] = (None, None)
    if setting.inherited:
        assert time is not None
        start = time - draw(st.sampled_from([0, 1, 3]))
        bounds = (start, time + draw(st.sampled_from([1, 1, 2, 4])))
    key: str | None = draw(st.sampled_from(["a"] * 8 + ["b", "b", "é"]))
    if broken == "time":
        time = None
    elif broken == "k":
        key = None
    elif broken == "offset":
        offset = draw(st.sampled_from([None, -1, -(2**63)]))
    elif broken == "origin":
        origin = None
    return Message(time, key, draw(NUMBER), origin, offset, *bounds)


@st.composite
def histories(draw: st.DrawFn, setting: OrderedSetting, *, back: bool = False) -> History:
    """Feeds, watermarks, clocks, and feedings, drifting forward, from before 1970 on."""
    base, clock, steps = -12, 0, []
    taken: set[tuple] = set()
    kinds = ["feed"] * 5 + ["P"] * (5 if setting.axis == "processing" else 2)
    kinds += ["W"] * 4 if setting.axis == "event" else []
    kinds += ["back"] * 4 if back else []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=draw(st.sampled_from([0, 6, 10])), max_size=14)):
        if kind == "feed":
            if setting.axis == "offset" and not setting.per_element:
                taken.clear()  # The same offset again, in another batch: nothing here asks for the order.
            steps.append(Step(kind, draw(batch(setting, base, taken))))
            base += draw(st.sampled_from([0, 1, 2, 5]))
        elif kind == "W":
            steps.append(Step(kind, time=base + draw(st.integers(-4, 3))))
        elif kind == "P":
            clock += draw(st.sampled_from([0, 1, 2, 3, 4, 9]))
            steps.append(Step(kind, time=clock))
        else:
            given = draw(st.sampled_from([False] * 4 + [True]))
            steps.append(Step(kind, draw(usable_batch(setting, base, taken)) if given else (), given=given))
    return tuple(steps)


@st.composite
def batch(draw: st.DrawFn, setting: OrderedSetting, base: int, taken: set[tuple]) -> tuple[Message, ...]:
    size = draw(st.integers(draw(st.sampled_from([0, 1, 2, 4])), 6))
    return tuple(draw(message(setting, base, taken)) for _ in range(size))


@st.composite
def usable_batch(draw: st.DrawFn, setting: OrderedSetting, base: int, taken: set[tuple]) -> tuple[Message, ...]:
    twin = OrderedTwin(setting)
    return tuple(event for event in draw(batch(setting, base, taken)) if twin.unusable(event) is None)


@st.composite
def with_history(draw: st.DrawFn, of: st.SearchStrategy[OrderedSetting], *, back: bool = False) -> Any:
    drawn = draw(of)
    # Nothing is late by the clock, so there a late trigger shows as little as none.
    clock = drawn.axis == "processing"
    setting = sensible(replace(drawn, late=None) if clock and draw(st.booleans()) else drawn)
    if clock and setting.early is None and setting.closing == "never":
        setting = replace(sensible(replace(setting, late=None)), late=setting.late)
    if setting.early is None and setting.late is None:
        setting = replace(setting, per_element=False)
    return setting, draw(histories(setting, back=back))


@st.composite
def recut(draw: st.DrawFn, setting: OrderedSetting, history: History) -> History:
    """The same events between the same watermarks and feedings, in other batches and another order."""
    steps: list[Step] = []
    segment: list[Step] = []
    for step in [*history, Step("W")]:
        if step.kind == "feed" or (step.kind == "P" and setting.axis != "processing"):
            segment.append(step)
            continue
        events = draw(st.permutations([event for each in segment for event in each.events]))
        cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=3)))
        bounds = zip([0, *cuts], [*cuts, len(events)], strict=True)
        made = [Step("feed", tuple(events[first:last])) for first, last in bounds]
        steps += [*made, *(each for each in segment if each.kind == "P"), step]
        segment = []
    return tuple(steps[:-1])


@st.composite
def shuffled(draw: st.DrawFn, history: History) -> History:
    """The same batches, their rows in another order."""
    return tuple(step._replace(events=tuple(draw(st.permutations(step.events)))) for step in history)
