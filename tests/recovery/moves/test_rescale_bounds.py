"""Files that partitions share after a rescale: each row keeps its bound, each snapshot its place."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.helpers.process import in_turn
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tidestate.recovery.moves.rescale import divide_partitions
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import open_store
from tidestate.stores import Memory, Parquet, RocksDB

SPEC = TableSpec("ids", (Column("k", "string"),), (Column("until", "int64"),), expiry="until", partition_by=("k",))
BY_KEY = TableSpec(
    "ends", (Column("end", "int64"), Column("k", "string")), (Column("n", "int64", combiner="sum"),), "end",
    partition_by=("k",),
)  # fmt: skip


def written(objects: Objects, partitions: int, steps: list[dict[str, TableChanges]]) -> tuple[PartitionState, ...]:
    """Each step is the changes of one partition: those with its number modulo ``partitions``."""
    states = [PartitionState() for _ in range(partitions)]
    for number, changes in enumerate(steps):
        place = number % partitions
        log = PartitionLog(objects, (SPEC, BY_KEY), Parquet(), "job", place, partitions, f"attempt{number}")
        states[place] = log.append(states[place], changes, number + 1)
    return tuple(states)


def keys_of(partition: int, partitions: int) -> list[str]:
    names = [f"k{number}" for number in range(100)]
    owners = partition_of(pa.table({"k": names}), partitions)
    return [name for name, owner in zip(names, owners, strict=True) if owner == partition][:3]


def put(keys: list[str], until: list[int]) -> TableChanges:
    return TableChanges(put=pa.table({"k": keys, "until": until}))


def merge(keys: list[str], end: list[int]) -> TableChanges:
    return TableChanges(merge=pa.table({"end": end, "k": keys, "n": [1] * len(keys)}))


Contents = dict[str, list[tuple[object, ...]]]


def read(objects: Objects, store: StoreConfig, identity: str, state: PartitionState) -> Contents:
    """Rows of both tables, without those that `fold_later` adds."""
    with open_store(store, objects, identity, (SPEC, BY_KEY), state) as opened:
        found = {name: [row for part in opened[name].scan() for row in part.to_pylist()] for name in ("ids", "ends")}
    place = {"ids": "until", "ends": "end"}
    return {name: [(r["k"], r[place[name]]) for r in got if r["k"] != "later"] for name, got in found.items()}


def fold_later(objects: Objects, state: PartitionState, number: int, partitions: int) -> PartitionState:
    """Two more checkpoints, the second of which folds what there is."""
    for sequence in (100, 101):
        changes = {"ids": put(["later"], [1000]), "ends": merge(["later"], [1000])}
        place = (Parquet(max_levels=2), "job", number, partitions, uuid.uuid4().hex)
        state = PartitionLog(objects, (SPEC, BY_KEY), *place).append(state, changes, sequence)
    assert not any(ref.share for ref in state.files)
    return state


def test_of_two_bounds_the_lower_one_holds_for_all_rows(tmp_path: Path) -> None:
    """The rows of the partition that had forgotten more keep its bound, as theirs."""
    objects = Objects(tmp_path)
    first, second = keys_of(0, 2), keys_of(1, 2)
    rows = [{"ids": put(keys, [40, 50, 60]), "ends": merge(keys, [40, 50, 60])} for keys in (first, second)]
    expired = [{"ids": TableChanges(expire=bound), "ends": TableChanges(expire=bound)} for bound in (50, 30)]
    (whole,) = divide_partitions((SPEC, BY_KEY), written(objects, 2, [*rows, *expired]), 1, 10)
    found = read(objects, Parquet(), str(tmp_path), whole)
    left = sorted([(first[2], 60), *zip(second, [40, 50, 60], strict=True)])
    assert {name: sorted(got) for name, got in found.items()} == {"ids": left, "ends": left}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "store"),
    in_turn([[1], [3], [5, 2], [3, 1], [1, 4, 1], [3, 2]], [Parquet(), Memory(), RocksDB()]),
    ids=lambda one: str(getattr(one, "name", one)),
)
def test_each_row_keeps_the_bound_it_had(tmp_path: Path, store: StoreConfig, script: list[int]) -> None:
    """One partition has forgotten up to 50, the other nothing yet: neither gives its bound to the other."""
    objects = Objects(tmp_path)
    first, second = keys_of(0, 2), keys_of(1, 2)
    # The newest row of the first key is older than the bound: what lies below stays hidden.
    older = TableChanges(put=pa.table({"k": first[:1], "until": [45]}), expire=50)
    states = written(
        objects,
        2,
        [
            {"ids": put(first, [100, 100, 100]), "ends": merge(first, [40, 50, 60])},
            {"ids": put(second, [40, 50, 60]), "ends": merge(second, [40, 50, 60])},
            {"ids": older, "ends": TableChanges(expire=50)},
        ],
    )
    expected = {
        "ids": [*((key, 100) for key in first[1:]), *zip(second, [40, 50, 60], strict=True)],
        "ends": [(first[2], 60), *zip(second, [40, 50, 60], strict=True)],
    }
    for sequence, partitions in enumerate(script):
        states = divide_partitions((SPEC, BY_KEY), states, partitions, 10 + sequence)
    found: Contents = {"ids": [], "ends": []}
    for number, state in enumerate(states):
        now = read(objects, store, f"{tmp_path}/{number}", state)
        folded = fold_later(objects, state, number, len(states))
        for reader in (Parquet(), store):
            assert read(objects, reader, f"{tmp_path}/{number}", folded) == now
        for name, got in now.items():
            found[name] += got
    assert {name: sorted(got) for name, got in found.items()} == {n: sorted(e) for n, e in expected.items()}


@pytest.mark.parametrize("partitions", [1, 3])
def test_snapshots_of_several_partitions_stand_next_to_each_other(tmp_path: Path, partitions: int) -> None:
    """Nothing but a snapshot each, of the same checkpoints: they are not one level."""
    objects = Objects(tmp_path)
    keys = [keys_of(number, 2) for number in range(2)]
    steps = [{"ids": put(own, [100] * 3), "ends": merge(own, [40, 50, 60])} for own in keys]
    log = [
        PartitionLog(objects, (SPEC, BY_KEY), Parquet(max_levels=2), "job", number, 2, f"first{number}")
        for number in range(2)
    ]
    states = []
    for number, changes in enumerate(steps):
        state = PartitionState()
        for sequence in (1, 2, 3):
            state = replace(log[number], attempt=uuid.uuid4().hex).append(state, changes, sequence)
        files = tuple(ref for ref in state.files if ref.kind == "snapshot")
        assert [ref.first for ref in files] == [1, 1]
        states.append(msgspec.structs.replace(state, files=files))
    found = [
        read(objects, Parquet(), "", state) for state in divide_partitions((SPEC, BY_KEY), states, partitions, 10)
    ]
    together = {name: sorted(row for one in found for row in one[name]) for name in ("ids", "ends")}
    assert together == {
        "ids": sorted((key, 100) for own in keys for key in own),
        "ends": sorted((key, end) for own in keys for key, end in zip(own, (40, 50, 60), strict=True)),
    }
