"""Everything that changes a checkpoint root, in any order: its output stays that of a run nothing happened to."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.every_store import new_folder
from tests.helpers.moves import fork, repair, reset_to
from tests.helpers.process import LONG, forget, longer
from tests.helpers.spark_inputs import rows, sample
from tidestate import Aggregation, agg
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.log.records import read_pins
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

BATCHES = 6
TABLES = sample(BATCHES, 60)
BASE = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k")
JOBS = {
    "tumbling": BASE.window(ts.tumbling("10 seconds"))
    .aggregate(n=agg.count(), s=agg.sum("v"))
    .named("windows")
    .allowed_lateness("20 seconds"),
    "sessions": BASE.window(ts.sessions("4 seconds"))
    .aggregate(n=agg.count(), s=agg.sum("v"))
    .named("windows")
    .allowed_lateness("20 seconds"),
}
STORES: list[StoreConfig] = [
    Parquet(max_levels=2, snapshot_bytes=1),
    Parquet(),
    Memory(max_levels=3),
    RocksDB(max_levels=3),
]
Observed = list[list[tuple[object, ...]]]
STEPS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 3)),
    st.tuples(st.just("rewind"), st.integers(0, 20)),
    st.tuples(st.just("rescale"), st.integers(1, 6)),
    st.tuples(st.just("collect"), st.integers(1, 3)),
    st.tuples(st.just("fork"), st.integers(0, 20)),
    st.tuples(st.just("pin"), st.integers(0, 20)),
    st.tuples(st.just("damage"), st.just(0)),
)


class Root:
    """A checkpoint root and what became of it; ``begun`` are the batches that were in it when it was made."""

    def __init__(self, description: Aggregation, folder: Path) -> None:
        self.description, self.folder = description, folder
        self.root, self.begun, self.forks = folder / "0", 0, 0

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.open(self.root)

    @property
    def taken(self) -> int:
        if not self.root.exists():
            return 0
        head = self.checkpoint.head()
        return head.manifest.input.batches if head and head.manifest.input else 0

    def some(self, number: int) -> int:
        """One of the checkpoints that count."""
        ids = [one.id for one in self.checkpoint.history()]
        return ids[number % len(ids)]

    def run(self, batches: int, store: StoreConfig, *, drain: bool = False) -> None:
        forget()  # as a new process
        runner = self.description.standalone(checkpoint=self.root, store=store, partitions=2)
        runner.run(TABLES[: max(1, min(BATCHES, self.taken + batches))], drain=drain)

    def take(self, step: str, number: int) -> None:
        if step == "rewind":
            reset_to(self.checkpoint, self.some(number))
        elif step == "rescale":
            head = self.checkpoint.head()
            if head is not None and head.manifest.partitions != number:
                rescale(self.root, number)
        elif step == "collect":
            collect(self.checkpoint, CheckpointRetention(newest=number, grace="0 seconds"))
        elif step == "pin":
            pin(self.checkpoint, self.some(number), f"pin-{uuid.uuid4().hex}")
        elif step == "fork":
            self.forks += 1
            chosen, into = self.some(number), self.folder / str(self.forks)
            held = self.checkpoint.read(chosen).manifest.input
            fork(self.root, into, chosen)
            self.root, self.begun = into, held.batches if held else 0
        elif step == "damage":
            newest = self.checkpoint.ids()[-1]
            path = self.root / manifest_path(newest)
            if len(self.checkpoint.ids()) > 1:
                path.write_bytes(path.read_bytes()[:-30] + b"x" * 30)
                repair(self.checkpoint)
                for one in read_pins(self.checkpoint.objects):
                    if one.checkpoint == newest:
                        unpin(self.checkpoint, one.name)  # nobody knows any more what it keeps

    def observed(self, kind: str) -> Observed:
        """Rows of each checkpoint that has put something out."""
        checkpoint, found = self.checkpoint, []
        for output in checkpoint.outputs():
            tables = [pq.read_table(checkpoint.objects.locate(ref.path)) for ref in getattr(output, kind)]
            if tables:
                found.append(sorted(rows(pa.concat_tables(tables)), key=repr))
        return found


def undisturbed(description: Aggregation) -> tuple[dict[int, Observed], dict[int, Observed]]:
    """Panes and ledgers by how many batches the checkpoint has: with one more for the drain."""
    with new_folder() as path:
        root = Root(description, path)
        root.run(BATCHES, Parquet(), drain=True)
        found: tuple[dict[int, Observed], dict[int, Observed]] = ({}, {})
        for manifest in root.checkpoint.history():
            number = BATCHES + 1 if manifest.drained else manifest.input.batches if manifest.input else 0
            for kind, by_batch in zip(("panes", "late"), found, strict=True):
                files = [root.checkpoint.objects.locate(ref.path) for ref in getattr(manifest, kind)]
                if files:
                    tables = pa.concat_tables([pq.read_table(file) for file in files])
                    by_batch[number] = sorted(rows(tables), key=repr)
    return found


EXPECTED = {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sessions", *longer("tumbling")])
@given(
    steps=st.lists(STEPS, max_size=12 if LONG else 7),
    stores=st.lists(st.sampled_from(range(len(STORES))), min_size=1, max_size=4),
)
@settings(max_examples=settings.default.max_examples // 2 if LONG else 2)
def test_whatever_is_done_to_a_root_its_job_goes_on(
    name: str, steps: list[tuple[str, int]], stores: list[int]
) -> None:
    description = JOBS[name].accumulation("retracting")
    if name not in EXPECTED:
        EXPECTED[name] = undisturbed(description)
    with new_folder() as path:
        root, number = Root(description, path), 0
        root.run(1, STORES[stores[0]])
        for step, argument in steps:
            if step == "run":
                number += 1
                root.run(argument, STORES[stores[number % len(stores)]])
            else:
                root.take(step, argument)
        root.run(BATCHES, STORES[stores[-1]], drain=True)
        for kind, expected in zip(("panes", "late"), EXPECTED[name], strict=True):
            assert root.observed(kind) == [found for batch, found in sorted(expected.items()) if batch > root.begun]
        found = verify(root.checkpoint, read_percent=100)
        assert found.worst is None
        assert found.good == root.checkpoint.ids()[-1]
