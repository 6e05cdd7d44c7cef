"""The standalone runner, each batch with its checkpoint, against the same computation in Arrow or NumPy alone.

Both take each batch in turn, so that other work on the machine hits both. Batches are made before the clock starts.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tidestate as ts
from tidestate import agg
from tidestate.operators.engine.tasks import run_partition
from tidestate.statestore.spec.changes import KeyBound, Lookup, Ranges
from tidestate.statestore.spec.store import StateStore, TableView
from tidestate.statestore.stores.opening import open_store
from tidestate.stores import Parquet
from tools.bench.bids import Bids

DELAY_US = 60_000_000
SIZE_US, GAP_US = 10_000_000, 2_000_001
COLD = 3
SPAN_S = 2
"""The event time of a batch of a long run: windows of 10 s, 60 s behind, are all there after 35 batches."""
KEY_APART_US = 1 << 43
"""More than the event time of any run, so that times of different keys do not meet."""
STORE = Parquet(max_levels=6)

Numbers = npt.NDArray[np.int64]
Totals = tuple[int, int, int, float]
"""Of panes: how many, and the sums of count, maximum and mean."""


def bids(gap_us: int | None = None, delay_us: int = DELAY_US) -> ts.Aggregation:
    """Tumbling windows of ten seconds, or sessions."""
    by_key = ts.stream(event_time="event_time", watermark_delay=f"{delay_us} microseconds").group_by("key")
    window = ts.tumbling(f"{SIZE_US} microseconds") if gap_us is None else ts.sessions(f"{gap_us} microseconds")
    made = by_key.window(window).aggregate(bids=agg.count(), middle=agg.mean("price"), best=agg.max("price"))
    return made.allowed_lateness("0 seconds").named("bids")


class Peer(Protocol):
    """Computes the windows of one batch after another."""

    def take(self, events: pa.Table) -> None:
        """Process a batch of events."""

    def totals(self) -> Totals:
        """Of all panes so far. Not timed."""


@dataclass
class ArrowAlone:
    """Tumbling windows by ``group_by``: partials of each batch, combined once their window is due.

    As durable as ours: each batch writes its partials as an Arrow file, its panes as a Parquet file, and a file that
    names both, with fsync.
    """

    folder: Path
    _waiting: list[pa.Table] = field(default_factory=list)
    _newest_us: int = 0
    _panes: list[pa.Table] = field(default_factory=list)

    def take(self, events: pa.Table) -> None:
        times = events["event_time"].cast(pa.int64()).to_numpy()
        starts = pa.array(times // SIZE_US * SIZE_US)
        grouped = pa.table([events["key"], starts, events["price"]], names=["key", "start", "price"])
        sums = [("price", "count"), ("price", "sum"), ("price", "max")]
        partials = grouped.group_by(["key", "start"], use_threads=False).aggregate(sums)
        self._waiting.append(partials)
        self._newest_us = max(self._newest_us, int(times.max()))
        bound = pa.scalar(self._newest_us - DELAY_US - SIZE_US)
        due = [part.filter(pc.less_equal(part["start"], bound)) for part in self._waiting]
        kept = [part.filter(pc.greater(part["start"], bound)) for part in self._waiting]
        self._waiting = [part for part in kept if part.num_rows]
        combined = [("price_count", "sum"), ("price_sum", "sum"), ("price_max", "max")]
        panes = pa.concat_tables(due).group_by(["key", "start"], use_threads=False).aggregate(combined)
        mean_price = pc.divide(panes["price_sum_sum"].cast(pa.float64()), panes["price_count_sum"])
        self._panes.append(panes.append_column("middle", mean_price))
        self._write(partials, self._panes[-1])

    def totals(self) -> Totals:
        panes = pa.concat_tables(self._panes)
        counts, best, middle = (panes[name].to_numpy() for name in ("price_count_sum", "price_max_max", "middle"))
        return panes.num_rows, int(counts.sum()), int(best.sum()), float(middle.sum())

    def _write(self, partials: pa.Table, panes: pa.Table) -> None:
        base = f"{self.folder}/{len(self._panes)}"
        with pa.OSFile(f"{base}.arrow", "wb") as sink, pa.ipc.new_file(sink, partials.schema) as writer:
            writer.write_table(partials)
        names = [f"{base}.arrow"]
        if panes.num_rows:
            pq.write_table(panes, f"{base}.parquet")
            names.append(f"{base}.parquet")
        Path(f"{base}.json").write_text("\n".join(names))
        for name in (*names, f"{base}.json"):
            with open(name, "rb+") as file:
                os.fsync(file.fileno())


@dataclass
class NumPyAlone:
    """Sessions of each batch by itself: sort, gaps, reduce. What meets across batches is merged at the end."""

    gap_us: int = GAP_US
    _found: list[Sequence[Numbers]] = field(default_factory=list)

    def take(self, events: pa.Table) -> None:
        times, price = events["event_time"].cast(pa.int64()).to_numpy(), events["price"].to_numpy()
        ones = np.ones(len(times), np.int64)
        self._found.append(self._merged([events["key"].to_numpy(), times, times, ones, price, price]))

    def totals(self) -> Totals:
        columns = self._merged([np.concatenate(parts) for parts in zip(*self._found, strict=True)])
        due = columns[2] + self.gap_us <= columns[2].max() - DELAY_US
        counts, totals, best = (column[due] for column in columns[3:])
        return int(due.sum()), int(counts.sum()), int(best.sum()), float((totals / counts).sum())

    def _merged(self, columns: Sequence[Numbers]) -> list[Numbers]:
        """Sessions from rows of key, first and last time, count, sum and maximum."""
        order = np.lexsort((columns[1], columns[0]))
        key, first, last, counts, totals, best = (column[order] for column in columns)
        # Sessions of different batches may overlap: the end so far counts, of this key alone.
        ends = np.maximum.accumulate(last + (key - key[:1]) * KEY_APART_US) - (key - key[:1]) * KEY_APART_US
        apart = np.ones(len(key), bool)
        apart[1:] = (key[1:] != key[:-1]) | (first[1:] - ends[:-1] >= self.gap_us)
        starts = np.flatnonzero(apart)
        sums = [np.add.reduceat(column, starts) for column in (counts, totals)]
        most = [np.maximum.reduceat(column, starts) for column in (last, best)]
        return [key[starts], first[starts], most[0], *sums, most[1]]


@dataclass(frozen=True)
class Race:
    """What both took for each warm batch, in seconds, and whether their panes are equal."""

    batch: int
    ours_s: list[float]
    peer_s: list[float]
    equal: bool
    panes: int

    @property
    def events_per_s(self) -> int:
        """Ours, over all warm batches."""
        return round(self.batch * len(self.ours_s) / sum(self.ours_s))

    @property
    def peer_events_per_s(self) -> int:
        """The events a second of the peer, over all of its batches."""
        return round(self.batch * len(self.peer_s) / sum(self.peer_s))

    @property
    def median_ratio(self) -> float:
        """The peer's median to ours."""
        return round(median(self.peer_s) / median(self.ours_s), 2)


def race(described: ts.Aggregation, sessions: bool, stream: Bids) -> Race:
    """Both over the same batches, in turn; the last batch, which closes windows, is not timed."""
    batches = [stream.table(number) for number in range(stream.batches + 1)]
    ours_s, peer_s, panes = [], [], []
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        peer: Peer = NumPyAlone() if sessions else ArrowAlone(Path(folder))
        running = described.standalone(checkpoint=f"{folder}/root", store=STORE).stream(batches)
        for events in batches:
            started = time.perf_counter()
            panes.append(next(running))
            between = time.perf_counter()
            peer.take(events)
            peer_s.append(time.perf_counter() - between)
            ours_s.append(between - started)
        panes += running
        mine, theirs = totals_of(pa.concat_tables(panes)), peer.totals()
    equal = bool(np.allclose(mine, theirs, rtol=1e-9, atol=0))
    return Race(stream.batch, ours_s[COLD:-1], peer_s[COLD:-1], equal and mine[0] > 0, mine[0])


def totals_of(panes: pa.Table) -> Totals:
    """What is compared with the peer: the number of our panes, and the sums of their results."""
    counts, middle, best = (panes[name].to_numpy() for name in ("bids", "middle", "best"))
    return panes.num_rows, int(counts.sum()), int(best.sum()), float(middle.sum())


def long_run(keys: int, batch: int, first: int, times: int) -> tuple[float, float]:
    """Median seconds of a batch of a job that has run for ``first`` batches, and of one that has run for ``times`` as
    many. Windows come and go, so that their state is equally large; both take each batch in turn.
    """
    took: tuple[list[float], list[float]] = [], []
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        jobs = []
        for name, history in (("old", first * times), ("young", first)):
            stream = Bids(keys, batch, history + first, batch // SPAN_S)
            tables = (stream.table(number) for number in range(stream.batches))
            jobs.append(bids().standalone(checkpoint=f"{folder}/{name}", store=STORE).stream(tables))
            for _ in range(history):
                next(jobs[-1])
        for _ in range(first):
            for job, seconds in zip(jobs, took, strict=True):
                started = time.perf_counter()
                next(job)
                seconds.append(time.perf_counter() - started)
        for job in jobs:
            next(job, None)  # it ends: its heartbeat must not write while the folder is removed
    old, young = took
    return median(young), median(old)


@dataclass
class LookupCount:
    """How many keys and prefixes steps have looked up."""

    rows: int = 0


@contextmanager
def counted_lookups() -> Iterator[LookupCount]:
    """Look-ups of steps in this process meanwhile."""
    found = LookupCount()

    @contextmanager
    def counting(*settings: object) -> Iterator[StateStore]:
        with open_store(*settings) as store:  # type: ignore[arg-type]
            yield _CountingStore(store, found)  # type: ignore[misc]

    with mock.patch(f"{run_partition.__module__}.open_store", counting):
        yield found


class _CountingStore:
    def __init__(self, store: StateStore, found: LookupCount) -> None:
        self._store, self._found = store, found

    def __getitem__(self, table: str) -> _CountingTable:
        return _CountingTable(self._store[table], self._found)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class _CountingTable:
    def __init__(self, view: TableView, found: LookupCount) -> None:
        self._view, self._found = view, found

    def lookup(self, keys: pa.Table) -> Lookup:
        self._found.rows += keys.num_rows
        return self._view.lookup(keys)

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        self._found.rows += prefixes.num_rows
        return self._view.ranges(prefixes, lower, upper)

    def __getattr__(self, name: str) -> object:
        return getattr(self._view, name)


def lookups(described: ts.OperatorStream, stream: Bids) -> tuple[int, int]:
    """After the loading batches: look-ups, and how many panes were due and keys late in each batch."""
    justified = base = 0
    before_us: int | None = None
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder, counted_lookups() as found:
        runner = described.standalone(checkpoint=Path(folder) / "root", store=STORE)
        tables = [stream.table(number) for number in range(stream.batches)]
        for number, panes in enumerate(runner.stream(tables)):
            if number < stream.loading:
                base = found.rows
            else:
                due = pc.equal(panes["kind"].cast(pa.string()), "emit")
                justified += panes.filter(due).num_rows + _late_keys(tables[number], before_us)
            before_us = runner.head.watermark_us
    return found.rows - base, justified


def _late_keys(events: pa.Table, before_us: int | None) -> int:
    if before_us is None:
        return 0
    late = pc.less(events["event_time"].cast(pa.int64()), pa.scalar(before_us))
    return len(pc.unique(events.filter(late)["key"]))
