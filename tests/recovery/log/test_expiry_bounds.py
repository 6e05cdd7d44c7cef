"""The expiry bounds of an operator: stored once, in force in every state partition."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import evidence
from tests.helpers.worked_example import SECOND, batch
from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import windowed
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.files.refs import PartitionState
from tidestate.stores import Parquet

BOUNDS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(-(2**63), 2**63 - 1))
STATES = st.lists(BOUNDS, min_size=1, max_size=4).map(
    lambda all_: tuple(PartitionState(expired=one, lineage=str(number)) for number, one in enumerate(all_))
)
EMPTY = OperatorState({}, "", (), ())


@given(STATES)
def test_every_partition_keeps_its_bounds(states: tuple[PartitionState, ...]) -> None:
    assert EMPTY.with_states(states).states == states


@given(STATES)
def test_a_bound_of_all_partitions_is_stored_once(states: tuple[PartitionState, ...]) -> None:
    operator = EMPTY.with_states(states)
    for table in "abc":
        known = [one.expired[table] for one in states if table in one.expired]
        assert operator.expired.get(table) == (min(known) if len(known) == len(states) else None)
        own = [one.expired.get(table) for one in operator.partitions]
        assert all(bound is None or bound > operator.expired.get(table, bound - 1) for bound in own)


@given(STATES, BOUNDS)
def test_the_higher_bound_counts(states: tuple[PartitionState, ...], bounds: dict[str, int]) -> None:
    for one in states:
        under = one.under(bounds)
        for table in "abc":
            both = [bound for bound in (one.expired.get(table), bounds.get(table)) if bound is not None]
            assert under.expired.get(table) == max(both, default=None)
        assert under.above(bounds).under(bounds) == under


def test_expiry_changes_no_partition_without_files(tmp_path: Path) -> None:
    job = windowed(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count()).late("0 seconds")
    batches = [batch([(second, "a", 0)]) for second in (1, 12, 23, 34)]
    job.standalone(checkpoint=tmp_path, partitions=4).run(batches)
    found = [one["operators"]["windows"] for one in evidence.manifests(tmp_path)]
    assert [one["expired"].get("groups") for one in found] == [None, 0, 10 * SECOND, 20 * SECOND, 30 * SECOND] or (
        found[-1]["expired"]["groups"] == 34 * SECOND
    )
    for number in range(4):
        entries = [one["partitions"][number] for one in found]
        assert all(entry["expired"] == {} for entry in entries)
        if not any(entry["files"] for entry in entries):
            assert all(entry == entries[1] for entry in entries[1:])  # the first batch finds when it is due


def test_the_bounds_survive_a_rescale(tmp_path: Path) -> None:
    job = windowed(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count()).late("0 seconds")
    job.standalone(checkpoint=tmp_path, partitions=4).run([batch([(1, "a", 0), (2, "b", 0), (15, "a", 0)])])
    before = Checkpoint.open(tmp_path).chosen(None).manifest.operators["windows"]
    rescale(tmp_path, 3)
    after = Checkpoint.open(tmp_path).chosen(None).manifest.operators["windows"]
    assert after.expired == before.expired != {}
    panes = job.standalone(checkpoint=tmp_path, store=Parquet()).run(
        [batch([(1, "a", 0), (2, "b", 0), (15, "a", 0)]), batch([(40, "c", 0)])]
    )
    assert [(row["k"], row["n"]) for row in panes.to_pylist()] == [("a", 1)]
