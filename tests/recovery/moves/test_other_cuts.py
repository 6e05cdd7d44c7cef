"""After a rewind, a fork, a rescale, a repair, a fall-back or a change the rest of the input comes in other batches:
every event is once in state, net panes or ledger. Which come too late may change with it, in panes as in the ledger.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.helpers.every_store import new_folder
from tests.helpers.moves import reset_to
from tests.helpers.other_cuts import (
    JOINS,
    KINDS,
    Event,
    pairs,
    standing,
)
from tests.helpers.process import some
from tests.helpers.recut_roots import STORES, Root, check_exact, history, identity
from tidestate.recovery.inspect.verify import verify


def check_joined(root: Root) -> None:
    """Once drained every row is in the ledger, or in what stands of the output: no pair twice, and none made up."""
    panes, late = root.put_out()
    ledger = Counter(identity(row) for row in late)
    stands: Counter[tuple[int | None, int | None]] = Counter()
    for row in (row for part in panes for row in part):
        stands[row["left_id"], row["right_id"]] += 1 if row["kind"] == "emit" else -1
    stands = Counter({pair: times for pair, times in stands.items() if times})
    assert set(stands.values()) == {1}
    assert set(ledger.values()) <= {1}
    observed = {number for pair in stands for number in pair if number is not None}
    assert not observed & set(ledger)
    assert observed | set(ledger) == {one.id for one in root.events}
    alone = [pair for pair in stands if None in pair]
    paired = {number for pair in stands if None not in pair for number in pair}
    assert not paired & {number for pair in alone for number in pair}
    possible = pairs([one for one in root.events if one.id not in ledger])
    assert stands.keys() - alone <= possible
    if {row["reason"] for row in late} <= {"null_event_time", "null_key"}:
        assert stands.keys() - alone == possible


SEEDS = range(100 if os.environ.get("TIDESTATE_LONG") else 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", some(KINDS, 1))
def test_every_event_is_once_whatever_is_done_and_however_the_rest_is_cut(name: str, seed: int) -> None:
    with new_folder() as path:
        root = history(KINDS[name], random.Random(f"{name} {seed}"), path, lambda root: check_exact(root, name))
        check_exact(root, name)
        assert verify(root.checkpoint, read_percent=100).worst is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:50])
@pytest.mark.parametrize("name", some(JOINS, 1))
def test_every_row_of_a_join_is_once(name: str, seed: int) -> None:
    with new_folder() as path:
        root = history(JOINS[name], random.Random(f"{name} {seed}"), path, lambda _root: None)
        check_joined(root)
        reasons = {row["reason"] for row in root.put_out()[1]}
        assert ("very_late" in reasons) is (name == "some late")


def test_what_comes_too_late_by_one_cut_only() -> None:
    """The last event is in the batch that moves the watermark past it, or in the one after: observed, or rejected."""
    kind = KINDS["tumbling"]
    events = [Event(n, at, "a", left=False) for n, at in enumerate((1, 2, 12, 60, 3))]
    with new_folder() as path:
        root = Root(kind, events, path)
        root.run([2, 2, 1], STORES[0])
        check_exact(root, "tumbling")
        assert [(row["id"], row["reason"]) for row in root.put_out()[1]] == [(4, "very_late")]
        second = next(one.id for one in root.checkpoint.history() if one.input and one.input.batches == 1)
        reset_to(root.checkpoint, second)
        root.note(root.has[second])
        root.run([3], STORES[0], drain=True)
        check_exact(root, "tumbling")
        panes, late = root.put_out()
        assert not late
        assert standing(panes, kind)[0, 10, "a"] == {0, 1, 4}
