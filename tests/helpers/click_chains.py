"""Clicks, and a chain that counts them per user and per country."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidestate.agg import count
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import windowed
from tidestate.statestore.spec.tables import TIME

SECOND, MINUTE = 1_000_000, 60_000_000
CLICKS = pa.schema([("at", TIME), ("user", pa.string()), ("country", pa.string()), ("amount", pa.int64())])


def clicks(*rows: tuple[int, str, str, int]) -> pa.Table:
    """(second, user, country, amount)."""
    columns = list(zip(*rows, strict=True)) or [[], [], [], []]
    times = pa.array([t * SECOND for t in columns[0]], pa.int64()).cast(TIME)
    return pa.table(
        [times, *(pa.array(c, f.type) for c, f in zip(columns[1:], list(CLICKS)[1:], strict=True))], schema=CLICKS
    )


def per_user(**options: Any) -> Any:
    """Clicks and amount per user, country and minute."""
    name = options.pop("name", "per_user")
    made = windowed(event_time="at", key=["user", "country"], name=name).window(tumbling("1 minute"))
    return made.aggregate(n=count(), total=sum_("amount")).late(options.pop("late", "0 seconds"))


def per_country(late: str = "0 seconds") -> Any:
    """Users and amount per country and hour."""
    made = windowed(key="country", name="per_country").window(tumbling("1 hour")).late(late)
    return made.aggregate(users=count(), total=sum_("total"), most=max_("total"))


def observed(panes: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Rows, times as minutes."""
    found = []
    for row in panes.to_pylist():
        values = (int(v.timestamp() // 60) if hasattr(v, "timestamp") else v for v in (row[n] for n in names))
        found.append(tuple(values))
    return sorted(found)
