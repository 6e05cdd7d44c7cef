"""The values of recipes in the words of today's functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.golden.descriptions.values import Space
from tests.helpers import old_grammar as ops
from tidestate.operators.describe.join_choices import JoinRetention
from tidestate.statestore.durations import span_us
from tidestate.statestore.messages.tables import Retention

AGGREGATES = {"sum": "sum_", "min": "min_", "max": "max_", "list": "list_", "set": "set_"}
TRIGGERS = {"each_element": "every_element"}
Kept = dict[str, Any]
"""A retention, by the names of its fields."""


@dataclass(frozen=True)
class Settings:
    """``over(…)``, ``ctis(…)`` or a generator: what gives a watermark."""

    generator: Any = None
    of_ctis: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def spaces(*, time: str | None, end: str | None = None) -> dict[str, Space]:
    """What makes values, for what reads ``time`` as its event time, and ``end`` as the end of lifetimes."""

    def bounded(delay: Any, column: str | None = None, **options: Any) -> Any:
        return ops.max_event_time(column or time or "", delay, **options)

    marks: dict[str, Callable[..., Any]] = {
        "bounded": bounded,
        "fixed": ops.fixed,
        "ingestion_time": ops.IngestionTime,
        "punctuated": ops.Punctuation,
        "buffers": ops.BufferProgress,
        "ctis": lambda settings=None: Settings(settings, of_ctis=True),
        "over": _over,
        "cti_settings": lambda policy, generate=None, import_from=None: ops.advance_time(
            policy, generate, import_from
        ),
        "generate_ctis": ops.generation,
    }
    return {
        "agg": lambda name: _accumulate if name == "accumulate" else getattr(ops, AGGREGATES.get(name, name)),
        "trigger": lambda name: getattr(ops, TRIGGERS.get(name, name)),
        "watermark": marks.__getitem__,
        "window": _windows(end).__getitem__,
        "ts": PLAIN.__getitem__,
    }


def _over(generator: Any = None, **options: Any) -> Settings:
    if isinstance(generator, Settings):
        return Settings(generator.generator, generator.of_ctis, options)
    return Settings(generator, options=options)


def _accumulate(*, columns: Any, lift: Any, **options: Any) -> Any:
    if not isinstance(lift, dict):
        return ops.accumulate(columns=columns, lift=lift, **options)
    lifts = {f"lift_{side}": function for side, function in lift.items()}
    return ops.merge_accumulate(**columns, **lifts, **options)


def _windows(end: str | None) -> dict[str, Callable[..., Any]]:
    def ending(of: str) -> str | None:
        return end if of == "lifetime" else None

    return {
        "tumbling": lambda size, of="start", **more: ops.tumbling(size, end=ending(of), **more),
        "sliding": lambda size, slide, of="start", **more: ops.sliding(size, slide, end=ending(of), **more),
        "sessions": ops.session,
        "offset_sessions": lambda count, late=None: ops.session(offsets=count, late=late),
        "count_windows": ops.count_window,
        "offset_windows": lambda count, **more: ops.count_window(count, by="offset", **more),
        "global_window": ops.global_window,
    }


PLAIN: dict[str, Callable[..., Any]] = {
    "side": lambda **options: options,
    "period": ops.every,
    "lifetime": lambda end=None, shape=None, shape_column=None: (
        end,
        shape or ("interval" if end else "point"),
        shape_column,
    ),
    "Retention": lambda span=None, **options: {"span": span, **options},
}
"""What `tidestate` itself has but for windows."""


def of_messages(kept: Any) -> Retention | None:
    """``messages(retain=…)``: a span or a retention."""
    if kept is None:
        return None
    limits: Kept = dict(kept) if isinstance(kept, dict) else {"span": kept}
    span = limits.pop("span")
    if "messages" in limits:
        limits["count"] = limits.pop("messages")
    return Retention(time=None if span is None else span_us(span), **limits)


def of_side(kept: Any) -> JoinRetention | None:
    """``side(retain=…)``: a span or a retention."""
    if kept is None:
        return None
    limits: Kept = kept if isinstance(kept, dict) else {"span": kept}
    return ops.keep(limits.get("span"), messages=limits.get("offsets"), windows=limits.get("windows"))


def has_each_element(stored: Any) -> bool:
    """Whether ``each_element`` stands anywhere in the arguments of a call."""
    if isinstance(stored, list):
        return any(map(has_each_element, stored))
    if not isinstance(stored, dict):
        return False
    return stored.get("trigger") == "each_element" or any(map(has_each_element, stored.values()))
