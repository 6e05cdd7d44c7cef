"""Functions of dates and times. Local time goes by ``zone=``, which is UTC unless it is named, never the host's.

Times are microseconds since 1970; parts of them are computed by NumPy's calendar on the local clock. A time without a
zone is what a clock shows, and no zone moves it. Pure and vectorised.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.arrays import (
    AnyNumbers,
    Datum,
    arrow_column,
    as_arrays,
    by_distinct,
    nulls_of,
    whole_numbers_of,
    without,
)
from tidestate.operators.expressions.casts import DAY_LENGTH_US, FARTHEST_DAY, time_us_of_text, try_cast
from tidestate.operators.expressions.coercion import brought_to
from tidestate.operators.expressions.operands import Binders, BoundCall, Operand, apply_kernel
from tidestate.operators.expressions.tree import INSTANT, LOCAL
from tidestate.operators.zones.rules import ZoneRules
from tidestate.statestore.arrays import Numbers, Times

_DATE, _INT, _LONG = pa.date32(), pa.int32(), pa.int64()
_UNIT_US = {"day": DAY_LENGTH_US, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
_TRUNCATED = ("year", "quarter", "month", "week", *_UNIT_US)
_MONDAY = 3
"""The days from a Monday to the first of January 1970."""
_FORMAT = re.compile(r"(yyyy|MM|dd|HH|mm|ss)|'((?:[^']|'')*)'|([^A-Za-z'%])", re.ASCII)
_LETTERS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_FINEST = {"HH": "hour", "mm": "minute", "ss": "second"}
_YEARS_US = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The years 1 to 9999, which text has four digits for."""


def is_moment(kind: pa.DataType) -> bool:
    """Whether it is a time or a date."""
    return kind in (INSTANT, LOCAL) or pa.types.is_date32(kind)


def local_us(column: pa.Array, zone: ZoneRules) -> Times:
    """What a clock in ``zone`` shows, in microseconds; of a date its midnight, of a time without a zone itself.
    Days that are too far away for a time are the first or the last one that is not.
    """
    numbers = whole_numbers_of(column)
    if pa.types.is_date32(column.type):
        return np.clip(numbers, -FARTHEST_DAY, FARTHEST_DAY) * DAY_LENGTH_US
    return zone.local(numbers) if column.type == INSTANT else numbers


def local_days(column: pa.Array, zone: ZoneRules) -> Numbers:
    """The day that a calendar in ``zone`` shows, in days since 1970; of a date itself, however far away it is."""
    if pa.types.is_date32(column.type):
        return whole_numbers_of(column)
    return local_us(column, zone) // DAY_LENGTH_US


def _bind_part(call: BoundCall, part: Callable[[Numbers], AnyNumbers]) -> Operand:
    return apply_kernel(_INT, partial(_part, part=part, zone=call.zone), _time(call, 0))


def _bind_part_of_day(call: BoundCall, unit: str, outer_unit: str) -> Operand:
    return apply_kernel(_INT, partial(_part_of_day, unit=unit, outer_unit=outer_unit, zone=call.zone), _time(call, 0))


def _time(call: BoundCall, position: int) -> Operand:
    operand = call.operands[position]
    if pa.types.is_null(operand.type):
        return brought_to(call, operand, INSTANT)
    if not is_moment(operand.type):
        call.refuse("a time or a date; of text make one with to_timestamp or cast")
    return operand


def _part(column: pa.Array, part: Callable[[Numbers], AnyNumbers], zone: ZoneRules) -> pa.Array:
    return arrow_column(part(local_days(column, zone)).astype(np.int32), nulls_of(column), _INT)


def _part_of_day(column: pa.Array, unit: str, outer_unit: str, zone: ZoneRules) -> pa.Array:
    parts = local_us(column, zone) % _UNIT_US[outer_unit] // _UNIT_US[unit]
    return arrow_column(parts.astype(np.int32), nulls_of(column), _INT)


def _months(days: Numbers) -> Numbers:
    """Months since January 1970."""
    months: Numbers = days.astype("M8[D]").astype("M8[M]").astype(np.int64)
    return months


def _first_days(months: Numbers) -> Numbers:
    """Days since 1970 at which these months begin."""
    days: Numbers = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    return days


def _year(days: Numbers) -> Numbers:
    return _months(days) // 12 + 1970


def _quarter(days: Numbers) -> Numbers:
    return _months(days) % 12 // 3 + 1


def _month(days: Numbers) -> Numbers:
    return _months(days) % 12 + 1


def _day(days: Numbers) -> Numbers:
    return days - _first_days(_months(days)) + 1


def _day_of_week(days: Numbers) -> Numbers:
    """1 is Sunday, 7 Saturday."""
    return (days + _MONDAY + 1) % 7 + 1


def _day_of_year(days: Numbers) -> Numbers:
    return days - _first_days(_months(days) // 12 * 12) + 1


def _thursdays(days: Numbers) -> Numbers:
    """The Thursday of the same week, Monday to Sunday: a week of ISO 8601 is in the year of its Thursday."""
    thursdays: Numbers = days - (days + _MONDAY) % 7 + 3
    return thursdays


def _week(days: Numbers) -> Numbers:
    return (_day_of_year(_thursdays(days)) - 1) // 7 + 1


def _iso_year(days: Numbers) -> Numbers:
    return _year(_thursdays(days))


def _bind_to_date(call: BoundCall) -> Operand:
    """The day of a time in a zone; of text in ISO 8601."""
    (operand,) = call.operands
    if pa.types.is_string(operand.type) or pa.types.is_null(operand.type):
        return apply_kernel(_DATE, partial(try_cast, kind=_DATE), operand)
    return apply_kernel(_DATE, partial(_date, zone=call.zone), _time(call, 0))


def _date(column: pa.Array, zone: ZoneRules) -> pa.Array:
    return arrow_column(local_days(column, zone), nulls_of(column), _DATE)


def _bind_truncated(call: BoundCall) -> Operand:
    unit = call.constant_text(0).lower()
    operand = _time(call, 1)
    if unit not in _TRUNCATED or (pa.types.is_date32(operand.type) and unit in ("hour", "minute", "second")):
        call.refuse(f"one of {', '.join(_TRUNCATED)}, of a date none below a day, and then the time")
    return apply_kernel(operand.type, partial(_truncated, unit=unit, zone=call.zone), operand)


def _truncated(column: pa.Array, unit: str, zone: ZoneRules) -> pa.Array:
    """The begin of the unit on the local clock, as an instant again."""
    kind = column.type
    if pa.types.is_date32(kind):
        days = whole_numbers_of(column)
        begins = days if unit == "day" else _first_day(days, unit)
        before_all = begins < np.iinfo(np.int32).min
        return arrow_column(np.where(before_all, 0, begins), nulls_of(column) | before_all, kind)
    local = local_us(column, zone)
    if kind == LOCAL:
        return arrow_column(_begin(local, unit), nulls_of(column), kind)
    instants = whole_numbers_of(column)
    if unit in ("hour", "minute", "second"):
        # Taken off the instant itself: an hour that a clock shows twice begins twice.
        begins = instants - local % _UNIT_US[unit]
    else:
        # A day that begins twice began the first time, so never after the instant.
        begins = np.minimum(zone.instants(_begin(local, unit)), instants)
    return arrow_column(begins, nulls_of(column), kind)


def _begin(local: Times, unit: str) -> Times:
    if unit in _UNIT_US:
        return local - local % _UNIT_US[unit]
    return _first_day(local // DAY_LENGTH_US, unit) * DAY_LENGTH_US


def _first_day(days: Numbers, unit: str) -> Numbers:
    """The first day of the week, month, quarter or year."""
    if unit == "week":
        return days - (days + _MONDAY) % 7
    months = {"month": 1, "quarter": 3, "year": 12}[unit]
    return _first_days(_months(days) // months * months)


def _dates(call: BoundCall, *positions: int) -> list[Operand]:
    for position in positions:
        kind = call.types[position]
        if not (pa.types.is_date32(kind) or pa.types.is_null(kind) or _is_text(call, position)):
            call.refuse("dates; of a time make one with to_date")
    return [brought_to(call, call.operands[position], _DATE) for position in positions]


def _is_text(call: BoundCall, position: int) -> bool:
    """Whether it is a literal text, which meets a date as one."""
    return call.operands[position].is_open and pa.types.is_string(call.types[position])


def _bind_date_add(call: BoundCall) -> Operand:
    days = call.operands[1]
    if not (pa.types.is_integer(days.type) or pa.types.is_null(days.type)):
        call.refuse("a date and a whole number of days")
    return apply_kernel(_DATE, _date_added, *_dates(call, 0), brought_to(call, days, _LONG))


def _date_added(dates: Datum, days: Datum) -> pa.Array:
    column, day_counts = as_arrays(dates, days)
    steps = whole_numbers_of(day_counts)
    far = np.abs(steps) >= 2**33
    total = whole_numbers_of(column) + np.where(far, 0, steps)
    far |= (total < -(2**31)) | (total >= 2**31)
    return arrow_column(np.where(far, 0, total), nulls_of(column, day_counts) | far, _DATE)


def _bind_date_diff(call: BoundCall) -> Operand:
    return apply_kernel(_INT, _days_between, *_dates(call, 0, 1))


def _days_between(end: Datum, start: Datum) -> pa.Array:
    columns = as_arrays(end, start)
    days = whole_numbers_of(columns[0]) - whole_numbers_of(columns[1])
    far = np.abs(days) >= 2**31
    return arrow_column(np.where(far, 0, days).astype(np.int32), nulls_of(*columns) | far, _INT)


def _instant(call: BoundCall) -> Operand:
    operand = _time(call, 0)
    if operand.type != INSTANT:
        call.refuse("a time with a zone")
    return operand


def _bind_unix_micros(call: BoundCall) -> Operand:
    return apply_kernel(_LONG, partial(_viewed, kind=_LONG), _instant(call))


def _viewed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.view(kind)


def _bind_timestamp_micros(call: BoundCall) -> Operand:
    (operand,) = call.operands
    if not (pa.types.is_integer(operand.type) or pa.types.is_null(operand.type)):
        call.refuse("a whole number of microseconds since 1970")
    return apply_kernel(INSTANT, partial(_viewed, kind=INSTANT), brought_to(call, operand, _LONG))


def _bind_to_timestamp(call: BoundCall) -> Operand:
    """Of text in ISO 8601; of a time without a zone, or of a date, when a clock in the zone shows it."""
    (operand,) = call.operands
    if pa.types.is_null(operand.type) or operand.type == INSTANT:
        return brought_to(call, operand, INSTANT)
    if pa.types.is_string(operand.type):
        return apply_kernel(INSTANT, partial(_read, zone=call.zone), operand)
    return apply_kernel(INSTANT, partial(_placed, zone=call.zone), _time(call, 0))


def _read(column: pa.Array, zone: ZoneRules) -> pa.Array:
    return by_distinct(column, partial(_instant_of_text, zone=zone), _LONG).view(INSTANT)


def _instant_of_text(text: str, zone: ZoneRules) -> int | None:
    if (local_us := time_us_of_text(text, zoned=False)) is not None:
        return int(zone.instants(np.array([local_us]))[0])
    return time_us_of_text(text, zoned=True)


def _placed(column: pa.Array, zone: ZoneRules) -> pa.Array:
    nulls = nulls_of(column)
    if pa.types.is_date32(column.type):
        nulls = nulls | (np.abs(whole_numbers_of(column)) > FARTHEST_DAY)
    return arrow_column(zone.instants(local_us(column, zone)), nulls, INSTANT)


def _bind_from_utc(call: BoundCall) -> Operand:
    """What a clock in the zone shows at a time, as a time without a zone."""
    return apply_kernel(LOCAL, partial(_shown, zone=call.zone), _instant(call))


def _shown(column: pa.Array, zone: ZoneRules) -> pa.Array:
    return arrow_column(local_us(column, zone), nulls_of(column), LOCAL)


def _bind_format(call: BoundCall) -> Operand:
    text = call.constant_text(1)
    parts = list(_FORMAT.finditer(text))
    if not parts or sum(len(part[0]) for part in parts) != len(text) or len(text) > 200:
        call.refuse("a format of yyyy, MM, dd, HH, mm, ss, text in single quotes and signs")
    pattern = "".join(_pattern(part) for part in parts)
    units = [_UNIT_US[_FINEST[part[1]]] for part in parts if part[1] in _FINEST]
    return apply_kernel(
        pa.string(),
        partial(_formatted, pattern=pattern, unit_us=min(units, default=DAY_LENGTH_US), zone=call.zone),
        _time(call, 0),
    )


def _pattern(part: re.Match[str]) -> str:
    if part[1] is not None:
        return _LETTERS[part[1]]
    # '' stands for a quote, in quotes and outside of them.
    literal = part[3] if part[3] is not None else part[2].replace("''", "'") or "'"
    return literal.replace("%", "%%")


def _formatted(column: pa.Array, pattern: str, unit_us: int, zone: ZoneRules) -> pa.Array:
    local = local_us(column, zone)
    far = (local < _YEARS_US[0]) | (local >= _YEARS_US[1])
    unit_numbers = np.where(far, 0, local) // unit_us
    dictionary_column = pa.array(unit_numbers).dictionary_encode()
    # Each day, minute or second that there is once, since to write a time takes a microsecond; and in whole seconds,
    # since Arrow writes a fraction behind them otherwise.
    seconds = pc.multiply(dictionary_column.dictionary, unit_us // 1_000_000).view(pa.timestamp("s"))
    return without(pc.strftime(seconds, pattern).take(dictionary_column.indices), nulls_of(column) | far)


TIME_BINDERS: Binders = {
    "year": partial(_bind_part, part=_year),
    "quarter": partial(_bind_part, part=_quarter),
    "month": partial(_bind_part, part=_month),
    "day": partial(_bind_part, part=_day),
    "day_of_week": partial(_bind_part, part=_day_of_week),
    "day_of_year": partial(_bind_part, part=_day_of_year),
    "week": partial(_bind_part, part=_week),
    "iso_year": partial(_bind_part, part=_iso_year),
    "hour": partial(_bind_part_of_day, unit="hour", outer_unit="day"),
    "minute": partial(_bind_part_of_day, unit="minute", outer_unit="hour"),
    "second": partial(_bind_part_of_day, unit="second", outer_unit="minute"),
    "to_date": _bind_to_date,
    "date_trunc": _bind_truncated,
    "date_add": _bind_date_add,
    "date_diff": _bind_date_diff,
    "unix_micros": _bind_unix_micros,
    "timestamp_micros": _bind_timestamp_micros,
    "to_timestamp": _bind_to_timestamp,
    "from_utc": _bind_from_utc,
    "date_format": _bind_format,
}
