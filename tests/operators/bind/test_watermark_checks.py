"""Watermarks that do not go with what they are of are refused when a description is bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import Aggregation, OperatorStream, Stream, agg, trigger, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        *(("t", TIME), ("e", TIME), ("sh", "string"), ("k", "string"), ("o", "int64"), ("s", "int64"), ("m", TIME)),
        ("l", pa.list_(pa.int64())),
    ]
)
CTIS = watermark.cti_settings("drop", generate=watermark.generate_ctis(5))
LASTING = ts.tumbling("10 seconds", of="lifetime")


def of(windows: Any, **about: Any) -> OperatorStream:
    events = ts.stream(event_time="t", offset="o", lifetime=ts.lifetime("e", **about))
    return events.watermark(watermark.ctis(CTIS)).group_by("k").window(windows).aggregate(n=agg.count())


def moved(duration: str | None) -> OperatorStream:
    events = ts.stream(event_time="t", offset="o", lifetime=ts.lifetime("e", shape_column="sh"))
    first = events.watermark(watermark.ctis(CTIS)).shift_time("1 second", duration=duration, end="e", name="moved")
    return first.group_by().window(LASTING).aggregate(n=agg.count()).named("windows")


def merged() -> OperatorStream:
    left, right = (
        ts.stream(event_time="t", offset="o", lifetime=lifetime).watermark(watermark.ctis(CTIS))
        for lifetime in (ts.lifetime("e", shape_column="sh"), ts.lifetime("e"))
    )
    grouped = ts.merge(left=left, right=right).sharing("e").group_by("k")
    return grouped.window(LASTING).aggregate(n=agg.count())


def edges(windows: Any = LASTING, *, key: str = "k", **results: Any) -> Aggregation:
    """Windows by lifetime of rows that may be edges."""
    events = ts.stream(event_time="t", offset="o", lifetime=ts.lifetime("e", shape_column="sh"))
    windows = events.watermark(watermark.ctis(CTIS)).group_by(key).window(windows)
    return windows.aggregate(n=agg.count(), **results)


REFUSED: dict[str, Callable[[], OperatorStream]] = {
    "passed on by another operator": lambda: moved(None),
    "of a side": merged,
    "early panes": lambda: edges().trigger(early=trigger.each_batch()),
    "panes per element": lambda: edges().trigger(early=trigger.each_element()),
    "composite": lambda: edges().trigger(when=trigger.repeatedly(trigger.after_count(2))),
    "lateness": lambda: edges().allowed_lateness("1 second"),
    "late by windows": lambda: edges().allowed_lateness("0 seconds", rule="window"),
    "in order": lambda: edges().in_order(),
    "messages": lambda: edges().messages(),
    "a key that differs": lambda: edges(key="e"),
    "a key of shapes": lambda: edges(key="sh"),
    "values that do not compare": lambda: edges(longest=agg.count("l")),
}
TAKEN: dict[str, Callable[[], OperatorStream]] = {
    "intervals": lambda: of(LASTING, shape="interval"),
    "windows of starts": lambda: of(ts.tumbling("10 seconds"), shape_column="sh"),
    "each as long as the other": lambda: moved("1 second"),
    "edges": edges,
    "sliding": lambda: edges(ts.sliding("10 seconds", "5 seconds", of="lifetime")),
    "all are edges": lambda: of(LASTING, shape="edge_start"),
    "kept": lambda: edges().retain_windows("1 hour").accumulation("retracting"),
}


def bound(job: OperatorStream) -> Graph:
    description, schemas = job.graph.description, SCHEMA
    if isinstance(description, Sided):
        schemas = description.sides.schema(dict.fromkeys(description.sides.names, SCHEMA))
    return bind_graph(description, schemas)


@pytest.mark.parametrize("name", REFUSED)
def test_windows_by_lifetime_of_edges_are_refused_where_they_are_not_exact(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        bound(REFUSED[name]())
    assert refused.value.code == "edge-window"


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_exact_is_taken(name: str) -> None:
    graph = bound(TAKEN[name]())
    assert next(reversed(graph.plans.values())).input.watermarks.generator


def buffers(of_side: str) -> BufferProgress:
    return watermark.buffers(origin=f"{of_side}o", sequence=f"{of_side}s", watermark=f"{of_side}m")


LEFT_ALONE = watermark.over(buffers("left_"))
SIDED: dict[str, Callable[[Stream, Stream], OperatorStream]] = {
    "join": lambda left, right: left.join(
        right, on="k", within=("0 seconds", "10 seconds"), how="left", watermark=LEFT_ALONE
    ),
    "join by windows": lambda left, right: left.join(
        right, on="k", window=ts.tumbling("10 seconds"), watermark=LEFT_ALONE
    ),
    "windows of each side": lambda left, right: left.join(
        right,
        on="k",
        left=ts.side(window=ts.tumbling("5 s")),
        sides=ts.side(retain="1 day"),
        watermark=LEFT_ALONE,
    ),
    "session join": lambda left, right: left.join_sessions(right, on="k", gap="2 seconds", watermark=LEFT_ALONE),
    "merge": lambda left, right: (
        ts.merge(left=left, right=right)
        .watermark(LEFT_ALONE)
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
    ),
}


@pytest.mark.parametrize("name", SIDED)
def test_buffers_over_all_sides_in_columns_of_one_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        bound(SIDED[name](ts.stream(event_time="t"), ts.stream(event_time="t")))
    assert refused.value.code == "watermark"


def test_buffers_in_columns_of_all_sides_are_taken() -> None:
    (united,) = bound(
        ts.union(
            left=ts.stream(event_time="t"), right=ts.stream(event_time="t"), watermark=watermark.over(buffers(""))
        )
    ).plans.values()
    shared = (
        ts.merge(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"))
        .sharing("o", "s", "m")
        .watermark(buffers(""))
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
    )
    (merged,) = bound(shared.aggregate(n=agg.count())).plans.values()
    assert united.input.watermarks.generator == merged.input.watermarks.generator == buffers("")
