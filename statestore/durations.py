"""Spans and moments of time as people write them, in microseconds. Pure."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any, overload

from tidestate.statestore.errors import UsageError

_UNIT_US = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
}
UNITS = (("days", 86_400e6), ("hours", 3_600e6), ("minutes", 60e6), ("seconds", 1e6), ("ms", 1e3))
_PART = re.compile(r"\s*(-?[0-9]+)\s*([a-z]+?)(s?)(?:\s+|,|$)")
_LIMIT_US = 2**62
_DIGITS = 40

Span = str | timedelta
Moment = int | str | date
"""A time: text in ISO 8601, a datetime, or a date for its midnight, each in UTC unless it says otherwise; or a whole
number: microseconds since 1970 UTC, or an offset where windows or messages are by those.
"""


def span_us(span: Span) -> int:
    """``"1 hour 30 minutes"`` or a `timedelta` in microseconds. Raises `UsageError` for anything else."""
    if isinstance(span, timedelta):
        return _within(span // timedelta(microseconds=1), span)
    if not isinstance(span, str):
        raise UsageError(
            'a span of time is text like "30 minutes", or a timedelta', code="span", found=repr(span)[:100]
        )
    text, position, total = span.strip().lower(), 0, 0
    while position < len(text) or not text:
        match = _PART.match(text, position)
        unit = match and (_UNIT_US.get(match[2] + match[3]) or _UNIT_US.get(match[2]))
        if not match or not unit:
            raise UsageError(
                'a span of time reads like "30 minutes" or "1 hour 30 s"', code="span", found=repr(span)[:100]
            )
        # A count of more digits than any span has is too long, whatever its unit.
        total += (int(match[1]) if len(match[1]) <= _DIGITS else 2 * _LIMIT_US) * unit
        position = match.end()
    return _within(total, span)


@overload
def moment_us(moment: Moment) -> int: ...
@overload
def moment_us(moment: None) -> None: ...
@overload
def moment_us(moment: Moment | None) -> int | None: ...
def moment_us(moment: Moment | None) -> int | None:
    """A moment as microseconds since 1970 UTC; a whole number, and None, as it is. Raises `UsageError`."""
    if moment is None or (isinstance(moment, int) and not isinstance(moment, bool)):
        return moment
    try:
        time = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        time = None
    if isinstance(time, date) and not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day)
    if not isinstance(time, datetime):
        raise UsageError(
            'a time is text such as "2026-01-31T12:00Z", a datetime, a date, or microseconds since 1970',
            code="moment",
            found=repr(moment)[:100],
        )
    since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def _within(total: int, span: Span) -> int:
    if abs(total) > _LIMIT_US:
        raise UsageError("a span of time is too long", code="span", found=repr(span)[:100])
    return total


def text_of(span: int) -> str:
    """Microseconds as people write them: ``5400000000`` is ``1 hour 30 minutes``."""
    if span == 0:
        return "0 seconds"
    parts, rest = [], abs(span)
    for unit in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest = divmod(rest, _UNIT_US[unit])
        if count:
            parts.append(f"{'-' if span < 0 else ''}{count} {unit}{'s' if count > 1 else ''}")
    return " ".join(parts)


def unit_of(longest_us: float) -> tuple[str, float]:
    """The unit for a chart of spans up to this length, and its microseconds."""
    return next(((name, size) for name, size in UNITS if abs(longest_us) >= 2 * size), UNITS[-1])


def span_text(span_us: float) -> str:
    """``3.2 seconds``; two years and more in years."""
    year = 365.25 * UNITS[0][1]
    if abs(span_us) >= 2 * year:
        return f"{span_us / year:,.1f} years"
    name, size = unit_of(span_us)
    return f"{span_us / size:,.1f} {name}" if abs(span_us) >= UNITS[-1][1] else f"{span_us / size:.3f} {name}"


def spans_as_text(value: Any) -> Any:
    """A configuration as people read it: spans of settings ``*_us`` as text, under names without that ending."""
    if isinstance(value, list):
        return [spans_as_text(one) for one in value]
    return dict(_with_text(name, one) for name, one in value.items()) if isinstance(value, dict) else value


def _with_text(name: str, value: Any) -> tuple[str, Any]:
    if not name.endswith("_us") or (isinstance(value, dict) and "kind" in value):  # an aggregate of such a name
        return name, spans_as_text(value)
    return name.removesuffix("_us"), _texts(value)


def _texts(spans: Any) -> Any:
    """Spans, several of them, or some by name, as text."""
    if isinstance(spans, dict):
        return {name: _texts(one) for name, one in spans.items()}
    if isinstance(spans, list):
        return [_texts(one) for one in spans]
    return text_of(spans) if isinstance(spans, int) else spans
