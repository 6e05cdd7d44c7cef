"""`.explain()` says which reading of the specifications applies, and what chooses the other one."""

from __future__ import annotations

from typing import Any

import pytest

import tidestate as ts
from tidestate import agg, trigger

LATE = "# windows: late panes come with each batch; .trigger(late=trigger.batched()) gathers 10 seconds of them"
GROWS = '# windows: a session that grows leaves its earlier panes; .accumulation("retracting") takes them back'


def counted(window: Any, **stream: Any) -> ts.Aggregation:
    return ts.stream(event_time="t", **stream).group_by("k").window(window).aggregate(n=agg.count())


def comments(job: ts.OperatorStream) -> list[str]:
    return [line for line in job.explain().splitlines() if line.startswith("#")]


TUMBLING, SESSIONS = ts.tumbling("1 minute"), ts.sessions("1 minute")


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (counted(TUMBLING), [LATE]),
        (counted(TUMBLING).trigger(late=trigger.batched()), []),
        (counted(TUMBLING).trigger(late=trigger.each_batch()), [LATE]),
        (counted(TUMBLING).trigger(early=trigger.each_element()), []),
        (counted(TUMBLING).trigger(late=None), []),
        (counted(TUMBLING).allowed_lateness("0 seconds"), []),
        (counted(ts.count_windows(3)), []),
        (counted(SESSIONS), [LATE, GROWS]),
        (counted(SESSIONS).accumulation("retracting"), [LATE]),
        (counted(SESSIONS).allowed_lateness("0 seconds"), []),
        (ts.stream(event_time="t").deduplicate("k", within="1 minute"), []),
    ],
)
def test_comments(job: ts.OperatorStream, expected: list[str]) -> None:
    assert comments(job) == expected


def test_each_operator_of_a_graph_is_named() -> None:
    first = counted(TUMBLING).named("minutes")
    hours = first.timed_by("window_end").group_by("k").window(ts.tumbling("1 hour")).aggregate(n=agg.sum("n"))
    lines = comments(hours.named("hours").allowed_lateness("0 seconds"))
    assert lines == [LATE.replace("windows:", "minutes:")]
