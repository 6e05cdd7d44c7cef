"""Moments of time as people write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pytest

from tidestate.statestore.durations import moment_us
from tidestate.statestore.errors import UsageError

DAY = 1_767_225_600_000_000


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
    ],
    ids=str,
)
def test_a_moment_in_any_form(moment: Any, expected: int | None) -> None:
    assert moment_us(moment) == expected


@pytest.mark.parametrize("moment", ["tomorrow", "", "5", True, 5.0, b"2026-01-01", object, timedelta(1)])
def test_what_is_no_moment(moment: Any) -> None:
    with pytest.raises(UsageError, match="moment"):
        moment_us(moment)
