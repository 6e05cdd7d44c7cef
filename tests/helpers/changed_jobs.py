"""Jobs that are changed between two runs, and their events."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import structs

from tests.helpers.process import LONG
from tidestate.agg import count, mean
from tidestate.agg import max as max_
from tidestate.agg import min as min_
from tidestate.agg import set as set_
from tidestate.agg import sum as sum_
from tidestate.operators import sliding, tumbling
from tidestate.operators.describe.triggers import every_element
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.describe.windows import session

BATCHES, CHANGED = (8, 4) if LONG else (6, 3)
Row = dict[str, Any]
KINDS = {
    "tumbling": tumbling("20 seconds"),
    "sliding": sliding("30 seconds", "10 seconds"),
    "session": session("4 seconds"),
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


def first(kind: str, mode: Any = "accumulating") -> Windowed:
    began = windowed(event_time="t", key="k").window(KINDS[kind]).late("100 seconds").accumulation(mode)
    return began.aggregate(n=count(), total=sum_("v"), low=min_("v"))


@dataclass(frozen=True)
class Case:
    """What is described after the change, and how that is computed: by column its function, from which batch on, and
    what it was called.
    """

    change: Callable[[Windowed], Windowed]
    columns: dict[str, tuple[str, int, str | None]]
    value: str = "v"
    kind: pa.DataType = field(default_factory=pa.int32)


OLD: dict[str, tuple[str, int, str | None]] = {
    "n": ("count", 0, "n"),
    "total": ("sum", 0, "total"),
    "low": ("min", 0, "low"),
}


def without(described: Windowed, *names: str) -> Windowed:
    kept = {name: one for name, one in described.aggregates.items() if name not in names}
    return structs.replace(described, aggregates=kept)


CASES = {
    "added": Case(
        lambda d: d.aggregate(high=max_("v"), average=mean("v"), seen=set_("v"), m=count("v")),
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
        lambda d: without(d, "total").aggregate(s=sum_("v")).renamed(aggregates={"total": "s"}),
        {"n": OLD["n"], "low": OLD["low"], "s": ("sum", 0, "total")},
    ),
    "swapped": Case(
        lambda d: (
            without(d, "total", "low").aggregate(s=sum_("v"), total=max_("v")).renamed(aggregates={"total": "s"})
        ),
        {"n": OLD["n"], "s": ("sum", 0, "total"), "total": ("max", CHANGED, None)},
    ),
    "column": Case(
        lambda d: without(d, "total", "low").aggregate(total=sum_("w"), low=min_("w")).renamed(columns={"v": "w"}),
        OLD,
        "w",
    ),
    "widened": Case(lambda d: d, OLD, kind=pa.int64()),
    "all": Case(
        lambda d: (
            without(d, "n", "low").aggregate(least=min_("v"), seen=set_("v")).renamed(aggregates={"low": "least"})
        ),
        {"total": OLD["total"], "least": ("min", 0, "low"), "seen": ("set", CHANGED, None)},
        kind=pa.int64(),
    ),
    "early": Case(lambda d: d.trigger(early=every_element()), OLD),
    "early and added": Case(
        lambda d: d.trigger(early=every_element()).aggregate(high=max_("v")),
        OLD | {"high": ("max", CHANGED, None)},
    ),
    "lateness": Case(lambda d: d.late("2 minutes").retain("4 minutes"), OLD),
}
