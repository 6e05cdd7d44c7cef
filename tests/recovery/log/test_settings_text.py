"""Settings of a manifest are printed as one writes them."""

from __future__ import annotations

from typing import Any

import pytest

import tidestate as ts
from tidestate import agg, trigger
from tidestate.operators.describe.configuration import configuration_of
from tidestate.recovery.log.summary import setting_text
from tidestate.statestore.durations import spans_as_text

WINDOWS: list[tuple[Any, str]] = [
    (ts.tumbling("1 hour"), 'tumbling("1 hour")'),
    (ts.tumbling("1 hour", offset="5 minutes"), 'tumbling("1 hour", offset="5 minutes")'),
    (ts.sliding("1 hour", "15 minutes"), 'sliding("1 hour", "15 minutes")'),
    (ts.sessions("30 minutes"), 'session("30 minutes")'),
    (ts.count_windows(5, 2), "count(count=5, step=2)"),
]


@pytest.mark.parametrize(("windows", "text"), WINDOWS, ids=[text for _, text in WINDOWS])
def test_windows(windows: Any, text: str) -> None:
    described = (
        ts.stream(event_time="t")
        .group_by()
        .window(windows)
        .aggregate(top=agg.top_n("v", 3, by="w"), q=agg.quantile("v", 0.9))
    )
    described = described.trigger(early=trigger.every_processing_time("10 seconds"), late=trigger.after_count(3))
    stored = spans_as_text(configuration_of(described.graph.description))
    assert setting_text(stored["window"]) == text
    assert setting_text(stored["aggregates"]) == 'top=top_n("v", 3, by="w"), q=quantile("v", 0.9)'
    assert setting_text(stored["triggers"]).startswith('early=every_processing_time("10 seconds"), ')
    assert setting_text(["a", "b"]) == "a, b"


def test_composite_triggers() -> None:
    grouped = ts.stream(event_time="t").group_by().window(ts.tumbling("1 hour"))
    described = grouped.aggregate(n=agg.count()).trigger(when=trigger.repeatedly(trigger.after_count(3)))
    assert "repeatedly(after_count(3))" in setting_text(
        spans_as_text(configuration_of(described.graph.description))["triggers"]
    )
