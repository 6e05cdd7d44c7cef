"""The jobs that go on where the queries of `tests.children.native_queries` are killed, and their input."""

from __future__ import annotations

from collections.abc import Callable

from tests.helpers.spark_inputs import Event
from tidestate.agg import count, mean
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import sliding, tumbling
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import LateRule, Windowed, windowed
from tidestate.operators.describe.windows import Windows, session
from tidestate.trigger import each_batch

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
) -> Windowed:
    """A job of these windows, by default of ten seconds, which counts by default."""
    begun = windowed(event_time="t", key=key, watermark_delay=delay, name="adopted")
    begun = begun.window(kind or tumbling("10 seconds")).aggregate(**(aggregates or {"n": count()}))
    return begun.late("0 seconds", rule=rule, keep="id")


def _sums(kind: Windows) -> Windowed:
    return windows_of(kind, m=mean("v"), x=max_("v"), n=count(), s=sum_("v"))


JOBS: dict[str, Callable[[], Runnable]] = {
    "tumbling": lambda: _sums(tumbling("10 seconds")),
    "sliding": lambda: _sums(sliding("10 seconds", "5 seconds")),
    "updating": lambda: windows_of(key=None, count=count()).trigger(early=each_batch()),
    "session": lambda: _sums(session("4 seconds")),
    "distinct": lambda: deduplicated(
        event_time="t", on=["v", "k"], within="5 seconds", watermark_delay="5 seconds", name="adopted"
    ),
}


def sliding_job() -> Runnable:
    """For the command, which takes the name of a job."""
    return JOBS["sliding"]()
