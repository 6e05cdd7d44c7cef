"""Clicks, and a chain that counts them per user and per country."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import Stream, agg
from tidestate.statestore.spec.tables import TIME

SECOND, MINUTE = 1_000_000, 60_000_000
EVENTS = ts.stream(event_time="at")
CLICKS = pa.schema([("at", TIME), ("user", pa.string()), ("country", pa.string()), ("amount", pa.int64())])


def clicks(*rows: tuple[int, str, str, int]) -> pa.Table:
    """A table of `CLICKS`, of rows (second since 1970, user, country, amount)."""
    columns = list(zip(*rows, strict=True)) or [[], [], [], []]
    times = pa.array([t * SECOND for t in columns[0]], pa.int64()).cast(TIME)
    return pa.table(
        [times, *(pa.array(c, f.type) for c, f in zip(columns[1:], list(CLICKS)[1:], strict=True))], schema=CLICKS
    )


def per_user(**options: Any) -> Any:
    """Clicks and amount per user, country and minute."""
    name = options.pop("name", "per_user")
    made = EVENTS.group_by("user", "country").window(ts.tumbling("1 minute"))
    return (
        made.aggregate(n=agg.count(), total=agg.sum("amount"))
        .named(name)
        .allowed_lateness(options.pop("late", "0 seconds"))
    )


def per_country(users: Stream, late: str = "0 seconds") -> Any:
    """Users and amount per country and hour."""
    made = users.group_by("country").window(ts.tumbling("1 hour"))
    return (
        made.aggregate(users=agg.count(), total=agg.sum("total"), most=agg.max("total"))
        .allowed_lateness(late)
        .named("per_country")
    )


def observed(panes: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The values of these columns, a tuple for each pane, sorted; times as whole minutes since 1970."""
    found = []
    for row in panes.to_pylist():
        values = (int(v.timestamp() // 60) if hasattr(v, "timestamp") else v for v in (row[n] for n in names))
        found.append(tuple(values))
    return sorted(found)
