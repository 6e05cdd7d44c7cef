"""The golden files: state of every type and combiner, as version 1 of the format wrote it.

``python -m tests.helpers.golden_state`` writes ``tests/golden`` again; only a new format version is a reason to.
"""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tests.helpers.checkout import ROOT
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.tables import TIME, Column, Group, TableSpec
from tidestate.statestore.storage.objects import Objects

GOLDEN = ROOT / "tests" / "golden"
T = [datetime(1969, 12, 31, 23, 59, 59, 5, UTC), datetime(2026, 11, 21, 12, 0, tzinfo=UTC)]

SUMS = TableSpec(
    "sums",
    (Column("end", str(TIME), "window_end"), Column("k", "string", "key")),
    (
        Column("n", "int64", combiner="sum"),
        Column("low", "double", combiner="min"),
        Column("high", "decimal128(9, 2)", combiner="max"),
        Column("note", "string"),
        Column("seen", "list<item: string>", combiner="append"),
        Column("price", "double"),
        Column("item", "string"),
    ),
    "end",
    (Group(("price", "item"), "arg_max", by="price"),),
)
KINDS = TableSpec(
    "kinds",
    (
        Column("i8", "int8"),
        Column("u64", "uint64"),
        Column("b", "bool"),
        Column("d", "date32[day]"),
        Column("m", "decimal128(6, 3)"),
        Column("raw", "binary"),
    ),
    (
        Column("nested", "struct<x: int32, y: list<item: string>>"),
        Column("map", "map<string, int64>"),
        Column("f32", "float"),
        Column("at", "timestamp[ns]"),
    ),
)
SPECS = (SUMS, KINDS)


def sums(*rows: tuple[Any, ...]) -> pa.Table:
    """Rows of the table ``sums``: which end, key, n, note."""
    made = [
        {
            "end": T[end],
            "k": key,
            "n": n,
            "low": n / 4,
            "high": Decimal(n) / 4,
            "note": note,
            "seen": [note],
            "price": float(n),
            "item": f"{key}{n}",
        }
        for end, key, n, note in rows
    ]
    return pa.Table.from_pylist(made, SUMS.schema)


def kinds(number: int) -> dict[str, Any]:
    """A row of the table ``kinds``."""
    return {
        "i8": number - 2,
        "u64": 2**64 - 1 - number,
        "b": bool(number % 2),
        "d": date(1969, 12, 30 + number % 2),
        "m": Decimal(number - 2) / 8,
        "raw": bytes([0, number, 255]),
        "nested": None if number == 3 else {"x": number, "y": ["é", None]},
        "map": [("a\x00", number)],
        "f32": 0.5 * number,
        "at": None,
    }


KIND_ROWS = [kinds(number) for number in range(4)]
CHANGES: list[dict[str, TableChanges]] = [
    {
        "sums": TableChanges(merge=sums((0, "a", 1, "x"), (1, "a", 2, "y"), (1, "é", 3, "z"), (1, "gone", 9, "-"))),
        "kinds": TableChanges(put=pa.Table.from_pylist(KIND_ROWS, KINDS.schema)),
    },
    {"sums": TableChanges(merge=sums((1, "a", 5, None), (1, "a", 4, "late")))},
    {"sums": TableChanges(delete=sums((1, "gone", 0, "")).select(SUMS.key_names), merge=sums((1, "é", 1, "w")))},
    {
        "sums": TableChanges(
            put=sums((1, "new", 7, "p")), merge=sums((1, "new", 1, "q"), (0, "b", 1, "o")), expire=-1
        ),
        "kinds": TableChanges(delete=pa.Table.from_pylist([KIND_ROWS[1]], KINDS.schema).select(KINDS.key_names)),
    },
    {"sums": TableChanges(merge=sums((1, "b", 6, "end")))},
]
EXPECTED_SUMS = [
    # key, n, low, high, note, seen, price, item
    ("a", 11, 0.5, Decimal("1.25"), "late", ["y", None, "late"], 5.0, "a5"),
    ("b", 6, 1.5, Decimal("1.50"), "end", ["end"], 6.0, "b6"),
    ("new", 8, 0.25, Decimal("1.75"), "q", ["p", "q"], 7.0, "new7"),
    ("é", 4, 0.25, Decimal("0.75"), "w", ["z", "w"], 3.0, "é3"),
]
EXPECTED_KINDS = [KIND_ROWS[0], KIND_ROWS[2], KIND_ROWS[3]]


def write(folder: Path) -> PartitionState:
    """The five change sets as files, folded so that there are a snapshot, a run and changelogs among them."""
    state, objects = PartitionState(), Objects(folder)
    limits = [Parquet(), Parquet(), Parquet(), Parquet(max_levels=3), Parquet(max_levels=3)]
    for number, (changes, config) in enumerate(zip(CHANGES, limits, strict=True), 1):
        log = PartitionLog(objects, SPECS, config, "golden", 0, 1, f"{number:032x}")
        state = log.append(state, changes, number)
    return state


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    (GOLDEN / "partition.json").parent.mkdir()
    (GOLDEN / "partition.json").write_bytes(msgspec.json.format(msgspec.json.encode(write(GOLDEN)), indent=1) + b"\n")
