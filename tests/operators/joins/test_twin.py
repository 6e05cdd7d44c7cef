"""Joins of every kind against the twin: bounds, windows of both sides, windows of each side; with any setting."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.join_jobs import SCHEMA, STORES, UNITS, described, drawn, observed, table
from tests.helpers.process import LONG, examples, few
from tests.helpers.two_streams import bound
from tests.twins.join import SIDES, Twin
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.spec.store import StoreConfig

DECIDING = (277, 663)
"""Of these a microsecond of a row's last moment, and of the output's watermark, changes what is emitted: the mutants
that `test_a_microsecond_counts` catches say so, and have to be run again when `drawn` changes.
"""


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
    for seed in (*range(30 if LONG else 9), *DECIDING):
        for found, wanted in played(seed, STORES["memory"], "us"):
            assert found == wanted
