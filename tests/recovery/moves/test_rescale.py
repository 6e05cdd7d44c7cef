"""A job whose state is divided again between batches, again and again, is the job that never was: for every kind of
operator and every store, with files folded early and late.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.process import LONG, SCRATCH, longer, some
from tests.helpers.rescaled_jobs import KEYS, KINDS, SECOND, Event, Kind, events
from tests.helpers.spark_inputs import rows
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.stores.opening import open_store

STORES: dict[str, StoreConfig] = {
    "memory": Memory(max_levels=2, snapshot_bytes=1),
    "memory, much later": Memory(),
    "parquet": Parquet(max_levels=2),
    "parquet, snapshots": Parquet(max_levels=6, snapshot_bytes=1),
    "parquet, much later": Parquet(),
    "rocksdb": RocksDB(max_levels=3, snapshot_bytes=4000),
}
NUMBERS = ("offset", "_first", "_second", "_number")
"""Running numbers of a state partition, where rows bring none."""

pytestmark = pytest.mark.filterwarnings("ignore:sessions grow and merge")


def tables(manifest: Manifest) -> Iterator[tuple[str, TableSpec]]:
    for name, operator in manifest.operators.items():
        for spec in operator.tables:
            yield name, spec


def contents(checkpoint: Checkpoint, state: PartitionState, manifest: Manifest, name: str, table: str) -> pa.Table:
    specs = manifest.operators[name].tables
    spec = next(one for one in specs if one.name == table)
    with open_store(Parquet(), checkpoint.objects, "", specs, state) as store:
        return pa.concat_tables([spec.schema.empty_table(), *store[table].scan()])


def check_places(folder: str) -> int:
    """Each row of each table lies in the partition that its key hashes to; how many rows there are."""
    checkpoint = Checkpoint.open(folder)
    head = checkpoint.head()
    assert head is not None
    manifest, found = head.manifest, 0
    for name, spec in tables(manifest):
        assert spec.partition_by is not None, spec.name
        for number, state in enumerate(manifest.operators[name].partitions):
            stored = contents(checkpoint, state, manifest, name, spec.name)
            found += stored.num_rows
            if spec.partition_by and not spec.shared:
                places = partition_of(stored.select(list(spec.partition_by)), manifest.partitions)
                assert np.all(places == number), (name, spec.name, number)
            elif not spec.partition_by:
                assert number == 0 or not stored.num_rows, (name, spec.name, number)
    return found


def stored_rows(job: Harness, folder: str, *, numbered: bool) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """All state, without what is about partitions; as the job's own store has it."""
    head = Checkpoint.open(folder).head()
    assert head is not None
    found = {}
    for name, spec in tables(head.manifest):
        if spec.name == "numbered":
            continue
        kept = job.state(spec.name, name)
        kept = kept.drop_columns([one for one in NUMBERS if numbered and one in kept.column_names])
        listed = rows(kept)
        found[name, spec.name] = sorted(set(listed), key=repr) if spec.name.endswith("_seen") else listed
    return found


def step(job: Harness, kind: Kind, number: int, batch: list[Event] | int) -> pa.Table:
    """A batch of events, or so many seconds of processing time."""
    if isinstance(batch, int):
        return job.advance_processing_time(number * 1000 * SECOND + batch * SECOND)
    return job.feed(kind.batch(batch, number))


steps = st.lists(
    st.tuples(st.lists(st.integers(1, 7), max_size=2), st.one_of(st.lists(events, max_size=25), st.integers(0, 20))),
    min_size=4,
    max_size=8 if LONG else 6,
)


def judged(counters: Mapping[str, int]) -> dict[str, int]:
    """An operator of a chain counts events as far ahead by the rows that one state partition hands on. Those on time
    and those far ahead are together the same.
    """
    found = dict(counters)
    for name in [one for one in found if one.endswith(".future")]:
        found[f"{name.removesuffix('future')}on_time"] += found.pop(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", some(KINDS, 1))
@settings(
    max_examples=60 if LONG else 2,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
)
@given(store=st.sampled_from(sorted(STORES)), partitions=st.integers(1, 5), script=steps)
def test_as_if_it_had_never_been_divided_again(
    name: str, store: str, partitions: int, script: list[tuple[list[int], list[Event] | int]]
) -> None:
    kind = KINDS[name]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder, tempfile.TemporaryDirectory(dir=SCRATCH) as other:
        job = kind.make().harness(kind.schema, store=STORES[store], folder=folder, partitions=partitions)
        twin = kind.make().harness(kind.schema, folder=other)
        for number, (numbers, batch) in enumerate(script):
            for wanted in numbers:
                if wanted != partitions:
                    rescale(folder, wanted)
                    partitions = wanted
                    check_places(folder)
            if numbers:
                job.restart()
            assert rows(step(job, kind, number, batch)) == rows(step(twin, kind, number, batch))
            check_places(folder)
            numbered = "offsets" not in name
            assert stored_rows(job, folder, numbered=numbered) == stored_rows(twin, other, numbered=numbered)
        assert rows(job.finish()) == rows(twin.finish())
        assert judged(job.counters()) == judged(twin.counters())
        head = Checkpoint.open(folder).read(1).manifest
        for operator in head.operators:
            assert rows(job.ledger(operator)) == rows(twin.ledger(operator))


def two_keys() -> tuple[str, str]:
    """A key in the first of two partitions, and one in the second."""
    owners = partition_of(pa.table({"k": list(KEYS)}), 2)
    return KEYS[list(owners).index(0)], KEYS[list(owners).index(1)]


def test_pairs_that_are_held_keep_apart(tmp_path: Path) -> None:
    """The first pair of either partition has the same numbers: in one partition they are two pairs all the same."""
    kind, (a, b) = KINDS["join with updates"], two_keys()
    job = kind.make().harness(kind.schema, folder=tmp_path, partitions=2)
    job.advance_processing_time(SECOND)
    assert not job.feed(kind.batch([Event(left, key, 1, 1) for key in (a, b) for left in (True, False)], 0)).num_rows
    rescale(tmp_path, 1)
    job.restart()
    observed = job.advance_processing_time(7 * SECOND)
    assert sorted(observed["k"].to_pylist()) == sorted([a, b])


@pytest.mark.parametrize("name", ["join", *longer("session join")])
def test_running_numbers_go_on_from_the_largest(tmp_path: Path, name: str) -> None:
    """A row without an offset is distinguished from others of its time by a number that no row of its key has had."""
    kind, (a, b) = KINDS[name], two_keys()
    store = Parquet(max_levels=6, snapshot_bytes=1)
    job = kind.make().harness(kind.schema, folder=tmp_path, partitions=2, store=store)
    for number, rows_of in enumerate([[a, a, a, b], [a, a], [b], [a]]):
        job.feed(kind.batch([Event(True, key, 10, number) for key in rows_of], number))
    rescale(tmp_path, 1)
    job.restart()
    job.feed(kind.batch([Event(True, a, 10, 9) for _ in range(3)], 8))
    observed = [job.feed(kind.batch([Event(False, a, 10, 9)], 9)), job.finish()]
    pairs = [row for part in observed for row in part.to_pylist() if row["left_v"] is not None and row["right_v"]]
    assert len(pairs) == 6 + 3
