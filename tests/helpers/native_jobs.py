"""The jobs that go on where the queries of `tests.children.native_queries` are killed, and their input."""

from __future__ import annotations

from collections.abc import Callable

import tidestate as ts
from tests.helpers.spark_inputs import Event
from tidestate import Aggregation, OperatorStream, agg, trigger
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe.windowed import LateRule
from tidestate.operators.describe.windows import Windows

INPUT: list[list[Event]] = [
    [(1, "a", 1), (2, "b", 2), (8, "a", 3), (9, "a", 3)],
    [(12, "a", 4), (13, "b", 5), (7, "b", None), (18, "a", 6)],
    [(21, "a", 7), (22, "b", 8), (14, "a", 9)],
    # The watermark is 13 s, and 17 s after the file before: 9 is late, 13 only as a row, 12.5 and 15 not yet.
    [(15, "a", 10), (16, "c", 11), (9, "a", 12), (24, "a", 13), (19, "b", 13), (12.5, "b", 5), (13, "d", 20)],
    [(26, "a", 14), (31, "b", 15), (21, "b", 8)],
    [(100, "z", 1)],
]
"""A file for each batch; the last one closes every window before it."""


def windows_of(
    kind: Windows | None = None,
    key: str | None = "k",
    delay: str = "5 seconds",
    rule: LateRule = "window",
    **aggregates: Aggregate,
) -> Aggregation:
    """A job of these windows, by default of ten seconds, which counts by default."""
    begun = ts.stream(event_time="t", watermark_delay=delay).group_by(*([key] if key else []))
    begun = (
        begun.window(kind or ts.tumbling("10 seconds"))
        .aggregate(**(aggregates or {"n": agg.count()}))
        .named("adopted")
    )
    return begun.allowed_lateness("0 seconds", rule=rule, ledger_columns="id")


def _sums(kind: Windows) -> Aggregation:
    return windows_of(kind, m=agg.mean("v"), x=agg.max("v"), n=agg.count(), s=agg.sum("v"))


JOBS: dict[str, Callable[[], OperatorStream]] = {
    "tumbling": lambda: _sums(ts.tumbling("10 seconds")),
    "sliding": lambda: _sums(ts.sliding("10 seconds", "5 seconds")),
    "updating": lambda: windows_of(key=None, count=agg.count()).trigger(early=trigger.each_batch()),
    "session": lambda: _sums(ts.sessions("4 seconds")),
    "distinct": lambda: ts.stream(event_time="t", watermark_delay="5 seconds").deduplicate(
        ["v", "k"], within="5 seconds", name="adopted"
    ),
}


def sliding_job() -> OperatorStream:
    """For the command, which takes the name of a job."""
    return JOBS["sliding"]()


def tumbling_job() -> OperatorStream:
    """As `sliding_job`, with windows of their own."""
    return JOBS["tumbling"]()


def counting_job() -> OperatorStream:
    """As `sliding_job`, over a query that counts and sums."""
    return windows_of(n=agg.count(), s=agg.sum("v"))
