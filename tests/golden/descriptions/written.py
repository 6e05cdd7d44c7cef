"""Jobs as recipes describe them (`tests.golden.descriptions`), written with streams and verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tidestate as ts
from tests.golden.descriptions.values import Space, arguments, value
from tidestate import MergedStreams, OperatorStream, Stream


def space(namespace: Any) -> Space:
    """Of its public names."""
    return lambda name: getattr(namespace, name)  # type: ignore[no-any-return]


SPACES: dict[str, Space] = {
    "agg": space(ts.agg),
    "trigger": space(ts.trigger),
    "watermark": space(ts.watermark),
    "window": space(ts),
    "ts": space(ts),
}


def written(recipe: Mapping[str, Any]) -> OperatorStream:
    """The last operator of a recipe."""
    made: dict[str, Any] = {}
    for stored in recipe["streams"]:
        name = () if stored.get("unnamed") else (stored["name"],)
        made[stored["name"]] = ts.stream(*name, **options_of({"options": stored["settings"]}))
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
    return ts.union(*streams, **named, **options_of(stored))


def _merge(stored: Mapping[str, Any], reads: list[Stream]) -> Any:
    streams, named = _sides(stored, reads)
    merged = ts.merge(*streams, **named)
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
