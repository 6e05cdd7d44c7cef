"""The general window operator by itself, batch by batch, with Arrow's group_by of the same events as the peer.

The events of a batch get their windows, go through the step, and its changes into a memory store: nothing is durable.
The peer groups the same events by key and window, whose windows it is given: it keeps nothing and shows nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.operators import (
    RETRACTING,
    Windowed,
    after_count,
    after_watermark,
    any_of,
    count,
    count_window,
    every_element,
    max_,
    mean,
    or_finally,
    repeatedly,
    session,
    sliding,
    tumbling,
    windowed,
)
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.windows import Counted
from tidestate.operators.plan.classify import Intake
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.windows.assignment import assign_windows
from tidestate.operators.windows.counting import count_windows, number
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.sessions import merge_sessions
from tidestate.statestore.spec.changes import Applied
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.stores.memory import MemoryStore
from tools.bench.bids import JITTER_US, START_US

COLD = 2
RATE = 50_000
DELAY_US = 5_000_000
SCHEMA = pa.schema([("event_time", TIME), ("key", pa.int64()), ("price", pa.int64()), ("offset", pa.int64())])
SUMS: list[Any] = [([], "count_all"), ("price", "sum"), ("price", "max")]

Numbers = npt.NDArray[np.int64]


def bids(offset: str | None = None) -> Windowed:
    """What all of them compute."""
    delay = f"{DELAY_US} microseconds"
    job = windowed(event_time="event_time", key="key", watermark_delay=delay, name="bids", offset=offset)
    return job.late("0 seconds").aggregate(bids=count(), mean_price=mean("price"), best=max_("price"))


CASES: dict[str, Windowed] = {
    "sliding, early": bids().window(sliding("60 seconds", "30 seconds")).trigger(early=every_element()),
    "sessions": bids().window(session("2 seconds")),
    "sessions, retracting": bids()
    .window(session("2 seconds"))
    .trigger(early=every_element())
    .accumulation(RETRACTING),
    "counted": bids().window(count_window(10)),
    "early, retracting": bids()
    .window(tumbling("60 seconds"))
    .trigger(early=every_element())
    .accumulation(RETRACTING),
    "each second element": bids(offset="offset")
    .window(tumbling("60 seconds"))
    .trigger(early=after_count(2), per_element=True),
    "composite": bids()
    .window(tumbling("60 seconds"))
    .trigger(when=repeatedly(any_of(after_count(3), after_watermark()))),
    "composite that finishes": bids()
    .window(tumbling("60 seconds"))
    .trigger(when=or_finally(repeatedly(after_count(3)), after_watermark())),
}


def run(keys: Sequence[int], batch: int, batches: int, chosen: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """A row for each kind of window and number of keys."""
    for name in chosen or CASES:
        for distinct in keys:
            yield _row(f"{name}, {distinct:,} keys", CASES[name], distinct, batch, batches)


def _row(name: str, description: Windowed, keys: int, batch: int, batches: int) -> dict[str, Any]:
    plan = bind_plan(description, SCHEMA)
    assert isinstance(plan, WindowPlan)
    operator, ours, theirs = Operator(plan), [], []
    groups = panes = 0
    for place in range(COLD + batches):
        events = events_of(keys, batch, place)
        started = time.perf_counter()
        panes += operator.take(events)
        ours.append(time.perf_counter() - started)
        asked = _with_windows(plan, events)
        started = time.perf_counter()
        groups = asked.group_by(["key", "window"], use_threads=False).aggregate(SUMS).num_rows
        theirs.append(time.perf_counter() - started)
    mine, peers = median(ours[COLD:]), median(theirs[COLD:])
    return {
        "name": name,
        "events_per_s": round(batch / mine),
        "peer": "arrow group_by(key, window)",
        "peer_events_per_s": round(batch / peers),
        "ratio": round(peers / mine, 2),
        "groups_a_batch": groups,
        "panes": panes,
    }


@dataclass
class Operator:
    """A plan with its state and watermark."""

    plan: WindowPlan
    watermark: int | None = None
    sequence: int = 0

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.plan.tables)

    def take(self, events: pa.Table) -> int:
        """One batch; how many panes it shows."""
        before, self.sequence = self.watermark, self.sequence + 1
        times = events["event_time"].cast(pa.int64()).to_numpy()
        arriving = self.plan.arrive(events, times, Intake(before))
        self.watermark = max(before or BEGINNING_US, int(times.max()) - DELAY_US)
        moved = self.plan.step(self.store, arriving, StepTimes(before or BEGINNING_US, self.watermark))
        self.store.apply(moved.changes, Applied(self.sequence, str(self.sequence)))
        return int(moved.panes.num_rows)


def events_of(keys: int, batch: int, place: int) -> pa.Table:
    """Bids of one batch, nearly in the order of their times."""
    chance, span = np.random.default_rng([keys, place]), batch * 1_000_000 // RATE
    ordered = START_US + place * span + np.sort(chance.integers(0, span, batch))
    times = ordered - chance.integers(0, JITTER_US, batch)
    names, prices = chance.integers(0, keys, batch), chance.integers(1, 10_000, batch)
    return pa.table([times, names, prices, np.arange(place * batch, (place + 1) * batch)], schema=SCHEMA)


def _with_windows(plan: WindowPlan, events: pa.Table) -> pa.Table:
    """A row per event and window of this batch."""
    times = events["event_time"].cast(pa.int64()).to_numpy()
    index, windows, ends = assign_windows(plan.kind, times, events)
    if isinstance(plan.kind, Counted):
        nothing = pa.table({"key": pa.array([], pa.int64()), "count": pa.array([], pa.int64())})
        index, windows = count_windows(number(["key"], events, nothing), plan.kind.count, plan.kind.step)
    elif plan.sessions:
        bounds: dict[str, Any] = {"key": events["key"], "window_start": windows, "window_end": ends}
        windows = merge_sessions(["key"], pa.table(bounds)).owner
    return events.take(pa.array(index)).append_column("window", pa.array(windows))
