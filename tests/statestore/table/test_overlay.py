"""Changes laid over a store read as if they were in it, and come out as one change set that amounts to the same."""

from __future__ import annotations

import re
from random import Random

import pyarrow as pa
import pytest

from tests.helpers.process import LONG, some
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.stores.memory import MemoryStore
from tidestate.statestore.table.overlay import OverlayView
from tidestate.statestore.testing import generated
from tidestate.statestore.testing.rows import table
from tidestate.statestore.testing.tables import SPECS


def answered(answers: list[object]) -> str:
    """As text, in which NaN equals NaN; sums of floats are regrouped, so not to the last digit."""
    return re.sub(r"\d+\.\d{6,}", lambda found: f"{float(found[0]):.9g}", repr(answers))


def read(view: StateView, random: Random, sequence: int) -> str:
    """Answers to some questions about each table, the same questions for the same ``random``."""
    answers: list[object] = []
    for spec in SPECS:
        ask = generated.question(spec, random, sequence)
        parts = view[spec.name].scan(key_range(ask.lower, ask.upper, prefix=ask.prefix), reverse=ask.reverse)
        answers.append(pa.concat_tables([spec.schema.empty_table(), *parts]).to_pylist())
        keys = table(spec, generated.keys(spec, random, sequence), keys_only=True)
        found = view[spec.name].lookup(keys)
        answers.append((found.found.to_pylist(), found.rows.to_pylist()))
        many = generated.range_requests(spec, random, sequence)
        columns = [pa.array([p[i] for p in many.prefixes], c.arrow) for i, c in enumerate(spec.key[: many.width])]
        if columns:
            prefixes = pa.table(columns, names=spec.key_names[: many.width])
            ranges = view[spec.name].ranges(prefixes, many.bound(spec, many.lower), many.bound(spec, many.upper))
            answers.append((ranges.request_index.to_pylist(), ranges.rows.to_pylist()))
    return answered(answers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(4, 18), 1))
def test_an_overlay_reads_like_the_store_it_will_be(seed: int) -> None:
    random = Random(seed)
    below, whole = MemoryStore(SPECS), MemoryStore(SPECS)
    first, last = random.randrange(1, 12), random.randrange(14, 40 if LONG else 18)
    for sequence in range(1, first + 1):
        changes = generated.seeded_changes(seed, sequence)
        below.apply(changes, generated.applied(sequence))
        whole.apply(changes, generated.applied(sequence))
    state = OverlayView(below, SPECS)
    for sequence in range(first + 1, last):
        before = state
        state = state.fork()
        changes = generated.seeded_changes(seed, sequence)
        state.apply(changes)
        left = read(before, Random(seed), sequence)
        assert left == read(whole, Random(seed), sequence), "what a fork does stays with the fork"
        whole.apply(changes, generated.applied(sequence))
        assert read(state, Random(sequence), sequence) == read(whole, Random(sequence), sequence)
    below.apply(state.changes(), generated.applied(last))
    for spec in SPECS:
        rows = [pa.concat_tables([spec.schema.empty_table(), *store[spec.name].scan()]) for store in (below, whole)]
        assert answered(rows[0].to_pylist()) == answered(rows[1].to_pylist())
