"""Deduplication with a lateness of its own, against a dictionary: any cut, any lateness, changed between runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import LONG, few, in_turn
from tests.twins.deduplicated import Row, Twin
from tidestate import OperatorStream
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory, Parquet
from tidestate.statestore.spec.tables import TIME

SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("v", pa.int64())])


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([row._asdict() for row in rows], SCHEMA)


def values(panes: pa.Table) -> list[int]:
    return sorted(panes["v"].to_pylist())


def described(within: int | None, delay: int, lateness: int, *, in_order: bool) -> OperatorStream:
    span = None if within is None else f"{within} us"
    events = ts.stream(event_time="t", watermark_delay=f"{delay} us")
    return events.deduplicate("k", within=span, allowed_lateness=f"{lateness} us", in_order=in_order)


def drawn(chance: random.Random) -> list[list[Row]]:
    """Batches of rows that come up to 60 behind, of ten ids."""
    times = [max(0, at + chance.choice([0, 0, -chance.randrange(15), -chance.randrange(60)])) for at in range(100)]
    rows = [Row(t, f"k{chance.randrange(10)}", number) for number, t in enumerate(times)]
    cuts = sorted(chance.sample(range(1, len(rows)), 9))
    return [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@pytest.mark.parametrize(("seed", "in_order"), few(in_turn(range(8 if LONG else 4), [False, True]), 1, 2))
def test_any_lateness_that_changes_between_runs(seed: int, in_order: bool, tmp_path: Path) -> None:
    chance = random.Random(seed)
    within = chance.choice([None, 0, 1, 7, 25])
    delay, lateness = chance.randrange(6), chance.choice([0, 3, 12, 40])
    twin = Twin(within, delay, lateness, in_order=in_order)
    store: Any = Parquet(max_levels=2, snapshot_bytes=1) if seed % 3 else Memory()
    job = _begun(described(within, delay, lateness, in_order=in_order), tmp_path, store)
    for batch in drawn(chance):
        assert values(job.feed(table(batch))) == sorted(twin.take(batch))
        happens = chance.randrange(4)
        if happens == 0:
            lateness = chance.choice([0, 3, 12, 40])
            twin.change(lateness)
            job = _begun(described(within, delay, lateness, in_order=in_order), tmp_path, store)
        if happens == 1:
            again = chance.sample(twin.ledger, min(3, len(twin.ledger)))
            assert values(job.reprocess_late(table(again))) == sorted(twin.reprocess(again))
        assert job.state("seen").num_rows == len(twin.until)
    assert sorted(job.ledger()["v"].to_pylist()) == sorted(row.v for row in twin.ledger)
    assert twin.ledger


def _begun(description: OperatorStream, folder: Path, store: Any) -> Harness:
    return description.harness(SCHEMA, folder=folder, store=store, partitions=3)


def test_a_repetition_within_the_lateness_is_known(tmp_path: Path) -> None:
    """The id lives as long as its repetition may be late; where both end the row goes to the ledger."""
    job = described(10, 0, 30, in_order=False).harness(SCHEMA, folder=tmp_path)
    assert values(job.feed(table([Row(0, "a", 0), Row(30, "b", 1)]))) == [0, 1]
    assert values(job.feed(table([Row(0, "a", 2), Row(29, "c", 3)]))) == [3]
    assert values(job.feed(table([Row(31, "d", 4)]))) == [4]
    assert values(job.feed(table([Row(0, "a", 5), Row(1, "a", 6)]))) == []
    assert (job.counters()["very_late"], job.counters()["duplicates"]) == (1, 2)
    assert job.ledger()["v"].to_pylist() == [5]


def test_what_is_put_back_is_known_from_then_on(tmp_path: Path) -> None:
    job = described(10, 0, 0, in_order=False).harness(SCHEMA, folder=tmp_path)
    job.feed(table([Row(100, "a", 0)]))
    job.feed(table([Row(5, "b", 1), Row(6, "b", 2), Row(7, "a", 3)]))
    assert values(job.reprocess_late()) == [1]
    assert values(job.reprocess_late()) == []
    assert values(job.reprocess_late(table([Row(5, "b", 4)]))) == []
    assert values(job.feed(table([Row(110, "c", 5)]))) == [5]
    assert values(job.reprocess_late(table([Row(5, "b", 6)]))) == [6]


def test_no_lateness_is_negative() -> None:
    with pytest.raises(UsageError, match="lateness"):
        ts.stream(event_time="t").deduplicate("k", allowed_lateness="-1 seconds")
