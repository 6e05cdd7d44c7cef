"""Jobs that are changed between two runs, and their events."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.internals import described
from tests.helpers.process import LONG
from tidestate import Aggregation, OperatorStream, agg, trigger
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe.windowed import Windowed
from tidestate.statestore.errors import of_type

BATCHES, CHANGED = (8, 4) if LONG else (6, 3)
Row = dict[str, Any]
KINDS = {
    "tumbling": ts.tumbling("20 seconds"),
    "sliding": ts.sliding("30 seconds", "10 seconds"),
    "session": ts.sessions("4 seconds"),
}


def events(seed: int) -> list[list[Row]]:
    """Ten seconds a batch, up to forty late; nothing is later than the lateness allows."""
    chance = random.Random(seed)
    return [
        [
            {"t": max(0, 10 * number + chance.randrange(10) - chance.choice((0, 0, 0, 15, 40))), "k": k, "v": v}
            for k, v in ((chance.choice("ab"), chance.randrange(-9, 9)) for _ in range(15))
        ]
        for number in range(1, BATCHES + 1)
    ]


def tables(rows: list[list[Row]], value: str = "v", kind: pa.DataType | None = None) -> list[pa.Table]:
    fields = [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), (value, kind or pa.int32())]
    schema = pa.schema(fields)
    return [
        pa.table(
            [[datetime.fromtimestamp(one["t"], UTC) for one in part], *([one[n] for one in part] for n in "kv")],
            schema=schema,
        )
        for part in rows
    ]


def first(kind: str, mode: Any = "accumulating") -> Aggregation:
    began = ts.stream(event_time="t").group_by("k").window(KINDS[kind])
    return (
        began.aggregate(n=agg.count(), total=agg.sum("v"), low=agg.min("v"))
        .allowed_lateness("100 seconds")
        .accumulation(mode)
    )


@dataclass(frozen=True)
class Case:
    """What is described after the change, and how that is computed: by column its function, from which batch on, and
    what it was called.
    """

    change: Callable[[Aggregation], Aggregation]
    columns: dict[str, tuple[str, int, str | None]]
    value: str = "v"
    kind: pa.DataType = field(default_factory=pa.int32)


OLD: dict[str, tuple[str, int, str | None]] = {
    "n": ("count", 0, "n"),
    "total": ("sum", 0, "total"),
    "low": ("min", 0, "low"),
}


def changed(job: OperatorStream, **fields: Any) -> Any:
    """The same job, whose stored description has other values in these fields."""
    return described(job, **fields)


def added(job: OperatorStream, **aggregates: Aggregate) -> Any:
    """The same job with more results, or others of these names."""
    return changed(job, aggregates={**_results(job), **aggregates})


def without(job: OperatorStream, *names: str) -> Any:
    """The same job without some results."""
    kept = {name: one for name, one in _results(job).items() if name not in names}
    return changed(job, aggregates=kept)


def _results(job: OperatorStream) -> dict[str, Aggregate]:
    return dict(of_type(job.operator.description, Windowed).aggregates)


CASES = {
    "added": Case(
        lambda d: added(d, high=agg.max("v"), average=agg.mean("v"), seen=agg.set("v"), m=agg.count("v")),
        OLD
        | {
            "high": ("max", CHANGED, None),
            "average": ("mean", CHANGED, None),
            "seen": ("set", CHANGED, None),
            "m": ("count", CHANGED, None),
        },
    ),
    "removed": Case(lambda d: without(d, "total"), {name: one for name, one in OLD.items() if name != "total"}),
    "renamed": Case(
        lambda d: added(without(d, "total"), s=agg.sum("v")).renamed(aggregates={"total": "s"}),
        {"n": OLD["n"], "low": OLD["low"], "s": ("sum", 0, "total")},
    ),
    "swapped": Case(
        lambda d: added(without(d, "total", "low"), s=agg.sum("v"), total=agg.max("v")).renamed(
            aggregates={"total": "s"}
        ),
        {"n": OLD["n"], "s": ("sum", 0, "total"), "total": ("max", CHANGED, None)},
    ),
    "column": Case(
        lambda d: added(without(d, "total", "low"), total=agg.sum("w"), low=agg.min("w")).renamed(columns={"v": "w"}),
        OLD,
        "w",
    ),
    "widened": Case(lambda d: d, OLD, kind=pa.int64()),
    "all": Case(
        lambda d: added(without(d, "n", "low"), least=agg.min("v"), seen=agg.set("v")).renamed(
            aggregates={"low": "least"}
        ),
        {"total": OLD["total"], "least": ("min", 0, "low"), "seen": ("set", CHANGED, None)},
        kind=pa.int64(),
    ),
    "early": Case(lambda d: d.trigger(early=trigger.each_batch()), OLD),
    "early and added": Case(
        lambda d: added(d, high=agg.max("v")).trigger(early=trigger.each_batch()),
        OLD | {"high": ("max", CHANGED, None)},
    ),
    "lateness": Case(lambda d: d.allowed_lateness("2 minutes").retain_windows("4 minutes"), OLD),
}
