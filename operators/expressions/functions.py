"""Functions over columns that have no operator and no method of `tidestate.operators.expressions.builder.Expr`.

A column is given by its name or as an expression; patterns, lengths and units are plain values. Pure.
"""

from __future__ import annotations

from typing import TypeAlias

from tidestate.operators.expressions.builder import Expr, as_column, call
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError

ColumnLike: TypeAlias = "Expr | str"
Zone: TypeAlias = str | None


def _of(function: str, *columns: object) -> Expr:
    return call(function, *map(as_column, columns))


def _of_time(function: str, *args: object, zone: Zone) -> Expr:
    if zone is not None and (not isinstance(zone, str) or not zone):
        raise UsageError(
            'zone= takes the name of a time zone, such as zone="Europe/Berlin"',
            code="time-zone",
            found=f"{zone!r:.100}",
        )
    return call(function, *args, zone=zone)


def coalesce(*columns: ColumnLike) -> Expr:
    """The first value that is not null."""
    return _of("coalesce", *columns)


def nullif(column: ColumnLike, other: ColumnLike) -> Expr:
    """Null where both are equal, else the first."""
    return _of("nullif", column, other)


def greatest_value(*columns: ColumnLike) -> Expr:
    """The greatest value of a row; nulls are left out, and NaN is above all numbers."""
    return _of("greatest", *columns)


def least_value(*columns: ColumnLike) -> Expr:
    """The smallest value of a row; nulls are left out."""
    return _of("least", *columns)


def pmod(column: ColumnLike, divisor: ColumnLike | int | float) -> Expr:
    """What is left over of a division, not negative where the divisor is not."""
    return call("pmod", as_column(column), as_column(divisor))


def abs_(column: ColumnLike) -> Expr:
    """The number without its sign; null where that does not fit, as for the smallest ``int64``."""
    return _of("abs", column)


def sqrt(column: ColumnLike) -> Expr:
    """The square root, NaN below zero."""
    return _of("sqrt", column)


def ln(column: ColumnLike) -> Expr:
    """The natural logarithm, null from zero down."""
    return _of("ln", column)


def exp(column: ColumnLike) -> Expr:
    """The number e to this power."""
    return _of("exp", column)


def floor(column: ColumnLike) -> Expr:
    """The next whole number down; of a float as ``int64``, null where it does not fit."""
    return _of("floor", column)


def ceil(column: ColumnLike) -> Expr:
    """The next whole number up; of a float as ``int64``, null where it does not fit."""
    return _of("ceil", column)


@checked
def round_(column: ColumnLike, digits: int = 0) -> Expr:
    """Rounded to ``digits`` after the point, a half away from zero, as the number is printed."""
    return call("round", as_column(column), digits)


def length(column: ColumnLike) -> Expr:
    """How many letters (code points) a text has, or bytes."""
    return _of("length", column)


def lower(column: ColumnLike) -> Expr:
    """The text in small letters."""
    return _of("lower", column)


def upper(column: ColumnLike) -> Expr:
    """The text in capital letters: ``ß`` becomes ``SS``."""
    return _of("upper", column)


def trim(column: ColumnLike) -> Expr:
    """Without spaces at both ends."""
    return _of("trim", column)


def ltrim(column: ColumnLike) -> Expr:
    """Without spaces at the begin."""
    return _of("ltrim", column)


def rtrim(column: ColumnLike) -> Expr:
    """Without spaces at the end."""
    return _of("rtrim", column)


@checked
def substring(column: ColumnLike, start: int, count: int) -> Expr:
    """``count`` letters from place ``start``, which is 1 for the first letter and -1 for the last."""
    return call("substring", as_column(column), start, count)


def concat(*columns: ColumnLike) -> Expr:
    """Texts one after the other; null if any is null."""
    return _of("concat", *columns)


@checked
def concat_ws(separator: str, *columns: ColumnLike) -> Expr:
    """Texts with a separator between them; nulls are left out."""
    return call("concat_ws", separator, *map(as_column, columns))


@checked
def replace(column: ColumnLike, search: str, replacement: str) -> Expr:
    """Each occurrence of a text replaced by another one."""
    return call("replace", as_column(column), search, replacement)


@checked
def split_part(column: ColumnLike, separator: str, position: int) -> Expr:
    """The part between separators at a place from 1, or from -1 back; empty where there is none."""
    return call("split_part", as_column(column), separator, position)


@checked
def lpad(column: ColumnLike, width: int, padding: str = " ") -> Expr:
    """With ``padding`` in front up to ``width`` letters, at most 1,000; what is longer is cut."""
    return call("lpad", as_column(column), width, padding)


def element_at(column: ColumnLike, position: object) -> Expr:
    """The element of a list at a place from 1, or from -1 back; of a map the value of a key; null if none is."""
    return call("element_at", as_column(column), position)


def size(column: ColumnLike) -> Expr:
    """How many elements a list or map has."""
    return _of("size", column)


def array_contains(column: ColumnLike, value: object) -> Expr:
    """Whether a value is in a list; null if it is not and a null is."""
    return call("array_contains", as_column(column), value)


def year(column: ColumnLike, zone: Zone = None) -> Expr:
    """The year of a date or time."""
    return _of_time("year", as_column(column), zone=zone)


def quarter(column: ColumnLike, zone: Zone = None) -> Expr:
    """The quarter of a date or time, 1 to 4."""
    return _of_time("quarter", as_column(column), zone=zone)


def month(column: ColumnLike, zone: Zone = None) -> Expr:
    """The month of a date or time, 1 to 12."""
    return _of_time("month", as_column(column), zone=zone)


def day_of_month(column: ColumnLike, zone: Zone = None) -> Expr:
    """The day of the month of a date or time, 1 to 31."""
    return _of_time("day", as_column(column), zone=zone)


def day_of_week(column: ColumnLike, zone: Zone = None) -> Expr:
    """The day of the week of a date or time, 1 for Sunday to 7 for Saturday."""
    return _of_time("day_of_week", as_column(column), zone=zone)


def day_of_year(column: ColumnLike, zone: Zone = None) -> Expr:
    """The day of the year of a date or time, from 1."""
    return _of_time("day_of_year", as_column(column), zone=zone)


def week_of_year(column: ColumnLike, zone: Zone = None) -> Expr:
    """The week of ISO 8601 of a date or time, 1 to 53; its year is `iso_year`."""
    return _of_time("week", as_column(column), zone=zone)


def iso_year(column: ColumnLike, zone: Zone = None) -> Expr:
    """The year that the week of ISO 8601 of a date or time is in."""
    return _of_time("iso_year", as_column(column), zone=zone)


def hour_of_day(column: ColumnLike, zone: Zone = None) -> Expr:
    """The hour of a time, 0 to 23."""
    return _of_time("hour", as_column(column), zone=zone)


def minute(column: ColumnLike, zone: Zone = None) -> Expr:
    """The minute of a time, 0 to 59."""
    return _of_time("minute", as_column(column), zone=zone)


def second(column: ColumnLike, zone: Zone = None) -> Expr:
    """The second of a time, 0 to 59, without its fraction."""
    return _of_time("second", as_column(column), zone=zone)


def to_date(column: ColumnLike, zone: Zone = None) -> Expr:
    """The date of a time, or of text such as ``2026-03-29``."""
    return _of_time("to_date", as_column(column), zone=zone)


def to_timestamp(column: ColumnLike, zone: Zone = None) -> Expr:
    """The time of text in ISO 8601, and of a date or a time without a zone when a clock in ``zone`` shows it."""
    return _of_time("to_timestamp", as_column(column), zone=zone)


def from_utc(column: ColumnLike, zone: Zone = None) -> Expr:
    """What a clock in ``zone`` shows at a time, as a time without a zone."""
    return _of_time("from_utc", as_column(column), zone=zone)


@checked
def date_trunc(unit: str, column: ColumnLike, zone: Zone = None) -> Expr:
    """The begin of the year, quarter, month, week, day, hour, minute or second that a time lies in."""
    return _of_time("date_trunc", unit, as_column(column), zone=zone)


@checked
def date_format(column: ColumnLike, pattern: str, zone: Zone = None) -> Expr:
    """A time as text, by a pattern of ``yyyy``, ``MM``, ``dd``, ``HH``, ``mm``, ``ss``, signs and ``'text'``."""
    return _of_time("date_format", as_column(column), pattern, zone=zone)


def date_add(column: ColumnLike, days: ColumnLike | int) -> Expr:
    """The date so many days later."""
    return call("date_add", as_column(column), as_column(days))


def date_diff(end: ColumnLike, start: ColumnLike) -> Expr:
    """The days from ``start`` to ``end``."""
    return _of("date_diff", end, start)


def unix_micros(column: ColumnLike) -> Expr:
    """A time as microseconds since 1970."""
    return _of("unix_micros", column)


def timestamp_micros(column: ColumnLike) -> Expr:
    """The time that is so many microseconds after 1970 began."""
    return _of("timestamp_micros", column)


def xxhash64(column: ColumnLike) -> Expr:
    """A hash that is the same everywhere and in Spark: for samples such as ``fn.xxhash64("id") % 100 == 0``."""
    return _of("xxhash64", column)


def crc32(column: ColumnLike) -> Expr:
    """The checksum CRC-32 of text or bytes."""
    return _of("crc32", column)
