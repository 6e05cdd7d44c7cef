"""A job with three outputs over the rows of `tests.helpers.spark_inputs`, and the sum of what each of them emits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.spark_inputs import SCHEMA as SCHEMA
from tidestate import OutputsJob, agg

OUTPUT_NAMES = ("by_key", "by_minute", "of_all")
_LATE = "10 minutes"


def streams() -> tuple[ts.Aggregation, ts.Aggregation, ts.Aggregation]:
    """By key; of the panes of that by minute; and of all rows, which reads the stream again."""
    rows = ts.stream(event_time="t", watermark_delay="5 seconds", offset="id")
    by_key = rows.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count(), total=agg.sum("v"))
    by_key = by_key.allowed_lateness(_LATE).accumulation("retracting").named("by_key")
    by_minute = by_key.group_by().window(ts.tumbling("1 minute")).aggregate(keys=agg.count(), most=agg.sum("n"))
    by_minute = by_minute.allowed_lateness(_LATE).accumulation("retracting").named("by_minute")
    of_all = rows.group_by().window(ts.sliding("20 seconds", "10 seconds")).aggregate(m=agg.count())
    of_all = of_all.allowed_lateness(_LATE).accumulation("retracting").named("of_all")
    return by_key, by_minute, of_all


def several() -> OutputsJob:
    """All three, of which the second reads the first."""
    return ts.job(*streams())


class Taken:
    """A sink that keeps what it takes by run, as an idempotent one does; refuses while it is ``down``."""

    def __init__(self, behind: int = 0, *, down: bool = False) -> None:
        self.behind, self.down = behind, down
        self.calls: list[ts.DeliveryId] = []
        self.tables: dict[ts.DeliveryId, pa.Table] = {}

    def __call__(self, rows: pa.Table, delivery: ts.DeliveryId) -> bool:
        if self.down:
            return False
        self.calls.append(delivery)
        self.tables.setdefault(delivery, rows)
        return True

    def rows(self) -> Counter[tuple[Any, ...]]:
        """Everything that it has, each delivery once."""
        return sum((counted(rows) for rows in self.tables.values()), Counter())


def counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows, whatever their order, without the checkpoint."""
    names = [name for name in rows.column_names if name != "checkpoint"]
    return Counter(zip(*(rows[name].to_pylist() for name in names), strict=True))


def emitted(root: str | Path, name: str) -> Counter[tuple[Any, ...]]:
    """What a root says that an output has emitted."""
    return counted(ts.Root(root).panes(operator=name).to_table())


def net_of(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """What is left of panes when retractions are taken off: bounds, key and results."""
    left = [name for name in rows.column_names if name not in ("pane", "timing", "kind", "last", "checkpoint")]
    net: Counter[tuple[Any, ...]] = Counter()
    for row in rows.to_pylist():
        net[tuple(row[name] for name in left)] += 1 if row["kind"] == "emit" else -1
    assert all(count in (0, 1) for count in net.values())
    return +net
