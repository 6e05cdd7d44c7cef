"""What tasks get to know of state partitions: always all of their own, sent as changes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.spark_inputs import batch, job
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine.job import Job
from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.spark import tasks
from tidestate.operators.spark.tasks import Packed, SentStates
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.store import Parquet

PARTITIONS = 200


class _Sent:
    """A broadcast that knows whether it was destroyed."""

    def __init__(self, packed: Packed) -> None:
        self._packed, self.destroyed = packed, False

    @property
    def value(self) -> Packed:
        assert not self.destroyed, "no task of a round needs what was destroyed"
        return self._packed

    def destroy(self) -> None:
        assert not self.destroyed
        self.destroyed = True


@dataclass
class _Broadcasts:
    """Broadcasts without Spark."""

    sent: list[_Sent] = field(default_factory=list)

    def __call__(self, packed: Packed) -> _Sent:
        self.sent.append(_Sent(packed))
        return self.sent[-1]

    @property
    def bytes(self) -> int:
        return sum(sum(map(len, one._packed)) for one in self.sent)


@pytest.fixture(scope="module")
def micro_batch(tmp_path_factory: pytest.TempPathFactory) -> MicroBatch:
    """The first micro-batch of a job with `PARTITIONS` state partitions."""
    root = tmp_path_factory.mktemp("root")
    graph = bind_graph(job().graph.description, batch([]).schema)
    return Job.begin(graph, Checkpoint.open_or_create(root), Parquet(), partitions=PARTITIONS).micro_batch(0)


def changed(micro_batch: MicroBatch, numbers: list[int], sequence: int) -> MicroBatch:
    """The micro-batch with other entries for these state partitions; the others are the same objects."""
    ref = FileRef(f"state/{sequence}", 1_000, f"{sequence:064x}", 10)
    states = {
        name: {**own.base, **{number: PartitionState((ref,), sequence=sequence) for number in numbers}}
        for name, own in micro_batch.inputs.items()
    }
    return micro_batch.with_states(states)


@given(
    steps=st.lists(st.lists(st.integers(0, PARTITIONS - 1), max_size=PARTITIONS), min_size=1, max_size=12),
    divisions=st.lists(st.sampled_from([1, 3, 8]), min_size=1, max_size=3),
    inline=st.sampled_from([0, 500, 5_000, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_each_task_has_all_of_its_state_partitions(
    micro_batch: MicroBatch, steps: list[list[int]], divisions: list[int], inline: int
) -> None:
    broadcasts = _Broadcasts()
    states = SentStates(broadcasts)
    with patch.object(tasks, "INLINE_BYTES", inline):
        for sequence, numbers in enumerate(steps):
            micro_batch = changed(micro_batch, numbers, sequence)
            here = micro_batch.divided(divisions[sequence % len(divisions)])
            sent, of_tasks = states.sent(here)
            assert not any(own.base for own in sent.inputs.values()), "entries travel apart"
            for task in range(len(here.spans)):
                assert of_tasks.of_task(sent, task).states(task) == here.states(task)


def test_what_is_sent_follows_what_changes(micro_batch: MicroBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "INLINE_BYTES", 2_000)
    broadcasts, chance = _Broadcasts(), random.Random(3)
    states = SentStates(broadcasts)
    micro_batch = changed(micro_batch, list(range(PARTITIONS)), 1).divided(8)
    whole = sum(map(len, states.sent(micro_batch)[1].before[0].value))
    sent = -broadcasts.bytes
    for step in range(100):
        micro_batch = changed(micro_batch, chance.sample(range(PARTITIONS), 2), step + 2)
        sent += sum(map(len, states.sent(micro_batch)[1].changed))
    assert sent + broadcasts.bytes < 100 * whole / 10
    assert sum(not one.destroyed for one in broadcasts.sent) < 40
