"""Streams of events and settings for the windowed computation, small and nasty, as Hypothesis strategies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st

import tidestate as ts
from tests.twins.naive import Event, Setting
from tidestate import Aggregation, agg
from tidestate.operators.describe.runs import JobHook
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.engine.job import no_job_hook
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import StoreConfig

SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("k", pa.string()),
        ("j", pa.int64()),
        ("v", pa.int64()),
        ("x", pa.float64()),
    ]
)
KEYS: tuple[tuple[str, ...], ...] = ((), ("k",), ("k", "j"))
Batch = list[Event]


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    """Tumbling windows, sliding ones, and slides that do not divide the size or leave gaps."""
    size = draw(st.sampled_from([1, 3, 5, 6, 8, 10, 12]))
    slide = draw(st.sampled_from([size, size, size, 1, 2, 3, 4, 6, 9]))
    return Setting(
        size,
        slide,
        offset=draw(st.sampled_from([0, 0, 1, -5, 20])),
        delay=draw(st.sampled_from([0, 0, 1, 8])),
        allowed=draw(st.sampled_from([0, 7, 20, 30, 60])),
        mode=draw(st.sampled_from(["accumulating", "discarding", "retracting", "retracting"])),
        key=draw(st.sampled_from(KEYS)),
    )


def events(base: int) -> st.SearchStrategy[Event]:
    """An event around ``base``; quarters add up exactly in any order."""
    behind = st.sampled_from([*range(31), *range(12), *range(12)])
    return st.builds(
        Event,
        time=behind.map(lambda late: None if late == 30 else base - late),
        k=st.sampled_from(["a"] * 9 + ["b", "b", "é", "", None]),
        j=st.sampled_from([0] * 9 + [1, 2**40, None]),
        v=st.none() | st.integers(-5, 5),
        x=st.none() | st.integers(-9, 9).map(lambda n: n / 4),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    """A few batches that drift forward in time, from before 1970 on."""
    steps = draw(st.lists(st.sampled_from([0, 1, 3, 5, 10, 20]), min_size=2, max_size=6))
    base, made = -20, []
    for step in steps:
        base += step
        made.append(draw(st.lists(events(base), min_size=draw(st.sampled_from([0, 4, 8])), max_size=12)))
    return made


def arrow(batch: Sequence[Event]) -> pa.Table:
    """Events as the runner takes them."""
    columns = [pa.array([event[i] for event in batch], field.type) for i, field in enumerate(SCHEMA)]
    return pa.table(columns, schema=SCHEMA)


def description(setting: Setting) -> Aggregation:
    """The computation of `tests.twins.naive` in the project's own words."""
    size, slide, offset = (timedelta(microseconds=n) for n in (setting.size, setting.slide, setting.offset))
    return (
        ts.stream(event_time="time", watermark_delay=timedelta(microseconds=setting.delay))
        .group_by(setting.key)
        .window(ts.sliding(size, slide, offset=offset, strict=False))
        .aggregate(
            n=agg.count(),
            counted=agg.count("v"),
            total=agg.sum("v"),
            high=agg.max("v"),
            low=agg.min("x"),
            weight=agg.sum("x"),
            average=agg.mean("x"),
        )
        .allowed_lateness(timedelta(microseconds=setting.allowed), ledger_columns=tuple(SCHEMA.names))
        .accumulation(setting.mode)
    )


def run(
    setting: Setting,
    stream: Sequence[Batch],
    root: Path | str,
    store: StoreConfig,
    partitions: int,
    hook: JobHook = no_job_hook,
) -> pa.Table:
    """The real thing over ``stream``, to the end."""
    job = StandaloneRunner(description(setting).graph.description, str(root), store, Sinks(), partitions, hook)
    return job.run([arrow(batch) for batch in stream], drain=True)
