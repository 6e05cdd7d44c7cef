"""Tables to try a store on, with values so few that keys collide; they cover every combiner and kind of expiry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidestate.statestore.spec.combiners import Starts, register_combiner
from tidestate.statestore.spec.tables import TIME, Column, Group, TableSpec
from tidestate.statestore.testing.model import GROUP_RULES
from tidestate.statestore.testing.rows import KeyRow

LONGEST = "testing-longest"


@register_combiner(LONGEST)
def longest(rows: pa.Table, starts: Starts) -> pa.Table:
    """A registered combiner: the row with the longest word, the first of equals."""
    lengths = [-1 if word is None else len(word) for word in rows[0].to_pylist()]
    ends = [*starts[1:], rows.num_rows]
    best = [max(range(start, end), key=lengths.__getitem__) for start, end in zip(starts, ends, strict=True)]
    return rows.take(pa.array(best, pa.int64()))


def _longest(old: KeyRow, new: KeyRow) -> KeyRow:
    lengths = [-1 if row[0] is None else len(row[0]) for row in (old, new)]
    return new if lengths[1] > lengths[0] else old


GROUP_RULES[LONGEST] = _longest

MAIN = TableSpec(
    "main",
    (Column("t", str(TIME), "window_end"), Column("k", "string", "key"), Column("i", "int64", "key")),
    (
        Column("total", "int64", combiner="sum"),
        Column("low", "double", combiner="min"),
        Column("high", "date32[day]", combiner="max"),
        Column("note", "string", combiner="replace"),
    ),
    "t",
)
"""Expires by its leading key column."""

NAMED = TableSpec(
    "named", (Column("k", "string", "key"), Column("b", "bool", "key")), (Column("total", "int64", combiner="sum"),)
)
"""Never expires."""

SESSIONS = TableSpec(
    "sessions",
    (Column("k", "string", "key"), Column("at", "timestamp[ms]"), Column("n", "uint8")),
    (
        Column("paid", "double", combiner="sum"),
        Column("events", "list<item: int64>", combiner="append"),
        Column("last", "string"),
        Column("price", "int64"),
        Column("seller", "string"),
        Column("first", "string"),
        Column("when", "timestamp[us, tz=UTC]"),
        Column("count", "int64"),
        Column("mean", "double"),
        Column("m2", "double"),
        Column("word", "string"),
        Column("page", "int64"),
    ),
    "at",
    (
        Group(("price", "seller"), "arg_max", by="price"),
        Group(("first", "when"), "arg_min", by="when"),
        Group(("count", "mean", "m2"), "moments"),
        Group(("word", "page"), LONGEST),
    ),
)
"""Expires by a key column that does not lead; combines lists and groups."""

LATEST = TableSpec(
    "latest",
    (Column("b", "bool"), Column("d", "decimal128(10, 2)"), Column("x", "binary")),
    (
        Column("until", "int64"),
        Column("body", "struct<a: int64, b: list<item: string>>"),
        Column("tags", "map<string, double>"),
    ),
    "until",
)
"""Expires by a value column, so it takes puts only."""

SPECS = (MAIN, NAMED, SESSIONS, LATEST)

KEY_VALUES: dict[str, list[Any]] = {
    "k": ["a", "é", "", "a\x00"],
    "i": [1, -(2**63)],
    "b": [False, True],
    "n": [0, 255],
    "d": [Decimal("0.00"), Decimal("-1.50"), Decimal("99999999.99")],
    "x": [b"", b"\x00", b"\xff\x00"],
}
"""Values of key columns but times, by name."""

VALUES: dict[str, list[Any]] = {
    "total": [1, None, 0, -7],
    "low": [1.0, None, -0.5],
    "high": [date(1970, 1, 1), None, date(2024, 2, 29), date(1969, 12, 31)],
    "note": ["x", None, "", "long " * 300],
    "paid": [0.5, None, -2.25, 1e6],
    "events": [[1], None, [], [2, None, 3]],
    "last": ["z", None, "y\x00"],
    "body": [None, {"a": 1, "b": ["p", None]}, {"a": None, "b": None}, {"a": 2, "b": []}],
    "tags": [None, [], [("u", 1.5), ("v", None)]],
}
"""Values of value columns that combine by themselves, by name."""

GROUPS: dict[str, list[KeyRow]] = {
    "price": [(None, None), (1, "s"), (1, "t"), (2, None), (-3, "u")],
    "first": [(None, None), ("p", 5), ("q", -5), ("r", 5)],
    "count": [(1, 2.0, 0.0), (3, -1.5, 0.5), (2, 10.0, 2.0)],
    "word": [(None, None), ("ab", 1), ("cd", 2), ("abc", None), ("", 4)],
}
"""Values of groups, by the name of their first column. Where all is null any row may win, so all is null then."""

TIME_COLUMNS: dict[str, Callable[[int], list[Any]]] = {
    "t": lambda now: [now - 1, now, now - 3, now + 1],
    "at": lambda now: [now - 1, now, now - 3, now + 1],
    "until": lambda now: [now + 1, now, None, now - 2, now + 3],
}
"""Values of expiry columns, as time goes by: what expires must not be all there will ever be."""

START = -4
"""Time begins before 1970."""
