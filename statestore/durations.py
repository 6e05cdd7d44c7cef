"""Spans and moments of time as people write them, in microseconds. Pure.

A span is exact: it has no months or years, whose length depends on the calendar, and nothing below a microsecond is
rounded away. A minus in front is of the whole span, so ``-1h30m`` is minus ninety minutes.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, overload

from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

_UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "m": "minute",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "d": "day",
    "w": "week",
}
_UNITS_US = {
    **_UNIT_US,
    **{f"{unit}s": size for unit, size in _UNIT_US.items()},
    **{short: _UNIT_US[unit] for short, unit in _SHORT.items()},
}
_CALENDAR = ("month", "months", "mo", "quarter", "quarters", "year", "years", "y", "yr", "yrs")
"""Units whose length depends on the calendar."""
UNITS = (("days", 86_400e6), ("hours", 3_600e6), ("minutes", 60e6), ("seconds", 1e6), ("ms", 1e3))
_PART = re.compile(r"(-?)([0-9]*\.?[0-9]+)\s*([a-z]+)(?:\s*,\s*|\s+|(?=[0-9.])|$)", re.IGNORECASE)
_COUNT = r"([0-9]+(?:[.,][0-9]+)?)"
_ISO = re.compile(
    rf"(-?)P(?=.)(?:{_COUNT}Y)?(?:{_COUNT}M)?(?:{_COUNT}W)?(?:{_COUNT}D)?"
    rf"(?:T(?=.)(?:{_COUNT}H)?(?:{_COUNT}M)?(?:{_COUNT}S)?)?",
    re.IGNORECASE,
)
_ISO_UNITS = ("week", "day", "hour", "minute", "second")
_FAR = re.compile(r"[+-]?[0-9]{1,19} us")
_FINE = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_LIMIT_US = 2**62
_WHOLE = range(-(2**63), 2**63)
"""The moments, and offsets, that a column or a manifest can hold."""
_DIGITS = 40

if TYPE_CHECKING:  # at run time without numpy, which takes a while to import
    Span = str | timedelta | np.timedelta64
    Moment = int | str | date | np.datetime64 | np.integer[Any]
else:
    Span = str | timedelta
    Moment = int | str | date
"""A span of time: text such as "10m", "1h30m", "1.5 hours" or "PT10M", or a timedelta, of pandas or numpy too.

A time: text in ISO 8601, a datetime, or a date for its midnight, of pandas or numpy too, each in UTC unless it says
otherwise; or a whole number: microseconds since 1970 UTC, or an offset where windows or messages are by those.
"""


def span_us(span: Span) -> int:
    """``"1h30m"`` or a `timedelta` in microseconds, exactly. Raises `UsageError` (``span``) for anything else."""
    if isinstance(span, timedelta):
        return _within(_exact_us(span, getattr(span, "nanoseconds", 0), "span"), span)
    if isinstance(span, str):
        text = span.strip()
        return _within(_iso_us(text, span) if "P" in text[:2].upper() else _written_us(text, span), span)
    number = _of_numpy(span, "timedelta64", "span")
    if number is None:
        _refuse_span('a span of time must be text such as "30 minutes", or a timedelta', span)
    return _within(number, span)


def _written_us(text: str, span: Span) -> int:
    """Counts with units, such as ``1h30m`` or ``-1 hour, 30.5 s``."""
    negative, position, total = text.startswith("-"), 0, 0
    while position < len(text) or not text:
        match = _PART.match(text, position)
        name = match[3] if match else ""
        if name.lower() in _CALENDAR:
            _refuse_calendar(span)
        unit_us = _UNITS_US.get(name.lower())
        if not match or unit_us is None:
            _refuse_span('a span of time must be written like "30 minutes", "1h30m", "1.5 hours" or "PT10M"', span)
        if name == "M":
            _refuse_span('"M" could mean months or minutes: write "m" or "minutes", or give the months in days', span)
        if match[1] and not negative:
            _refuse_span('a minus sign must come before the whole span, as in "-1h30m"', span)
        total += _amount_us(match[2], unit_us, span)
        position = match.end()
    return -total if negative else total


def _iso_us(text: str, span: Span) -> int:
    """A duration of ISO 8601, such as ``PT10M``."""
    match = _ISO.fullmatch(text)
    if match is None:
        _refuse_span('an ISO 8601 duration must be written like "P1DT2H30M", "PT10M" or "PT0.5S"', span)
    sign, years, months, *counts = match.groups()
    if any(count and count.strip("0.,") for count in (years, months)):
        _refuse_calendar(span)
    pairs = zip(counts, _ISO_UNITS, strict=True)
    total = sum(_amount_us(count, _UNIT_US[unit], span) for count, unit in pairs if count)
    return -total if sign else total


def _amount_us(count: str, unit_us: int, span: Span) -> int:
    """A decimal number of units, in whole numbers throughout: floats would round."""
    integer, _, fraction = count.replace(",", ".").partition(".")
    integer, fraction = integer.lstrip("0"), fraction.rstrip("0")
    if len(integer) > _DIGITS:  # more than any span has, whatever its unit
        return 2 * _LIMIT_US
    digits: int = int(f"{integer}{fraction[:_DIGITS]}" or "0")
    scale: int = 10 ** len(fraction[:_DIGITS])
    amount, below = divmod(digits * unit_us, scale)
    if below or len(fraction) > _DIGITS:
        _refuse_fine("span", span)
    return amount


@overload
def moment_us(moment: Moment) -> int: ...
@overload
def moment_us(moment: None) -> None: ...
@overload
def moment_us(moment: Moment | None) -> int | None: ...
def moment_us(moment: Moment | None) -> int | None:
    """A moment as microseconds since 1970 UTC, exactly; a whole number, and None, as it is. Raises `UsageError`
    (``moment``), for a number of more than 64 bits too.
    """
    if moment is None:
        return None
    if isinstance(moment, int) and not isinstance(moment, bool):
        return _stored(moment, moment)
    if isinstance(moment, str):
        return _text_us(moment)
    if isinstance(moment, date):
        return _date_us(moment)
    number = _of_numpy(moment, "datetime64", "moment")
    if number is None:
        _refuse_moment(moment)
    return number


def _text_us(text: str) -> int:
    """A time in ISO 8601, or ``<number> us``, as times beyond the calendar are printed."""
    if _FAR.fullmatch(text.strip()):
        return _stored(int(text.split()[0]), text)
    if _FINE.search(text):
        _refuse_fine("moment", text)
    try:
        return _date_us(datetime.fromisoformat(text.strip()))
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        _refuse_moment(text)


@overload
def clock_us(clock: Moment) -> int: ...
@overload
def clock_us(clock: Moment | None) -> int | None: ...
def clock_us(clock: Moment | None) -> int | None:
    """As `moment_us`, of a clock, which spans are added to and taken from: so it is far from the ends of 64 bits."""
    number = moment_us(clock)
    if number is not None and abs(number) > _LIMIT_US:
        _refuse_far(clock)
    return number


def _stored(number: int, moment: object) -> int:
    if number not in _WHOLE:
        _refuse_far(moment)
    return int(number)


def _date_us(moment: date) -> int:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment != moment:  # NaT of pandas is a datetime
        _refuse_moment(moment)
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return _exact_us(aware - datetime(1970, 1, 1, tzinfo=UTC), getattr(moment, "nanosecond", 0), "moment")


def _exact_us(span: timedelta, nanoseconds: int, code: str) -> int:
    """The microseconds of a timedelta; those of pandas have ``nanoseconds`` too."""
    if nanoseconds:
        _refuse_fine(code, span)
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _of_numpy(value: Any, kind: str, code: str) -> int | None:
    """A ``timedelta64`` or ``datetime64`` in microseconds, and a whole number as a moment; None of anything else."""
    import numpy as np  # slow to import

    if code == "moment" and isinstance(value, np.integer) and not isinstance(value, np.timedelta64):
        return _stored(int(value), value)
    if not isinstance(value, getattr(np, kind)) or np.isnat(value):
        return None
    unit, _ = np.datetime_data(value.dtype)
    if unit == "generic":
        return None
    if kind == "timedelta64" and unit in ("Y", "M"):
        _refuse_calendar(value)
    micros = value.astype(f"{kind}[us]")
    if micros.astype(value.dtype) != value:
        _refuse_fine(code, value)
    return int(micros.astype(np.int64))


def _within(total: int, span: Span) -> int:
    if abs(total) > _LIMIT_US:
        _refuse_span("the span of time is too long: the limit is about 146,000 years", span)
    return total


def _refuse_span(message: str, span: object) -> NoReturn:
    raise UsageError(message, code="span", found=repr(span)[:100])


def _refuse_calendar(span: object) -> NoReturn:
    _refuse_span('months and years have no fixed length: give the span in days, such as "30 days"', span)


def _refuse_fine(code: str, value: object) -> NoReturn:
    raise UsageError(
        "times have microsecond precision: round this value to whole microseconds", code=code, found=repr(value)[:100]
    )


def _refuse_far(moment: object) -> NoReturn:
    raise UsageError(
        "a time is too far away: give one within some thousand years of 1970, in microseconds",
        code="moment",
        found=repr(moment)[:100],
    )


def _refuse_moment(moment: object) -> NoReturn:
    raise UsageError(
        'a time must be text such as "2026-01-31T12:00Z", a datetime, a date, or microseconds since 1970',
        code="moment",
        found=repr(moment)[:100],
    )


def text_of(span: int) -> str:
    """Microseconds as people write them: ``5400000000`` is ``1 hour 30 minutes``."""
    if span == 0:
        return "0 seconds"
    parts, remainder = [], abs(span)
    for unit in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, remainder = divmod(remainder, _UNIT_US[unit])
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
