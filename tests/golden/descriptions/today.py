"""The descriptions of recipes by today's functions: `windowed`, `join`, `chain` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.golden.descriptions.manifest import operators_of
from tests.golden.descriptions.today_values import has_each_element, of_messages, of_side, spaces
from tests.golden.descriptions.today_watermarks import marked, marked_sides
from tests.golden.descriptions.values import arguments, value
from tests.golden.descriptions.views import View, of_stream
from tests.helpers import old_grammar as ops
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.union import union
from tidestate.statestore.errors import UsageError

Recipe = Mapping[str, Any]
PANES = "pane_time"


def record(recipe: Recipe) -> dict[str, Any]:
    """A recipe with what a manifest holds of it."""
    return {"recipe": recipe, "operators": operators_of(made(recipe))}


def made(recipe: Recipe) -> Chain:
    """The description. Raises `UsageError` for one that makes no sense."""
    views = {stream["name"]: of_stream(stream) for stream in recipe["streams"]}
    descriptions: list[Runnable] = []
    inputs: dict[str, tuple[str, ...]] = {}
    for operator in recipe["operators"]:
        read = [_view(views, reference) for reference in operator["reads"]]
        description, out = VERBS[operator["verb"]](operator, read)
        if description.name != operator["name"]:
            raise UsageError("an operator has another name than the recipe says", code="operator-name")
        descriptions.append(description)
        inputs[description.name] = tuple(view.name for view in read)
        views[operator["name"]] = replace(out, name=operator["name"], operator=True)
    return ops.chain(*descriptions, inputs=inputs)


def _view(views: Mapping[str, View], reference: Any) -> View:
    if isinstance(reference, str):
        return views[reference]
    view = views[reference["of"]]
    if "watermark" in reference:
        return replace(view, watermark=reference["watermark"])
    return replace(view, event_time=reference["timed_by"], timed=True)


def _named(operator: Recipe) -> dict[str, str]:
    """The name, where it is written."""
    names = [call["args"][0] for call in operator.get("calls", ()) if call["call"] == "named"]
    names += [operator["options"]["name"]] if "name" in operator.get("options", {}) else []
    return {"name": names[0]} if names else {}


# Windows and merges.


def _aggregate(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    (view,) = read
    begun = ops.windowed(
        event_time=None if view.unnamed_time else view.event_time,
        key=operator["keys"],
        watermark_delay=view.delay,
        processing_time=view.processing_time,
        offset=view.offset,
        origin=view.origin,
        in_order=_has(operator, "in_order"),
        **_named(operator),
    )
    return _finished(marked(begun, view), operator, read, view.event_time)


def _merge(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    sides = _sides(operator, read)
    begun = merge(
        event_time=[view.event_time or "" for view in read],
        key=operator["keys"],
        sides=sides,
        shared=operator.get("sharing", ()),
        watermark_delay=[view.delay for view in read],
        offset=_common(view.offset for view in read),
        origin=_common(view.origin for view in read),
        in_order=_has(operator, "in_order"),
        **_named(operator),
    )
    return _finished(marked_sides(begun, read, sides, operator.get("watermark")), operator, read, "time")


def _finished(begun: Any, operator: Recipe, read: list[View], time: str | None) -> tuple[Runnable, View]:
    """With windows, aggregates, and the methods that are called."""
    by_lifetime = operator.get("window", {}).get("options", {}).get("of") == "lifetime"
    makers = spaces(time=time, end=_common(view.lifetime[0] for view in read) if by_lifetime else None)
    if "window" in operator:
        begun = begun.window(value(operator["window"], makers))
    done = begun.aggregate(**value(operator["results"], makers))
    future = _common(view.future_tolerance for view in read)
    calls = {call["call"]: call for call in operator.get("calls", ())}
    if future is not None and "allowed_lateness" not in calls:
        calls["allowed_lateness"] = {}
    for name, call in calls.items():
        if name in CALLS:
            args, options = arguments(call, makers)
            options |= {"evaluate": "element"} if name == "trigger" and has_each_element(call) else {}
            options |= {} if name != "allowed_lateness" or future is None else {"stream_tolerance": future}
            done = CALLS[name](done, *args, **options)
    return done, View(event_time="timestamp" if "pane_timestamp" in calls else PANES, pane=True)


def _late(
    done: Any,
    span: Any = None,
    rule: str = "event",
    ledger_columns: Any = (),
    future_tolerance: Any = None,
    stream_tolerance: Any = "60 seconds",
) -> Any:
    future = stream_tolerance if future_tolerance is None else future_tolerance
    return done.late(span, rule=rule, keep=ledger_columns, future=future)


def _triggered(done: Any, evaluate: str = "batch", **options: Any) -> Any:
    return done.trigger(per_element=evaluate == "element", **options)


def _messages(done: Any, identity: Any = None, retain: Any = None, **options: Any) -> Any:
    return done.messages(identity, retention=of_messages(retain), **options)


CALLS = {
    "allowed_lateness": _late,
    "trigger": _triggered,
    "messages": _messages,
    "accumulation": lambda done, mode: done.accumulation(mode),
    "retain_windows": lambda done, *args, **options: done.retain(*args, **options),
    "pane_timestamp": lambda done, choice: done.timestamps(choice),
}


# What passes rows on.


def _union(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    sides = _sides(operator, read)
    united = union(
        event_time=[view.event_time or "" for view in read],
        sides=sides,
        watermark_delay=[view.delay for view in read],
        offset=_common(view.offset for view in read),
        origin=_common(view.origin for view in read),
        **_named(operator),
    )
    out = View(event_time="time", offset=united.offset, origin=united.origin)
    return marked_sides(united, read, sides, operator.get("options", {}).get("watermark")), out


def _deduplicate(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    (view,) = read
    _, options = arguments(operator, {})
    late = options.pop("allowed_lateness", None)
    done = ops.deduplicated(
        event_time=view.event_time or "", watermark_delay=view.delay, **_unwritten(options), **_named(operator)
    )
    return marked(done if late is None else done.late(late), view), view.handed_on()


def _shift_time(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    (view,) = read
    _, options = arguments(operator, {})
    end = options.get("end", view.lifetime[0])
    done = ops.altered(
        event_time=view.event_time or "",
        shift=options.get("by", "0 seconds"),
        end=end,
        duration=options.get("duration"),
        watermark_delay=view.delay,
        offset=view.offset,
        origin=view.origin,
        **_named(operator),
    )
    handed = view.handed_on()
    return marked(done, view), handed if end == view.lifetime[0] else replace(
        handed, lifetime=(end, "interval", None)
    )


# Joins.


def _join(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    makers = spaces(time="time")
    _, options = arguments(operator, makers)
    common = options.pop("sides", {})
    left, right = ({**common, **options.pop(side, {})} for side in SIDES)
    windows = left.get("window"), right.get("window")
    if windows != (None, None):
        options["window"] = windows
    counted = [_by_offset(side) for side in (left, right)]
    done = ops.join(
        event_time=(read[0].event_time or "", read[1].event_time or ""),
        watermark_delay=(read[0].delay, read[1].delay),
        late=options.pop("allowed_lateness", "0 seconds"),
        update=(left.get("update"), right.get("update")),
        late_update=(left.get("late_update"), right.get("late_update")),
        retain=(of_side(left.get("retain")), of_side(right.get("retain"))),
        **_order(read, counted, identity=options.pop("identity", False)),
        **_unwritten(options),
        **_named(operator),
    )
    return marked_sides(done, read, SIDES, operator.get("options", {}).get("watermark")), View(event_time="time")


def _join_sessions(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    _, options = arguments(operator, spaces(time="time"))
    by_offset = "offsets" in options
    starts = [options.pop(side, {}).get("start", 0) for side in SIDES]
    session = {"session": options.pop("session_key")} if "session_key" in options else {}
    times = {"event_time": (read[0].event_time, read[1].event_time), "watermark_delay": [view.delay for view in read]}
    done = ops.session_join(
        late=options.pop("allowed_lateness", "0 seconds"),
        start=(starts[0], starts[1]) if any(starts) else None,
        **({} if by_offset else times),
        **_order(read, [by_offset, by_offset], identity=options.pop("identity", False)),
        **session,
        **_unwritten(options),
        **_named(operator),
    )
    return marked_sides(done, read, SIDES, operator.get("options", {}).get("watermark")), View(event_time="time")


def _join_lifetimes(operator: Recipe, read: list[View]) -> tuple[Runnable, View]:
    ends, shapes, columns = zip(*(view.lifetime for view in read), strict=True)
    done = ops.overlap_join(
        event_time=(read[0].event_time or "", read[1].event_time or ""),
        on=value(operator.get("options", {}).get("on"), {}),
        shape=shapes,
        end=ends,
        shape_column=columns,
        **_order(read, [True, True], identity=False, ctis=True),
        **_named(operator),
    )
    return marked_sides(done, read, SIDES, None), View(event_time="time")


def _order(read: list[View], counted: list[bool], *, identity: bool, ctis: bool = False) -> dict[str, Any]:
    """Offsets and origins of both sides, of those that take them."""
    ctis = ctis or any(view.has_ctis for view in read)
    taken = [
        not view.operator if ctis else identity or by_offset for view, by_offset in zip(read, counted, strict=True)
    ]
    pairs = list(zip(read, taken, strict=True))
    return {
        "offset": tuple(view.offset if takes else None for view, takes in pairs),
        "origin": tuple(view.origin if takes else None for view, takes in pairs),
    }


def _by_offset(side: Mapping[str, Any]) -> bool:
    """Whether the windows or the retention of a side are of offsets."""
    window, kept = side.get("window"), side.get("retain")
    return (window is not None and window.by_offset) or (isinstance(kept, dict) and "offsets" in kept)


SIDES = ["left", "right"]
VERBS = {
    "aggregate": _aggregate,
    "merge": _merge,
    "union": _union,
    "deduplicate": _deduplicate,
    "shift_time": _shift_time,
    "join": _join,
    "join_sessions": _join_sessions,
    "join_lifetimes": _join_lifetimes,
}


def _sides(operator: Recipe, read: list[View]) -> list[str]:
    return list(operator.get("sides") or (view.name for view in read))


def _unwritten(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is written in another place."""
    return {name: option for name, option in options.items() if name not in ("name", "watermark")}


def _has(operator: Recipe, call: str) -> bool:
    return any(method["call"] == call for method in operator.get("calls", ()))


def _common(values: Any) -> Any:
    """What is the same for all. Raises `UsageError` where it is not."""
    different = dict.fromkeys(values)
    if len(different) > 1:
        raise UsageError("all sides name it, or none does", code="sides", found=list(different))
    return next(iter(different))
