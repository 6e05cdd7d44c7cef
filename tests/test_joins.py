"""Joins of two streams against brute force, row by row; refusals; restarts; all stores."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators import Memory, Parquet, RocksDB, session, sliding, tumbling
from operators.harness import Harness
from operators.joins import Joined, join
from statestore.errors import UsageError
from statestore.store import StoreConfig

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("order", pa.string()), ("ordered", TIME), ("price", pa.int64())])
SHIPMENTS = pa.schema([("order", pa.string()), ("shipped", TIME), ("weight", pa.int64())])
STORES: dict[str, StoreConfig] = {
    "memory": Memory(),
    "parquet": Parquet(max_levels=2, snapshot_bytes=1),
    "rocksdb": RocksDB(max_levels=2),
}
Pair = tuple[Any, ...]


@dataclass(frozen=True)
class Row:
    side: str
    key: str
    at: int
    value: int


def tables(rows: list[Row]) -> dict[str, pa.Table]:
    found = {}
    for side, schema in (("left", ORDERS), ("right", SHIPMENTS)):
        own = [row for row in rows if row.side == side]
        columns = [
            pa.array([row.key for row in own], pa.string()),
            pa.array([row.at * SECOND for row in own], pa.int64()).cast(TIME),
            pa.array([row.value for row in own], pa.int64()),
        ]
        found[side] = pa.table(columns, schema=schema)
    return found


def shown(panes: pa.Table) -> Counter[Pair]:
    rows = zip(
        panes["order"].to_pylist(),
        panes["left_price"].to_pylist(),
        panes["right_weight"].to_pylist(),
        [start // SECOND for start in panes["window_start"].cast(pa.int64()).to_pylist()]
        if "window_start" in panes.column_names
        else [None] * panes.num_rows,
        strict=True,
    )
    return Counter(rows)


class Brute:
    """Every row against every other one, with what is behind the watermark taken out."""

    def __init__(self, how: str, low: int | None, high: int | None, size: int | None, slide: int, late: int) -> None:
        self.how, self.low, self.high, self.size, self.slide, self.late = how, low, high, size, slide, late
        self.kept: list[tuple[Row, int | None]] = []
        self.met: set[tuple[Row, int | None]] = set()
        self.alone: set[tuple[Row, int | None]] = set()
        self.rejected = 0
        self.watermark: int | None = None

    def starts(self, row: Row) -> list[int | None]:
        if self.size is None:
            return [None]
        newest = row.at // self.slide * self.slide
        return list(range(newest, row.at - self.size, -self.slide))

    def due(self, row: Row, start: int | None) -> float:
        """The last watermark at which a partner may come."""
        if start is not None and self.size is not None:
            return start + self.size + self.late - 1e-6
        reach = self.high if row.side == "left" else None if self.low is None else -self.low
        return float("inf") if reach is None else row.at + reach + self.late

    def meet(self, one: tuple[Row, int | None], other: tuple[Row, int | None]) -> bool:
        left, right = (one, other) if one[0].side == "left" else (other, one)
        if left[0].side == right[0].side or left[0].key != right[0].key:
            return False
        if self.size is not None:
            return left[1] == right[1]
        apart = right[0].at - left[0].at
        return (self.low is None or apart >= self.low) and (self.high is None or apart <= self.high)

    def batch(self, rows: list[Row]) -> Counter[Pair]:
        before = self.watermark
        found: Counter[Pair] = Counter()
        new: list[tuple[Row, int | None]] = []
        for row in rows:
            places = [(row, start) for start in self.starts(row)]
            if before is not None:
                behind = self.size is not None or row.at < before - self.late
                open_ = [place for place in places if not behind or self.due(*place) >= before]
                # A row for each window that refuses, or one where all do.
                self.rejected += len(places) - len(open_) if open_ else 1
                places = open_
            new += places
        for place, one in enumerate(new):
            for other in [*self.kept, *new[:place]]:
                if self.meet(one, other):
                    left, right = (one, other) if one[0].side == "left" else (other, one)
                    found[left[0].key, left[0].value, right[0].value, left[1]] += 1
                    self.met |= {one, other}
        self.kept += new
        # For some who come nobody else can.
        return found + self.passed(before)

    def passed(self, watermark: float | None) -> Counter[Pair]:
        """What is shown alone, and forgotten, as the watermark comes to here."""
        found: Counter[Pair] = Counter()
        if watermark is None:
            return found
        left = []
        for row, start in self.kept:
            if self.due(row, start) >= watermark and watermark != float("inf"):
                left.append((row, start))
            elif (row, start) not in self.met and self.how in (row.side, "full"):
                values = (row.value, None) if row.side == "left" else (None, row.value)
                found[row.key, *values, start] += 1
        self.kept = left
        return found


rows = st.builds(
    Row,
    side=st.sampled_from(["left", "right"]),
    key=st.sampled_from("aab"),
    at=st.integers(0, 40),
    value=st.integers(0, 10**6),
)


@st.composite
def joins(draw: st.DrawFn) -> tuple[Joined, Brute]:
    how, late = draw(st.sampled_from(["inner", "left", "right", "full"])), draw(st.sampled_from([0, 0, 4]))
    given_ = {"how": how, "late": f"{late} seconds"}
    names: Any = {"event_time": ("ordered", "shipped"), "on": "order"}
    if draw(st.booleans()):
        size, slide = draw(st.sampled_from([(5, 5), (10, 10), (6, 2), (9, 3)]))
        window = tumbling(f"{size} s") if size == slide else sliding(f"{size} s", f"{slide} s")
        return join(**names, window=window, **given_), Brute(how, None, None, size, slide, late)
    low, high = draw(st.sampled_from([(-3, 3), (0, 5), (-6, -2), (2, 7), (None, 4), (1, None), (0, 0)]))
    bounds = tuple(None if bound is None else f"{bound} seconds" for bound in (low, high))
    return join(**names, within=bounds, **given_), Brute(how, low, high, None, 0, late)


def played(made: tuple[Joined, Brute], batches: list[list[Row]], store: StoreConfig, restart: bool) -> None:
    description, brute = made
    schema = description.schema(ORDERS, SHIPMENTS)
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(description, schema, store=store, folder=folder, generate=False, partitions=2)
        mark: int | None = None
        for number, batch in enumerate(batches):
            found = shown(harness.feed(description.rows(schema, **tables(batch))))
            assert found == brute.batch(batch)
            if restart:
                harness.restart()
            mark = max(mark or 0, number * 7)
            assert shown(harness.advance_watermark(mark * SECOND)) == brute.passed(mark)
            brute.watermark = mark
        assert shown(harness.finish()) == brute.passed(float("inf"))
        assert harness.ledger().num_rows == brute.rejected


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_pairs_and_rows_alone_are_those_of_brute_force(store: StoreConfig) -> None:
    @settings(deadline=None, max_examples=25)
    @given(joins(), st.lists(st.lists(rows, max_size=8), min_size=1, max_size=5), st.booleans())
    def check(made: tuple[Joined, Brute], batches: list[list[Row]], restart: bool) -> None:
        numbered = [
            [Row(row.side, row.key, row.at, 100 * number + place) for place, row in enumerate(batch)]
            for number, batch in enumerate(batches)
        ]
        played(made, numbered, store, restart)

    check()


def test_each_side_has_a_watermark_and_the_smaller_one_counts() -> None:
    description = join(event_time=("ordered", "shipped"), on="order", within=("0 s", "5 s"), how="left")
    schema = description.schema(ORDERS, SHIPMENTS)
    harness = Harness(description, schema)

    def feed(*fed: Row) -> list[Pair]:
        return list(shown(harness.feed(description.rows(schema, **tables(list(fed))))))

    assert feed(Row("left", "a", 1, 1), Row("left", "b", 90, 2)) == []  # the right side has said nothing yet
    assert feed(Row("right", "b", 93, 3)) == [("b", 2, 3, None), ("a", 1, None, None)]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no bounds": ({}, "join-bounds"),
    "bounds and windows": ({"within": (None, None), "window": tumbling("1 s")}, "join-bounds"),
    "bounds the wrong way round": ({"within": ("2 s", "1 s")}, "join-bounds"),
    "sessions": ({"window": session("1 s")}, "join-window"),
    "no such join": ({"within": (None, None), "how": "semi"}, "join-how"),
    "no key": ({"within": (None, None), "on": ()}, "join-on"),
    "on the time": ({"within": (None, None), "on": "t"}, "join-on"),
    "negative lateness": ({"within": (None, None), "late": "-1 s"}, "lateness"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_joins_are_refused(name: str) -> None:
    asked, code = REFUSED[name]
    with pytest.raises(UsageError, match=code):
        join(**({"event_time": "t", "on": "k"} | asked))


def test_sides_that_do_not_fit_are_refused() -> None:
    description = join(event_time=("ordered", "shipped"), on="order", within=(None, None))
    with pytest.raises(UsageError, match="column-missing"):
        description.schema(ORDERS, ORDERS)
    other = pa.schema([("order", pa.int64()), ("shipped", TIME)])
    with pytest.raises(UsageError, match="side-types"):
        description.schema(ORDERS, other)


def test_the_block_of_the_page_runs() -> None:
    root = Path(__file__).resolve().parent.parent
    blocks = re.findall(r"^```python\n(.*?)^```", (root / "docs" / "JOINS.md").read_text(), re.S | re.M)
    command = [sys.executable, "-c", "\n".join(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "{'order': 'a', 'left_price': 5, 'right_weight': 2}",
        "{'order': 'b', 'left_price': 7, 'right_weight': None}",
    ]


def test_a_join_keeps_no_windows_to_feed_back_to() -> None:
    description = join(event_time=("ordered", "shipped"), on="order", within=("0 s", "5 s"))
    with pytest.raises(UsageError, match=r"\[feed\]"):
        Harness(description, description.schema(ORDERS, SHIPMENTS)).feed_back()
