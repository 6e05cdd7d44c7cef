"""Jobs of every kind, what they emit, its net, and what a reader of a form makes of the rows that a target has."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

import tidestate as ts
from tests.helpers.internals import plan_of
from tidestate import OperatorStream, agg
from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.engine.emitted import emitted_by
from tidestate.operators.sinks.forms import Form
from tidestate.statestore.spec.plain import plain_table

Row = dict[str, Any]
NET_SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("c", pa.string()), ("x", pa.int64())])


def events(*rows: tuple[int, str, str, int]) -> list[Row]:
    return [{"t": t * 1_000_000, "k": k, "c": c, "x": x} for t, k, c, x in rows]


NET_BATCHES = [
    events((1, "a", "u", 1), (2, "a", "v", 2), (3, "b", "u", 4), (4, "b", "v", 8)),
    events((30, "a", "u", 16), (31, "b", "v", 32)),
    events((5, "a", "u", 100), (12, "b", "v", 200), (60, "a", "u", 0)),
]


def counting(kind: Any, mode: Any, key: Any = ("k", "c"), late: str = "1 hour") -> OperatorStream:
    described = (
        ts.stream(event_time="t")
        .group_by(list(key))
        .window(kind)
        .aggregate(n=agg.count(), s=agg.sum("x"), l=agg.latest("x"))
    )
    return described.allowed_lateness(late).accumulation(mode)


NET_JOBS: dict[str, tuple[Callable[[], OperatorStream], bool, tuple[str, ...] | None]] = {
    # what it is, whether the newest pane is the result, the key that it has
    "one pane": (lambda: counting(ts.tumbling("10 seconds"), "accumulating", late="0 seconds"), True, ("k", "c")),
    "one part": (lambda: counting(ts.tumbling("10 seconds"), "discarding", late="0 seconds"), True, ("k", "c")),
    "accumulating": (lambda: counting(ts.tumbling("10 seconds"), "accumulating"), True, ("k", "c")),
    "discarding": (lambda: counting(ts.tumbling("10 seconds"), "discarding"), False, ("k", "c")),
    "retracting": (lambda: counting(ts.tumbling("10 seconds"), "retracting"), True, ("k", "c")),
    "without a key": (lambda: counting(ts.tumbling("10 seconds"), "retracting", ()), True, ()),
    "sessions": (lambda: counting(ts.sessions("10 seconds"), "accumulating"), False, ("k", "c")),
    "discarding sessions": (lambda: counting(ts.sessions("10 seconds"), "discarding"), False, ("k", "c")),
    "retracting sessions": (lambda: counting(ts.sessions("10 seconds"), "retracting"), True, ("k", "c")),
    "deduplication": (lambda: ts.stream(event_time="t").deduplicate(["k", "c"], within="1 hour"), True, ("k", "c")),
    "join": (
        lambda: ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 seconds", "5 seconds")),
        True,
        None,
    ),
    "union": (lambda: ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t")), True, None),
}
NAMED = {"join": ["k", "left_c", "left_t", "left_x", "right_x"], "union": ["k", "t", "x", "side"]}
"""What identifies a row that has no key, by choice of the user."""


@cache
def made(what: str) -> tuple[Emitted, list[pa.Table]]:
    """What a job emits, and the panes of each of its deliveries."""
    described = NET_JOBS[what][0]()
    schemas, tables = NET_SCHEMA, [pa.Table.from_pylist(rows, NET_SCHEMA) for rows in NET_BATCHES]
    if len(described.graph.streams) == 2:
        schemas = dict.fromkeys(described.graph.streams, NET_SCHEMA)
        tables = [{"left": rows, "right": rows} for rows in tables]  # type: ignore[attr-defined]
    running = described.harness(schemas)
    found = [plain_table(running.feed(one)) for one in tables]
    return emitted_by(plan_of(running)), [one for one in found if one.num_rows]


def plain(row: Row, *, without: tuple[str, ...] = ()) -> str:
    """A row as text, the same from a file, a table, or JSON."""
    row = {name: value for name, value in row.items() if name not in ("kind", "change", *without)}
    return json.dumps(json.loads(msgspec.json.encode(row)), sort_keys=True)


def net(what: str) -> list[Row]:
    """Of windows the last pane of each window and key, unless it was retracted; of others what was not retracted."""
    rows = [row for table in made(what)[1] for row in table.to_pylist()]
    key, stands = NET_JOBS[what][2], dict[Any, Row]()
    for number, row in enumerate(rows):
        by = ("window_start", "window_end", *(key or ())) if "window_start" in row else key
        identity = tuple(row[name] for name in by) if by is not None else plain(row)
        if row.get("kind") == "retract":
            del stands[identity]
        else:
            stands[identity if by is not None or "kind" in row else number] = row
    return list(stands.values())


def held(form: Form, rows: list[Row], key: list[str]) -> list[Row]:
    """What a reader of a form makes of what it finds, rows in the order of their deliveries."""
    if form == "upsert":
        return rows
    stands = dict[Any, Row]()
    for row in rows:
        by = [*(["window_start", "window_end"] if "window_start" in row else []), *key]
        identity = tuple(str(row[name]) for name in by)
        gone = row.get("kind") == "retract" or row.get("change") in ("delete", "update_before")
        if gone:
            stands.pop(identity)
        else:
            stands[identity] = row
    return list(stands.values())
