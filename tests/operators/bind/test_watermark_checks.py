"""Watermarks that do not go with what they are of are refused when a description is bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.operators import sliding, tumbling
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.altered import altered
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.operators.progress.watermarks import BufferProgress
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("t", TIME), ("e", TIME), ("sh", "string"), ("k", "string"), ("o", "int64"), ("s", "int64"), ("m", TIME)]
)
CTIS = advance_time("drop", generation(5))
LASTING = tumbling("10 seconds", end="e")


def of(windows: Any, **about: Any) -> Runnable:
    made = windowed(event_time="t", key="k", offset="o").window(windows).aggregate(n=count())
    return made.advance_time(CTIS, end="e", **about)


def moved(duration: str | None) -> Runnable:
    first = altered(event_time="t", shift="1 second", end="e", duration=duration, offset="o", name="moved")
    first = first.advance_time(CTIS, end="e", shape_column="sh")
    return chain(first, windowed(event_time="t", name="windows").window(LASTING).aggregate(n=count()))


def merged() -> Runnable:
    made = merge(event_time="t", key="k", offset="o", shared=["e"]).window(LASTING).aggregate(n=count())
    return made.advance_time(CTIS, end="e", shape_column=("sh", None))


EDGES: dict[str, Callable[[], Runnable]] = {
    "shapes in a column": lambda: of(LASTING, shape_column="sh"),
    "sliding": lambda: of(sliding("10 seconds", "5 seconds", end="e"), shape_column="sh"),
    "all are edges": lambda: of(LASTING, shape="edge_start"),
    "passed on by another operator": lambda: moved(None),
    "of a side": merged,
}
TAKEN: dict[str, Callable[[], Runnable]] = {
    "intervals": lambda: of(LASTING, shape="interval"),
    "windows of starts": lambda: of(tumbling("10 seconds"), shape_column="sh"),
    "each as long as the other": lambda: moved("1 second"),
}


def bound(description: Any) -> Graph:
    schemas: Any = SCHEMA
    if hasattr(description, "sides"):
        schemas = description.schema(*[SCHEMA] * len(description.sides.names))
    return bind_graph(description, schemas)


@pytest.mark.parametrize("name", EDGES)
def test_windows_by_lifetime_take_no_edges(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        bound(EDGES[name]())
    assert refused.value.code == "edge-window"


@pytest.mark.parametrize("name", TAKEN)
def test_what_has_its_whole_lifetime_is_taken(name: str) -> None:
    graph = bound(TAKEN[name]())
    assert next(reversed(graph.plans.values())).watermarks.generator


def buffers(of_side: str) -> BufferProgress:
    return BufferProgress(origin=f"{of_side}o", sequence=f"{of_side}s", watermark=f"{of_side}m")


SIDED: dict[str, Callable[[], Any]] = {
    "join": lambda: join(event_time="t", on="k", within=("0 seconds", "10 seconds"), how="left"),
    "join by windows": lambda: join(event_time="t", on="k", window=tumbling("10 seconds")),
    "windows of each side": lambda: join(event_time="t", on="k", window=(tumbling("5 s"), None), retain="1 day"),
    "session join": lambda: session_join(event_time="t", on="k", gap="2 seconds"),
    "merge": lambda: merge(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count()),
}


@pytest.mark.parametrize("name", SIDED)
def test_buffers_of_one_side_do_not_hold_the_other(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        bound(SIDED[name]().watermark(buffers("left_")))
    assert refused.value.code == "watermark-sides"


def test_buffers_in_columns_of_all_sides_are_taken() -> None:
    (united,) = bound(union(event_time="t", sides=("left", "right")).watermark(buffers(""))).plans.values()
    shared = merge(event_time="t", key="k", shared=["o", "s", "m"]).window(tumbling("10 seconds"))
    (merged,) = bound(shared.aggregate(n=count()).watermark(buffers(""))).plans.values()
    assert united.watermarks.generator == merged.watermarks.generator == buffers("")
