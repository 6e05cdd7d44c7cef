"""Messages for the window operator: origin, offset, time, key, value; and the same computation in the harness."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pyarrow as pa

import tidestate as ts
from tidestate import Aggregation, agg
from tidestate.operators import (
    WindowOperator,
)
from tidestate.operators.describe.windows import Windows
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig, StoreName

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("part", pa.string()), ("at", pa.int64()), ("t", TIME), ("k", pa.string()), ("v", pa.int64())],
)
STORES: tuple[StoreName, ...] = ("memory", "parquet", "rocksdb")


class Message(NamedTuple):
    part: str
    at: int
    t: int | None
    k: str | None
    v: int


def table(messages: Sequence[Message]) -> pa.Table:
    rows = [m._replace(t=None if m.t is None else m.t * SECOND) for m in messages]
    return pa.table([pa.array([row[i] for row in rows], f.type) for i, f in enumerate(SCHEMA)], schema=SCHEMA)


def store_config(name: StoreName, cache: Path) -> StoreConfig:
    """Small limits, so that files are folded."""
    if name == "rocksdb":
        return RocksDB(cache_dir=str(cache), max_levels=3, snapshot_bytes=1)
    return {"memory": Memory, "parquet": Parquet}[name](max_levels=3, snapshot_bytes=1)


def exact_median(rows: pa.Table) -> float | None:
    return float(median(rows["v"].to_pylist())) if rows.num_rows else None


def description(
    window: Windows, mode: str = "accumulating", key: str | None = "k", allowed: int = 20, generator: Any = None
) -> Aggregation:
    """A count, a sum, and a median by a function of the user's over whole rows."""
    middle = agg.apply_rows(exact_median, columns=["v"], result_type=pa.float64(), per_group=True)
    events = ts.stream(event_time="t", watermark_delay="2 seconds")
    if generator is not None:
        events = events.watermark(generator)
    job = events.group_by(*([key] if key else [])).window(window)
    job = job.aggregate(n=agg.count(), total=agg.sum("v"), middle=middle).allowed_lateness(
        f"{allowed} seconds", ledger_columns=("part", "at")
    )
    return job.accumulation(mode)  # type: ignore[arg-type]


def operator(job: Aggregation, root: Path, store: StoreConfig, **more: Any) -> WindowOperator:
    return WindowOperator(
        job.graph.description, SCHEMA, checkpoint=root, origin="part", offset="at", store=store, **more
    )


def plain(panes: pa.Table | Mapping[str, pa.Table]) -> list[tuple[Any, ...]]:
    """Rows; of several outputs each begins with the name of its own."""
    if isinstance(panes, Mapping):
        return [(name, *row) for name, table in panes.items() for row in plain(table)]
    return [tuple(row.values()) for row in panes.to_pylist()]


def expected(job: Aggregation, batches: Sequence[Sequence[Message]], root: Path) -> tuple[list[Any], set[Any]]:
    """Panes in order and identities in the ledger, by the harness, which keeps lists and no messages."""
    harness, panes = job.harness(SCHEMA, folder=root), []
    for batch in batches:
        panes += plain(harness.feed(table(sorted(batch))))
    panes += plain(harness.finish())
    return panes, {(row["part"], row["at"]) for row in harness.ledger().to_pylist()}


def stream(seed: int, batches: int = 12, size: int = 12) -> list[list[Message]]:
    """The same in every process: time goes on, many are late, some very."""
    chance = random.Random(seed)
    offsets = {"x": 0, "y": 0}
    made = []
    for base in range(0, batches * 4, 4):
        batch = []
        for _ in range(size):
            part = chance.choice("xy")
            offsets[part] += 1
            behind = chance.choice([*range(12), *range(40)])
            batch.append(Message(part, offsets[part], base - behind, chance.choice("abc"), chance.randint(-9, 9)))
        made.append(batch)
    return made


class Receiver:
    """Takes panes by their id, each once; the same id always brings the same rows."""

    def __init__(self) -> None:
        self.taken: dict[DeliveryId, list[Any]] = {}

    def __call__(self, panes: pa.Table, delivery_id: DeliveryId) -> None:
        rows = plain(panes)
        assert self.taken.setdefault(delivery_id, rows) == rows

    @property
    def panes(self) -> list[Any]:
        return [row for one in sorted(self.taken, key=lambda one: one.checkpoint) for row in self.taken[one]]


Sink = Callable[[pa.Table, DeliveryId], Any]


def take(job: WindowOperator, receiver: Receiver) -> None:
    for result in job.get_result():
        receiver(result.panes, result.id)
        job.acknowledge(result.id)


WINDOWS: dict[str, Windows] = {
    "tumbling": ts.tumbling("6 seconds"),
    "sliding": ts.sliding("6 seconds", "2 seconds"),
    "gaps": ts.sliding("3 seconds", "5 seconds", strict=False),
    "session": ts.sessions("3 seconds"),
    "counted": ts.count_windows(4, 3),
    "global": ts.global_window(),
}
