"""How often recipes use each word of the grammar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

TAGS = ("agg", "window", "trigger", "watermark", "ts")
PLACES = {
    "allowed_lateness": ["span"],
    "accumulation": ["mode"],
    "retain_windows": ["span"],
    "messages": ["identity"],
    "pane_timestamp": ["choice"],
    "named": ["name"],
    "watermark": ["generator"],
    "agg.count": ["column"],
    "watermark.over": ["generator"],
    "watermark.ctis": ["settings"],
    "watermark.cti_settings": ["policy"],
}
"""Parameters that are given by place."""
CLOSED = {
    *("how", "occurrence", "unmatched", "on_time", "closing", "evaluate", "rule", "mode", "choice", "interpolation"),
    *("of", "shape", "policy", "layout", "early", "late"),
}
"""Parameters with a closed set of values, of which each is a word of its own."""


def counted(recipes: list[Mapping[str, Any]]) -> Counter[str]:
    """In how many recipes each word occurs."""
    return Counter(word for recipe in recipes for word in set(_of_recipe(recipe)))


def _of_recipe(recipe: Mapping[str, Any]) -> Iterator[str]:
    streams, operators = recipe["streams"], recipe["operators"]
    unnamed = any(stream.get("unnamed") for stream in streams)
    yield f"{'unnamed' if unnamed else 'named'} {'stream' if len(streams) == 1 else 'streams'}"
    yield f"operators={len(operators)}"
    names = [stream["name"] for stream in streams]
    readers = Counter(name for operator in operators for name in set(map(_name, operator["reads"])))
    if any(count > 1 for count in readers.values()):
        yield "read by two"
    for stream in streams:
        yield from _options("stream", stream["settings"])
    for operator in operators:
        yield from _of_operator(operator, names)


def _name(reference: Any) -> str:
    return reference if isinstance(reference, str) else str(reference["of"])


def _of_operator(operator: Mapping[str, Any], streams: list[str]) -> Iterator[str]:
    verb = operator["verb"]
    yield verb
    reads = [_name(reference) in streams for reference in operator["reads"]]
    if verb not in ("aggregate", "deduplicate", "shift_time"):
        yield f"{verb} of {'streams' if all(reads) else 'both' if any(reads) else 'operators'}"
        if len(reads) > 2:
            yield f"{verb} of three"
        if len(set(map(_name, operator["reads"]))) == 1:
            yield f"{verb} with itself"
    else:
        yield f"{verb} of {'a stream' if reads[0] else 'an operator'}"
    for part in ("sides", "sharing", "watermark"):
        if part in operator:
            yield f"{verb}.{part}"
    if verb in ("aggregate", "merge"):
        yield f"{verb} of {'keys' if operator['keys'] else 'no key'}"
        yield f"{verb} {'with' if 'window' in operator else 'without'} windows"
    for reference in operator["reads"]:
        if isinstance(reference, dict):
            yield "timed_by" if "timed_by" in reference else "view"
            yield from _call("view", "watermark", reference.get("watermark", {}))
    yield from _options(verb, operator.get("options", {}))
    claim = str(operator.get("watermark") or operator.get("options", {}).get("watermark"))
    yield from (f"{verb} over {word}" for word in ("ctis", "buffers") if f"'{word}'" in claim)
    for part in ("window", "watermark", "results"):
        yield from _values(operator.get(part))
    calls = [call["call"] for call in operator.get("calls", ())]
    if len(set(calls)) < len(calls):
        yield "a call twice"
    for call in operator.get("calls", ()):
        yield call["call"]
        yield from _call(call["call"], call["call"], call)


def _call(word: str, places: str, call: Mapping[str, Any]) -> Iterator[str]:
    named = dict(zip(PLACES.get(places, ()), call.get("args", ()), strict=False))
    yield from _options(word, named | call.get("options", {}))
    yield from _values(call.get("args", [])[len(named) :])


def _options(word: str, options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        yield f"{word}.{name}"
        if word == "watermark.ctis" and "watermark" not in value:
            yield "ctis by source"
        if name in CLOSED and isinstance(value, str | None):
            yield f"{word}.{name}={value}"
        yield from _values(value)


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _values(part)
    elif isinstance(value, dict):
        tag = next((tag for tag in TAGS if tag in value and isinstance(value[tag], str)), None)
        if tag:
            yield f"{tag}.{value[tag]}"
            yield from _call(f"{tag}.{value[tag]}", f"{tag}.{value[tag]}", value)
        elif "function" in value:
            yield f"function.{value['function']}"
        else:
            for part in value.values():
                yield from _values(part)
