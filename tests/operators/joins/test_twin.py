"""Joins of every kind against the twin: bounds, windows of both sides, windows of each side; with any setting."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.join_jobs import SCHEMA, STORES, UNITS, described, observed, table
from tests.helpers.process import LONG, examples, few
from tests.helpers.two_streams import bound
from tests.twins.join import SIDES, Asked, Row, Twin, Window
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.statestore.spec.store import StoreConfig


def drawn(seed: int) -> tuple[Asked, list[list[Row]]]:
    """A join and its input, with replays and duplicates where messages are known by their offsets."""
    pick = random.Random(seed)
    kind = pick.choice(["bounds", "shared", "own", "own"])
    chosen: dict[str, Any] = {
        "how": pick.choice(["inner", "left", "right", "full"]),
        "late": 0 if kind == "own" else pick.choice([0, 6, 15]),
        "close": pick.random() < 0.6,
        "on": pick.random() < 0.8,
        "named": pick.random() < 0.5,
        "large": pick.random() < 0.5,
        "delays": pick.choice([(0, 0), (0, 3), (5, 5)]),
        "in_order": kind == "own" and pick.random() < 0.5,
    }
    if pick.random() < 0.3 and not chosen["in_order"]:
        chosen["updates"] = pick.choice([(4, 4), (None, 5), (4, 6)])
        chosen["late_updates"] = pick.choice([(None, None), (3, None), (4, 6)])
    if kind == "bounds":
        chosen["low"], chosen["high"] = pick.choice(
            [(-3, 3), (0, 5), (-6, -2), (2, 7), (None, 4), (1, None), (None, None)]
        )
        chosen["spans"] = pick.choice([(None, None), (8, 8), (30, None)])
    elif kind == "shared":
        chosen["window"] = Window(*pick.choice([(5, 5), (10, 10), (6, 2), (9, 3)]))
        chosen["first"] = pick.random() < 0.5
        chosen["spans"] = pick.choice([(None, None), (12, None)])
        chosen["past"] = pick.choice([(None, None), (None, 3)])
    else:
        chosen |= _own(pick, chosen["named"])
    return Asked(**chosen), _batches(pick)


def _own(pick: random.Random, named: bool) -> dict[str, Any]:
    of_offsets = [Window(3, 3, True), Window(4, 1, True), Window(3, 3, True, None), Window(5, 2, True, None)]
    places = [None, Window(6, 6), Window(8, 4), *(of_offsets if named else ())]
    own = (pick.choice(places), pick.choice(places))
    asked = Asked(own=own, named=named)
    chosen: dict[str, Any] = {"own": own, "spans": [None, None], "counts": [None, None], "past": [None, None]}
    for place, side in enumerate(SIDES):
        if pick.random() < 0.5:
            if own[place] is not None and pick.random() < 0.5:
                chosen["past"][place] = pick.choice([0, 1, 2])
            elif asked.by_offset(side):
                chosen["counts"][place] = pick.choice([2, 6])
            else:
                chosen["spans"][place] = pick.choice([5, 20])
    chosen |= {name: tuple(chosen[name]) for name in ("spans", "counts", "past")}
    if pick.random() < 0.3:
        chosen["low"], chosen["high"] = pick.choice([(-4, 4), (0, None), (None, 3)])
    return chosen


def _batches(pick: random.Random) -> list[list[Row]]:
    """Offsets and times grow, more or less; some messages come again."""
    offsets, answered, batches = {"left": pick.randint(0, 9), "right": 0}, list[Row](), list[list[Row]]()
    for number in range(pick.randint(1, 5)):
        batch = []
        for place in range(pick.randint(0, 8)):
            side = pick.choice(SIDES)
            offsets[side] += 1
            at = max(0, 7 + number * 7 + pick.choice([0, 5, 9, -3, -9, -16]))
            batch.append(Row(side, pick.choice("aab"), at, 100 * number + place, offsets[side]))
        pick.shuffle(batch)
        if pick.random() < 0.3 and batch + answered:
            batch += pick.choices(batch + answered, k=2)
        batches.append(batch)
        answered += batch
    if pick.random() < 0.2:  # in any order, so lower offsets may come later than higher ones
        pick.shuffle(batches)
    return batches


def played(seed: int, store: StoreConfig, unit: str = "s") -> Iterator[tuple[object, object]]:
    """What a job shows with each batch, each move of the clock and at the end, and what the twin does."""
    asked, batches = drawn(seed)
    if not asked.named:
        # Nobody can tell messages from others of the same content.
        batches = [list(dict.fromkeys(batch)) for batch in batches]
    description, twin, pick = described(asked, unit), Twin(asked), random.Random(seed)
    schema = {"left": SCHEMA, "right": SCHEMA}
    with tempfile.TemporaryDirectory() as folder:
        harness = description.harness(schema, store=store, folder=folder, partitions=pick.choice([1, 2, 5]))
        plan, now, output_watermark = bound(description, SCHEMA, SCHEMA), 0, BEGINNING_US
        for batch in batches:
            sides = {side: table([row for row in batch if row.side == side], unit) for side in SIDES}
            panes = harness.feed(sides)
            yield (asked, observed(panes, asked, unit)), (asked, twin.batch(batch, now))
            assert all(time >= output_watermark for time in panes["time"].cast(pa.int64()).to_pylist()), asked
            if twin.watermark is not None:
                output_watermark = plan.output_watermark(int(twin.watermark) * UNITS[unit], "time")
            if pick.random() < 0.3:
                harness.restart()
            now += pick.choice([0, 1, 3])
            panes = harness.advance_processing_time(now * UNITS[unit])
            yield (asked, observed(panes, asked, unit)), (asked, twin.clock(now))
        panes = harness.finish()
        yield (asked, observed(panes, asked, unit)), (asked, twin.finish())
        assert all(time >= output_watermark for time in panes["time"].cast(pa.int64()).to_pylist()), asked
        yield (asked, harness.ledger().num_rows), (asked, twin.rejected)


@pytest.mark.slow
@pytest.mark.parametrize("store", few(STORES.values(), list(STORES).index("parquet")), ids=STORES)
def test_what_is_emitted_is_what_the_twin_shows(store: StoreConfig) -> None:
    @settings(deadline=None, max_examples=examples(20))
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        for found, wanted in played(seed, store):
            assert found == wanted

    check()


@pytest.mark.slow
def test_a_microsecond_counts() -> None:
    """Bounds, watermarks and retention that are off by one give other pairs, or another ledger."""
    for seed in range(30 if LONG else 9):
        for found, wanted in played(seed, STORES["memory"], "us"):
            assert found == wanted
