"""What a step of one state partition costs: median processor time and reads of the store, with rows and without.

    python -m tools.step_times [--json] [--rounds 3]

Each job has 64 state partitions. A batch of 200 rows reaches nearly all of them, with three rows each; then time
alone moves on, and what waits is due in all of them: a step with 0 rows. For a look after each commit, in well under
a minute; what whole jobs cost is for `tools.bench`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pyarrow as pa

import tidestate as ts
from tidestate import OperatorStream, Stream, agg, trigger
from tidestate.operators.engine import tasks
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.stores import parquet

PARTITIONS, ROWS, ROUNDS = 64, 200, 3
STEP = "run_partition"
"""The function of `tasks` that steps a state partition; its fourth argument are the rows that arrive."""
SECOND_US = 1_000_000
SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])


def _stream() -> Stream:
    return ts.stream(event_time="t", watermark_delay="5 seconds")


def _windows(window: Any) -> Any:
    return _stream().group_by("k").window(window).aggregate(n=agg.count(), s=agg.sum("v")).named("job")


JOBS: dict[str, Callable[[], OperatorStream]] = {
    "tumbling": lambda: _windows(ts.tumbling("10 seconds")),
    "early": lambda: _windows(ts.tumbling("10 seconds")).trigger(early=trigger.each_batch()),
    "sliding": lambda: _windows(ts.sliding("30 seconds", "10 seconds")),
    "sessions": lambda: _windows(ts.sessions("4 seconds")),
    "join": lambda: _stream().join(_stream(), on="k", within=("-5 seconds", "5 seconds"), how="left"),
    "deduplicated": lambda: _stream().deduplicate(["k"], within="10 seconds"),
}


@dataclass
class Calls:
    """The calls of the step so far: how long each took, by whether rows arrived, and reads of stores by kind."""

    took_us: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    reads: dict[bool, Counter[str]] = field(default_factory=lambda: {True: Counter(), False: Counter()})
    arrived: bool = False

    def step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """``real`` with its processor time recorded at each call, by whether rows have arrived."""

        def measured(*given: Any) -> Any:
            self.arrived = given[3].num_rows > 0
            began = time.process_time_ns()
            made = real(*given)
            self.took_us[self.arrived].append((time.process_time_ns() - began) / 1000)
            return made

        return measured

    def read(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """A read of a table, counted."""

        def counted(*given: Any, **named: Any) -> Any:
            self.reads[self.arrived][kind] += 1
            return real(*given, **named)

        return counted

    def figures(self, *, arrived: bool) -> dict[str, float]:
        """Microseconds of a step, and its reads of the store."""
        took = self.took_us[arrived]
        reads = {kind: round(self.reads[arrived][kind] / len(took), 1) for kind in READS} if took else {}
        return {"steps": len(took), "median_us": round(statistics.median(took)) if took else 0, **reads}


READS = ("scan", "lookup", "ranges")


@contextmanager
def _measured() -> Iterator[Calls]:
    calls = Calls()
    tables = parquet.ParquetTable
    with patch.object(tasks, STEP, calls.step(getattr(tasks, STEP))):
        patches = [patch.object(tables, kind, calls.read(kind, getattr(tables, kind))) for kind in READS]
        for one in patches:
            one.start()
        try:
            yield calls
        finally:
            for one in patches:
                one.stop()


def _rows(number: int) -> pa.Table:
    """Two hundred keys, within four seconds; a batch is 20 seconds behind the one before."""
    times = [(20 * number) * SECOND_US + key * 20_000 for key in range(ROWS)]
    return pa.table([pa.array(times).cast(SCHEMA.field("t").type), range(ROWS), range(ROWS)], schema=SCHEMA)


def figures(name: str, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Of a job of `JOBS`, of steps with rows and without: how many, microseconds, and reads of each kind."""
    job = JOBS[name]()
    streams = job.graph.streams
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        harness = job.harness(dict.fromkeys(streams, SCHEMA), store=Parquet(), partitions=PARTITIONS)
        with harness:
            harness.feed(dict.fromkeys(streams, _rows(0)))  # imports, caches
            with _measured() as calls:
                for number in range(1, rounds + 1):
                    harness.feed(dict.fromkeys(streams, _rows(number)))
                    harness.advance_watermark((20 * number + 19) * SECOND_US)
    return {f"{ROWS} rows": calls.figures(arrived=True), "0 rows": calls.figures(arrived=False)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.step_times", description="what a step of a partition costs"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    measured = {name: figures(name, given.rounds) for name in JOBS}
    if given.json:
        print(json.dumps(measured, indent=1))
        return 0
    print(f"{'job':<14}{'arriving':<10}{'steps':>6}{'median us':>11}" + "".join(f"{kind:>9}" for kind in READS))
    for name, rows in measured.items():
        for arriving, found in rows.items():
            reads = "".join(f"{found.get(kind, 0):>9}" for kind in READS)
            print(f"{name:<14}{arriving:<10}{found['steps']:>6}{found['median_us']:>11}{reads}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
