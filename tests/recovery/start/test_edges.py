"""Where recovery could go wrong quietly: caches ahead of a copy, the wrong runner, damaged caches, hard numbers."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import in_turn
from tidestate import Aggregation, agg
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId, SparkPosition
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import TIME, Column, TableSpec
from tidestate.statestore.stores import opening
from tidestate.statestore.stores.opening import open_store


def job(**aggregates: object) -> Aggregation:
    wanted = aggregates or {"n": agg.count()}
    described = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    return described.aggregate(**wanted).allowed_lateness("1 hour")  # type: ignore[arg-type]


def batch(*rows: tuple[int, str], values: pa.Array | None = None) -> pa.Table:
    times = pa.array([second * 1_000_000 for second, _ in rows], pa.int64()).cast(TIME)
    table = pa.table({"t": times, "k": [key for _, key in rows]})
    return table if values is None else table.append_column("v", values)


@pytest.mark.parametrize("name", ["parquet", "memory", "rocksdb"])
def test_a_cache_that_followed_a_copy_further_is_rebuilt(tmp_path: Path, name: str) -> None:
    """The store has forgotten rows that the older checkpoint still has: it must not serve them as gone."""
    config: StoreConfig = {"parquet": Parquet(), "memory": Memory(), "rocksdb": RocksDB(cache_dir=str(tmp_path))}[
        name
    ]
    spec = TableSpec(
        "s", (Column("end", str(TIME)), Column("k", "string")), (Column("n", "int64", "", "sum"),), "end"
    )
    from tests.helpers.lineage import advance
    from tidestate.statestore.spec.changes import TableChanges
    from tidestate.statestore.storage.objects import Objects

    objects = Objects(tmp_path / "root")
    rows = pa.table({"end": pa.array([10, 20]).cast(TIME), "k": ["a", "b"], "n": [1, 2]})
    base = advance(objects, [spec], PartitionState(), {"s": TableChanges(merge=rows)}, 1)
    ahead = msgspec.structs.replace(base, expired={"s": 10})
    for state, left in ((ahead, ["b"]), (base, ["a", "b"])):
        with open_store(config, objects, "job", [spec], state) as store:
            assert [key for rows in store["s"].scan() for key in rows["k"].to_pylist()] == left


def test_a_copied_checkpoint_does_not_meet_the_originals_caches(tmp_path: Path) -> None:
    store = RocksDB(cache_dir=str(tmp_path / "cache"))
    first = [batch((1, "a"), (2, "b"))]
    job().standalone(checkpoint=tmp_path / "one", store=store, partitions=2).run(first)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    job().standalone(checkpoint=tmp_path / "copy", store=store).run([*first, batch((9000, "c"))])
    panes = job().standalone(checkpoint=tmp_path / "one", store=store).run([*first, batch((11, "a"))], drain=True)
    assert sorted(zip(panes["k"].to_pylist(), panes["n"].to_pylist(), strict=True)) == [("a", 1), ("a", 1), ("b", 1)]


def test_a_checkpoint_that_spark_feeds_is_refused_standalone(tmp_path: Path) -> None:
    job().standalone(checkpoint=tmp_path).run([batch((1, "a"))])
    checkpoint = Checkpoint.open(tmp_path)
    head = checkpoint.head()
    assert head is not None
    position = SparkPosition("q", 0, (), ("{}",))
    checkpoint.publish(
        msgspec.structs.replace(
            head.manifest, id=head.manifest.id + 1, parent=head.checksum, spark=position, input=None
        )
    )
    with pytest.raises(IncompatibleError) as caught:
        job().standalone(checkpoint=tmp_path).run([batch((1, "a"))])
    assert caught.value.code == "other-runner"


def test_an_input_with_fewer_batches_is_another_input(tmp_path: Path) -> None:
    batches = [batch((n, "a")) for n in range(4)]
    job().standalone(checkpoint=tmp_path).run(batches)
    with pytest.raises(IncompatibleError) as caught:
        job().standalone(checkpoint=tmp_path).run(batches[:2], drain=True)
    assert caught.value.code == "input-differs"
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    assert not head.manifest.drained


def test_a_refused_drain_is_delivered_when_asked_again(tmp_path: Path) -> None:
    seen: list[int] = []

    def sink(panes: pa.Table, _id: DeliveryId) -> None:
        seen.append(panes.num_rows)
        if len(seen) == 1:
            raise RuntimeError("full")

    runner = job().standalone(checkpoint=tmp_path, sink=sink)
    runner.run([batch((1, "a"))])
    with pytest.raises(RuntimeError, match="full"):
        runner.drain()
    runner.drain()
    assert seen == [1, 1]


def test_a_run_without_a_sink_acknowledges_nothing(tmp_path: Path) -> None:
    batches = [batch((1, "a")), batch((30, "a")), batch((60, "a"))]
    job().standalone(checkpoint=tmp_path).run(batches[:2])
    job().standalone(checkpoint=tmp_path).run(batches)
    seen: list[int] = []
    job().standalone(checkpoint=tmp_path, sink=lambda panes, number: seen.append(panes.num_rows)).run(
        batches, drain=True
    )
    assert seen == [1, 1, 1]


def test_a_drained_checkpoint_is_not_written_to_again(tmp_path: Path) -> None:
    batches = [batch((1, "a"))]
    job().standalone(checkpoint=tmp_path).run(batches, drain=True)
    before = Checkpoint.open(tmp_path).ids()
    with pytest.raises(UsageError, match="drained"):
        job().standalone(checkpoint=tmp_path).run([*batches, batch((2, "a"))])
    assert Checkpoint.open(tmp_path).ids() == before


def test_a_damaged_rocksdb_cache_is_rebuilt(tmp_path: Path) -> None:
    store = RocksDB(cache_dir=str(tmp_path / "cache"))
    many = pa.table({"t": pa.array([1_000_000] * 20_000).cast(TIME), "k": [f"key-{n}" for n in range(20_000)]})
    batches = [many, batch((2, "key-1")), batch((3, "key-2"))]
    job().standalone(checkpoint=tmp_path / "root", store=store).run(batches)
    for path in (tmp_path / "cache").rglob("*.sst"):
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 0xFF
        path.write_bytes(data)
    panes = (
        job().standalone(checkpoint=tmp_path / "root", store=store).run([*batches, batch((4, "key-3"))], drain=True)
    )
    assert panes.num_rows == 20_000
    assert sum(panes["n"].to_pylist()) == 20_003


def test_a_mean_of_numbers_beyond_two_to_the_53(tmp_path: Path) -> None:
    values = pa.array([10**15 + 1] * 10, pa.int64())
    panes = (
        job(m=agg.mean("v")).standalone(checkpoint=tmp_path).run([batch(*[(1, "a")] * 10, values=values)], drain=True)
    )
    assert panes["m"].to_pylist() == pytest.approx([10**15 + 1])


@pytest.mark.parametrize(
    ("store", "kind"),
    in_turn([Parquet(max_levels=2, snapshot_bytes=1), Memory(max_levels=2)], [pa.decimal128(10, 2), pa.uint64()]),
    ids=lambda one: str(getattr(one, "name", one)),
)
def test_decimals_and_large_numbers_survive_folding(tmp_path: Path, store: StoreConfig, kind: pa.DataType) -> None:
    values = pa.array([Decimal(7)]).cast(kind)
    batches = [batch((1, "a"), values=values), batch((30, "a"), values=values)]
    batches += [batch((2, "a"), values=values) for _ in range(6)]
    panes = (
        job(total=agg.sum("v"), most=agg.max("v"))
        .standalone(checkpoint=tmp_path, store=store)
        .run(batches, drain=True)
    )
    first = panes.filter(pa.compute.equal(panes["window_end"].cast(pa.int64()), 10_000_000))
    assert first["total"].to_pylist()[-1] == 49
    assert {int(value) for value in first["most"].to_pylist()} == {7}


def test_memory_is_not_shared_between_roots(tmp_path: Path) -> None:
    job().standalone(checkpoint=tmp_path / "a", store=Memory()).run([batch((1, "a"))])
    job().standalone(checkpoint=tmp_path / "b", store=Memory()).run([batch((1, "a"))])
    assert len(opening._memory) == 2


def test_a_time_that_no_calendar_needs_goes_to_the_ledger(tmp_path: Path) -> None:
    times = pa.array([1_000_000, 2**63 - 1, -(2**63) + 1], pa.int64()).cast(TIME)
    panes = job().standalone(checkpoint=tmp_path).run([pa.table({"t": times, "k": ["a", "a", "a"]})], drain=True)
    assert panes["n"].to_pylist() == [1]
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    assert head.manifest.totals["event_time_out_of_range"] == 2
