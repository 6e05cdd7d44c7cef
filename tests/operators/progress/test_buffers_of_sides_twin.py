"""Joins whose sides have buffers, against the twin: orders of arrival, chunks, gaps, ends, duplicates, restarts."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.buffers_of_sides import (
    CHUNK_SCHEMA,
    JOIN_BOUNDS,
    SCHEMAS,
    arrivals,
    joined,
    observed,
    sent,
    tables,
)
from tests.helpers.join_jobs import SECOND
from tests.helpers.process import SCRATCH, examples
from tests.twins.buffered_join import BufferedTwin
from tests.twins.join import SIDES, Asked, Pane
from tidestate.operators import JoinOperator
from tidestate.statestore.spec.store import Memory


class History:
    """What follows from a seed: a join, its declared origins, and its batches."""

    def __init__(self, seed: int, *, named: bool = False) -> None:
        self.chance = random.Random(seed)
        low, high = self.chance.choice(JOIN_BOUNDS)
        how, late = self.chance.choice(["inner", "left", "full"]), self.chance.choice([0, 0, 6])
        self.asked = Asked(how, low, high, late=late, named=named)
        self.declared = {side: [1, 2][: self.chance.choice([0, 0, 1, 2])] for side in SIDES}
        self.patience = self.chance.choice([None, None, 3])
        chunks = sent(self.chance, ends=self.chance.random() < 0.4)
        self.batches = arrivals(self.chance, chunks)
        self.twin = BufferedTwin(self.asked, self.declared, self.patience)

    @property
    def job(self) -> Any:
        return joined(self.asked, self.declared, self.patience)


def mark_of(folder: Path) -> float | None:
    shown_panes = evidence.work(folder)[-1].get("watermark_us")
    return None if shown_panes is None else shown_panes / SECOND


def played(seed: int) -> Iterator[tuple[object, object]]:
    """What a harness shows after each step, and what the twin does."""
    history = History(seed)
    chance, twin, now = history.chance, history.twin, 0
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        root = Path(folder) / "root"
        harness = history.job.harness(SCHEMAS, store=Memory(), folder=root, partitions=chance.choice([1, 2]))
        for batch in history.batches:
            yield observed(harness.feed(tables(batch))), twin.came(batch, now)
            yield mark_of(root), twin.watermark
            if chance.random() < 0.3:
                harness.restart()
                twin.restarted()
            if chance.random() < 0.4:
                now += chance.choice([1, 2, 5])
                yield observed(harness.advance_processing_time(now * SECOND)), twin.ticked(now)
                yield mark_of(root), twin.watermark
        late = Counter(harness.ledger()["reason"].to_pylist())
        of_buffers = Counter(
            {name: many for name, many in late.items() if name in ("duplicate_buffer", "gap_given_up")}
        )
        yield of_buffers, +twin.refused
        yield late.total() - of_buffers.total(), twin.rejected
        yield observed(harness.finish()), twin.finish()


@settings(deadline=None, max_examples=examples(25))
@given(st.integers(0, 2**32))
def test_what_is_emitted_is_what_the_twin_shows(seed: int) -> None:
    for shown_panes, expected_panes in played(seed):
        assert shown_panes == expected_panes


@settings(deadline=None, max_examples=examples(6))
@given(st.integers(0, 2**32))
def test_a_standalone_run_that_is_cut_emits_what_the_twin_shows(seed: int) -> None:
    history = History(seed)
    # Nothing is known of the time that passes.
    twin = BufferedTwin(history.asked, history.declared)
    job = joined(history.asked, history.declared)
    batches, expected_panes = [tables(batch) for batch in history.batches], Counter[Pane]()
    for batch in history.batches:
        expected_panes += twin.came(batch, 0)
    expected_panes += twin.finish()
    shown_panes = Counter[Pane]()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for until in sorted({history.chance.randint(1, len(batches)), len(batches)}):
            runner = job.standalone(checkpoint=Path(folder) / "root")
            shown_panes += observed(runner.run(batches[:until], drain=until == len(batches)))
    assert shown_panes == expected_panes


@settings(deadline=None, max_examples=examples(6))
@given(st.integers(0, 2**32))
def test_by_hand_it_emits_what_the_twin_shows(seed: int) -> None:
    history = History(seed, named=True)
    twin, expected_panes = BufferedTwin(history.asked, history.declared), Counter[Pane]()
    for batch in history.batches:
        expected_panes += twin.came(batch, 0)
    expected_panes += twin.finish()
    shown_panes = Counter[Pane]()
    description = joined(history.asked, history.declared).operator.description

    def take(panes: pa.Table, _checkpoint: int) -> None:
        shown_panes.update(observed(panes))

    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        batches = [tables(batch) for batch in history.batches]
        with JoinOperator(description, CHUNK_SCHEMA, CHUNK_SCHEMA, checkpoint=Path(folder) / "root") as operator:  # type: ignore[arg-type]
            ts.run_operator(operator, batches, take, clock=lambda: 0, drain=True)
    assert shown_panes == expected_panes
