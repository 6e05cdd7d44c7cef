"""What is kept, as people write it."""

from datetime import timedelta
from typing import Any

import pytest

from tidestate.operators import CheckpointRetention
from tidestate.statestore.errors import UsageError

DAY_US = 24 * 3_600_000_000
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "retention-none"),
    "a grace alone": ({"grace": "1 day"}, "retention-none"),
    "no checkpoint": ({"newest": 0}, "retention-value"),
    "True": ({"newest": True}, "retention-value"),
    "text for a number": ({"newest": "5"}, "retention-value"),
    "a negative age": ({"age": "-1 s"}, "retention-value"),
    "a negative age of panes": ({"panes": timedelta(seconds=-1)}, "retention-value"),
    "a negative grace": ({"newest": 1, "grace": "-1 s"}, "retention-value"),
    "an age that is no span": ({"age": "soon"}, "span"),
    "a number for an age": ({"age": 5}, "span"),
    "no grace": ({"newest": 1, "grace": None}, "span"),
}


def test_spans_are_taken_as_people_write_them() -> None:
    kept = CheckpointRetention(newest=100, age="7d", panes=timedelta(days=30), grace="PT90M")
    assert (kept.age_us, kept.panes_us, kept.grace_us) == (7 * DAY_US, 30 * DAY_US, DAY_US // 16)
    assert kept == CheckpointRetention(newest=100, age=timedelta(days=7), panes="30 days", grace="1.5 hours")
    usual = CheckpointRetention(newest=1)
    assert (usual.age_us, usual.panes_us, usual.grace_us) == (None, None, DAY_US // 24)


def test_it_is_printed_as_it_is_written() -> None:
    assert repr(CheckpointRetention(newest=50, age="48h")) == "CheckpointRetention(newest=50, age='2 days')"
    assert repr(CheckpointRetention(newest=50, grace="60 min")) == "CheckpointRetention(newest=50)"
    whole = CheckpointRetention(newest=1, age="90m", panes="35 us", grace="0s")
    text = "CheckpointRetention(newest=1, age='1 hour 30 minutes', panes='35 microseconds', grace='0 seconds')"
    assert repr(whole) == text
    assert eval(text) == whole


@pytest.mark.parametrize(("settings", "code"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_retention_is_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        CheckpointRetention(**settings)
    assert refused.value.code == code
