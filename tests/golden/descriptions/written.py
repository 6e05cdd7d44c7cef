"""Jobs as recipes describe them (`tests.golden.descriptions`), written with streams and verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tidestate.operators as ops
from tests.golden.descriptions.values import Space, arguments, value
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe import triggers, windows
from tidestate.operators.describe.merge_accumulation import accumulate_by_side
from tidestate.operators.streams import generators, inputs, settings
from tidestate.operators.streams import windows as kinds
from tidestate.operators.streams.stream import MergedStreams, OperatorStream, Stream

AGGREGATES = {"sum": "sum_", "min": "min_", "max": "max_", "list": "list_", "set": "set_"}


def accumulate(*, columns: Any, lift: Any, version: int = 1, **functions: Any) -> Aggregate:
    """``agg.accumulate``: of one stream, or with a lift for each side."""
    if not isinstance(lift, Mapping):
        return ops.accumulate(columns=columns, lift=lift, version=version, **functions)
    return accumulate_by_side(columns=columns, lifts=lift, version=version, **functions)


def first_of(*modules: Any, **names: Callable[..., Any]) -> Space:
    """What is called so: in ``names``, or in the first module that has it."""

    def found(name: str) -> Callable[..., Any]:
        return names[name] if name in names else next(getattr(one, name) for one in modules if hasattr(one, name))

    return found


def aggregate_of(name: str) -> Callable[..., Any]:
    return accumulate if name == "accumulate" else getattr(ops, AGGREGATES.get(name, name))  # type: ignore[no-any-return]


SPACES: dict[str, Space] = {
    "agg": aggregate_of,
    "trigger": first_of(triggers),
    "watermark": first_of(generators, inputs, fixed=ops.fixed, buffers=generators.by_buffers),
    "window": first_of(kinds, windows),
    "ts": first_of(settings, Retention=settings.RetentionSettings),
}


def written(recipe: Mapping[str, Any]) -> OperatorStream:
    """The last operator of a recipe."""
    made: dict[str, Any] = {}
    for stored in recipe["streams"]:
        name = () if stored.get("unnamed") else (stored["name"],)
        made[stored["name"]] = inputs.stream(*name, **options_of({"options": stored["settings"]}))
    for stored in recipe["operators"]:
        made[stored["name"]] = _operator(stored, [_view(one, made) for one in stored["reads"]])
    last: OperatorStream = made[recipe["operators"][-1]["name"]]
    return last


def options_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    return arguments(stored, SPACES)[1]


def _view(read: Any, made: Mapping[str, Any]) -> Stream:
    if isinstance(read, str):
        return made[read]  # type: ignore[no-any-return]
    stream = made[read["of"]]
    if "timed_by" in read:
        stream = stream.timed_by(read["timed_by"])
    return _called(stream, "watermark", read["watermark"]) if "watermark" in read else stream  # type: ignore[no-any-return]


def _called(thing: Any, method: str, stored: Mapping[str, Any]) -> Any:
    args, options = arguments(stored, SPACES)
    return getattr(thing, method)(*args, **options)


def _operator(stored: Mapping[str, Any], reads: list[Stream]) -> Any:
    made = _VERBS.get(stored["verb"], _verb)(stored, reads)
    for call in stored.get("calls", ()):
        made = _called(made, call["call"], call)
    return made


def _verb(stored: Mapping[str, Any], reads: list[Stream]) -> Any:
    args, options = arguments(stored, SPACES)
    return getattr(reads[0], stored["verb"])(*reads[1:], *args, **options)


def _sides(stored: Mapping[str, Any], reads: list[Stream]) -> tuple[list[Stream], dict[str, Stream]]:
    return ([], dict(zip(stored["sides"], reads, strict=True))) if "sides" in stored else (reads, {})


def _union(stored: Mapping[str, Any], reads: list[Stream]) -> Any:
    streams, named = _sides(stored, reads)
    return inputs.union_streams(*streams, **named, **options_of(stored))


def _merge(stored: Mapping[str, Any], reads: list[Stream]) -> Any:
    streams, named = _sides(stored, reads)
    merged = inputs.merge_streams(*streams, **named)
    if "sharing" in stored:
        merged = merged.sharing(*value(stored["sharing"], SPACES))
    if "watermark" in stored:
        merged = merged.watermark(value(stored["watermark"], SPACES))
    return _aggregated(stored, merged)


def _aggregate(stored: Mapping[str, Any], reads: list[Stream]) -> Any:
    return _aggregated(stored, reads[0])


def _aggregated(stored: Mapping[str, Any], stream: Stream | MergedStreams) -> Any:
    grouped = stream.group_by(*stored.get("keys", ()))
    if "window" in stored:
        grouped = grouped.window(value(stored["window"], SPACES))
    return grouped.aggregate(**value(stored["results"], SPACES))


_VERBS: dict[str, Callable[[Mapping[str, Any], list[Stream]], Any]] = {
    "aggregate": _aggregate,
    "merge": _merge,
    "union": _union,
}
