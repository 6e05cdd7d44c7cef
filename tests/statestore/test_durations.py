"""Spans and moments of time as people write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment, Span, clock_us, moment_us, span_us, text_of
from tidestate.statestore.errors import UsageError

DAY = 1_767_225_600_000_000
MINUTE = 60_000_000
SPELLINGS = {
    1: ["us", "microsecond", "Microseconds"],
    1_000: ["ms", "millisecond", "milliseconds"],
    1_000_000: ["s", "sec", "secs", "second", "SECONDS"],
    MINUTE: ["m", "min", "mins", "minute", "minutes"],
    60 * MINUTE: ["h", "hr", "hrs", "Hour", "hours"],
    1_440 * MINUTE: ["d", "D", "day", "days"],
    10_080 * MINUTE: ["w", "week", "Weeks"],
}
LETTERS = {10_080 * MINUTE: "W", 1_440 * MINUTE: "D", 60 * MINUTE: "H", MINUTE: "M", 1_000_000: "S"}
COUNTS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.decimals(0, 10**4, places=3, allow_nan=False).map(str),
    st.sampled_from(["1.5", "0.25", ".5", "007", "0.1250000000", "0.0000001"]),
)


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ("10m", 10 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1.5 hours", 90 * MINUTE),
        ("1.5h", 90 * MINUTE),
        ("2d12h", 3_600 * MINUTE),
        ("1 hour, 30 minutes", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        ("0.000001 s", 1),
        ("PT10M", 10 * MINUTE),
        ("P1DT2H30M", 1_590 * MINUTE),
        ("P1W", 10_080 * MINUTE),
        ("PT0.5S", 500_000),
        ("PT0,5S", 500_000),
        ("P0Y0M1D", 1_440 * MINUTE),
        ("pt36h", 2_160 * MINUTE),
        ("-PT10M", -10 * MINUTE),
        ("-5 minutes", -5 * MINUTE),
        ("-1h30m", -90 * MINUTE),
        ("-1 hour 30 minutes", -90 * MINUTE),
        ("-1 hour -30 minutes", -90 * MINUTE),
        (np.timedelta64(10, "m"), 10 * MINUTE),
        (np.timedelta64(5_000, "ns"), 5),
        (np.timedelta64(-3, "W"), -30_240 * MINUTE),
        (pd.Timedelta("1h30m"), 90 * MINUTE),
        (pd.Timedelta(-1, unit="us"), -1),
    ],
    ids=repr,
)
def test_a_span_in_any_form(span: Any, expected: int) -> None:
    assert span_us(span) == expected


@pytest.mark.parametrize(
    ("span", "why"),
    [
        ("1 month", "no fixed length"),
        ("2 years", "no fixed length"),
        ("1y", "no fixed length"),
        ("P1M", "no fixed length"),
        ("P1Y2DT3H", "no fixed length"),
        (np.timedelta64(1, "M"), "no fixed length"),
        ("10M", "months or minutes"),
        ("1 hour -30 minutes", "minus sign must come before"),
        ("0.0000001 s", "whole microseconds"),
        ("0.5 us", "whole microseconds"),
        ("PT0.0000001S", "whole microseconds"),
        (f"0.{'0' * 50}1 s", "whole microseconds"),
        (pd.Timedelta(1, unit="ns"), "whole microseconds"),
        (pd.Timedelta(-1, unit="ns"), "whole microseconds"),
        (np.timedelta64(1_001, "ns"), "whole microseconds"),
        (np.timedelta64(5), "must be text"),
        (np.timedelta64("NaT"), "must be text"),
        (np.timedelta64(2**62, "s"), "too long|whole"),
        (np.int64(5), "must be text"),
        ("P", "must be written like"),
        ("PT", "must be written like"),
        ("P1DT", "must be written like"),
        ("PT-1H", "must be written like"),
        ("P1H", "must be written like"),
        ("1h30", "must be written like"),
        ("1..5 h", "must be written like"),
        ("1,5 h", "must be written like"),
        ("1e3 s", "must be written like"),
        ("\u0661 s", "must be written like"),
        ("1 hour and 5 s", "must be written like"),
    ],
    ids=repr,
)
def test_what_is_no_span_says_why(span: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        span_us(span)
    assert refused.value.code == "span"


@given(
    parts=st.lists(
        st.tuples(COUNTS, st.sampled_from(sorted(SPELLINGS)), st.integers(0, 4), st.sampled_from(["", " ", ", "])),
        min_size=1,
        max_size=4,
    ),
    space=st.sampled_from(["", " ", "  "]),
    minus=st.booleans(),
)
def test_counts_with_units_are_their_sum(parts: list[tuple[str, int, int, str]], space: str, minus: bool) -> None:
    pieces = [
        f"{count}{space}{SPELLINGS[unit][spelling % len(SPELLINGS[unit])]}{end}"
        for count, unit, spelling, end in parts
    ]
    amounts = [Fraction(count if count[0] != "." else f"0{count}") * unit for count, unit, _, _ in parts]
    text = "-" * minus + "".join(pieces)
    if all(amount.denominator == 1 for amount in amounts):
        assert span_us(text) == sum(amounts) * (-1 if minus else 1)
    else:
        with pytest.raises(UsageError, match="whole microseconds"):
            span_us(text)


@given(st.integers(-(2**62), 2**62))
def test_every_form_of_a_span_is_the_same(span: int) -> None:
    sign, seconds = "-" * (span < 0), Decimal(abs(span)).scaleb(-6)
    units = [(size, letter) for size, letter in LETTERS.items() if letter != "W"]
    rest, iso = abs(span), f"{sign}P"
    for size, letter in units[:-1]:
        count, rest = divmod(rest, size)
        iso += f"{'T' if letter == 'H' else ''}{count}{letter}"
    forms: list[Any] = [
        text_of(span),
        f"{sign}{seconds:f}s",
        f"{sign}{seconds:f} seconds",
        f"{sign}PT{seconds:f}S",
        f"{iso}{Decimal(rest).scaleb(-6):f}S",
        np.timedelta64(span, "us"),
        timedelta(microseconds=span),
    ]
    if abs(span) < 2**63 // 1_000:
        forms += [pd.Timedelta(span, unit="us"), np.timedelta64(span * 1_000, "ns")]
    assert {repr(form): span_us(form) for form in forms} == {repr(form): span for form in forms}


@given(st.datetimes(datetime(1678, 1, 1), datetime(2262, 1, 1)), st.sampled_from(["T", " "]))
def test_every_form_of_a_moment_is_the_same(moment: datetime, between: str) -> None:
    expected = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    eastern = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=5, minutes=30)))
    forms: list[Any] = [
        moment,
        eastern,
        moment.isoformat(between),
        f"{moment.isoformat(between)}Z",
        eastern.isoformat(between),
        f" {moment.isoformat()} ",
        f"{expected} us",
        pd.Timestamp(moment),
        pd.Timestamp(eastern),
        np.datetime64(moment),
        np.datetime64(moment, "ns"),
        np.int64(expected),
    ]
    assert {repr(form): moment_us(form) for form in forms} == {repr(form): expected for form in forms}


@given(st.dates())
def test_a_day_is_its_midnight(day: date) -> None:
    expected = (day - date(1970, 1, 1)).days * 86_400_000_000
    assert [moment_us(form) for form in (day, day.isoformat(), np.datetime64(day))] == [expected] * 3


def test_public_functions_take_every_form() -> None:
    @checked
    def door(every: int | Span = 1, moment: Moment | None = None, count: int = 1, since: int | str | date = 0) -> str:
        return "open"

    for span in ("10m", timedelta(1), np.timedelta64(1, "h"), pd.Timedelta("1h")):
        assert door(every=span) == "open"
    for moment in (
        "2026-01-01",
        date(2026, 1, 1),
        np.datetime64("2026-01-01"),
        pd.Timestamp(5000),
        np.int64(5),
    ):
        assert door(moment=moment, since=moment) == "open"
    with pytest.raises(UsageError, match="argument"):
        door(count=np.timedelta64(1, "h"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (None, None),
        (5, 5),
        (-5, -5),
        ("2026-01-01", DAY),
        ("2026-01-01T10:00", DAY + 36_000_000_000),
        ("2026-01-01T10:00Z", DAY + 36_000_000_000),
        ("2026-01-01T10:00+02:00", DAY + 28_800_000_000),
        (date(2026, 1, 1), DAY),
        (datetime(2026, 1, 1), DAY),
        (datetime(2026, 1, 1, tzinfo=UTC), DAY),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-1))), DAY + 3_600_000_000),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (pd.Timestamp("2026-01-01", tz="UTC"), DAY),
        ("2026-01-01 10:00", DAY + 36_000_000_000),
        ("20260101T1000Z", DAY + 36_000_000_000),
        ("2026-01-01T00:00:00.000001000Z", DAY + 1),
        ("9223372036854775807 us", 2**63 - 1),
        (np.datetime64("2026-01-01"), DAY),
        (np.datetime64("2026"), DAY),
    ],
    ids=str,
)
def test_a_moment_in_any_form(moment: Any, expected: int | None) -> None:
    assert moment_us(moment) == expected


@pytest.mark.parametrize(
    "moment",
    [
        *("tomorrow", "", "5", "9223372036854775808 us", "2026-01-01T00:00:00.0000001Z", True, 5.0, b"2026-01-01"),
        *(object, timedelta(1), np.timedelta64(1, "s"), np.timedelta64(1), np.datetime64("NaT"), np.bool_(True)),
        *(2**63, -(2**63) - 1, 10**30, pd.NaT, pd.Timestamp(1), np.datetime64(1, "ns"), np.datetime64(2**62, "s")),
    ],
    ids=repr,
)
def test_what_is_no_moment(moment: Any) -> None:
    with pytest.raises(UsageError, match="moment"):
        moment_us(moment)


@pytest.mark.parametrize("clock", [2**62 + 1, -(2**62) - 1, 2**63 - 1, 10**19])
def test_a_clock_is_far_from_the_ends_of_64_bits(clock: int) -> None:
    assert clock_us("2026-01-31") == moment_us("2026-01-31")
    assert [clock_us(2**62), clock_us(None)] == [2**62, None]
    with pytest.raises(UsageError, match="moment"):
        clock_us(clock)
