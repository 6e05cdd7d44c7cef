"""Settings of a manifest are printed as one writes them."""

from __future__ import annotations

from typing import Any

import pytest

from tidestate.operators import (
    after_count,
    count_window,
    every_processing_time,
    quantile,
    repeatedly,
    session,
    sliding,
    top_n,
    tumbling,
    windowed,
)
from tidestate.operators.describe.configuration import configuration_of
from tidestate.recovery.log.summary import setting_text
from tidestate.statestore.durations import spans_as_text

WINDOWS: list[tuple[Any, str]] = [
    (tumbling("1 hour"), 'tumbling("1 hour")'),
    (tumbling("1 hour", offset="5 minutes"), 'tumbling("1 hour", offset="5 minutes")'),
    (sliding("1 hour", "15 minutes"), 'sliding("1 hour", "15 minutes")'),
    (session("30 minutes"), 'session("30 minutes")'),
    (count_window(5, 2), "count(count=5, step=2)"),
]


@pytest.mark.parametrize(("windows", "text"), WINDOWS, ids=[text for _, text in WINDOWS])
def test_windows(windows: Any, text: str) -> None:
    described = windowed(event_time="t").window(windows).aggregate(top=top_n("v", 3, by="w"), q=quantile("v", 0.9))
    described = described.trigger(early=every_processing_time("10 seconds"), late=after_count(3))
    stored = spans_as_text(configuration_of(described))
    assert setting_text(stored["window"]) == text
    assert setting_text(stored["aggregates"]) == 'top=top_n("v", 3, by="w"), q=quantile("v", 0.9)'
    assert setting_text(stored["triggers"]).startswith('early=every_processing_time("10 seconds"), ')
    assert setting_text(["a", "b"]) == "a, b"


def test_composite_triggers() -> None:
    described = windowed(event_time="t").window(tumbling("1 hour")).trigger(when=repeatedly(after_count(3)))
    assert "repeatedly(after_count(3))" in setting_text(spans_as_text(configuration_of(described))["triggers"])
