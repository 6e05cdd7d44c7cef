"""Edges of the store contract, on every store: all or nothing, bounds of every leading type, stale caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.helpers.lineage import advance
from tests.helpers.table_model import MAIN, NAMED, SPECS, KeyRow, as_tuples, table
from tidestate.statestore.errors import CorruptionError, NotFoundError, UnavailableError, UsageError
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import Applied, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StateStore, StoreConfig
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.memory import MemoryStore
from tidestate.statestore.stores.opening import open_store, rocks_folder
from tidestate.statestore.stores.rocksdb import RocksStore

Make = Callable[[list[TableSpec]], StateStore]
A: KeyRow = (1, "a", 1, 5, 0.5, date(2024, 1, 1), "x")
B: KeyRow = (2, "b", 2, 7, None, None, None)


def rows_of(store: StateStore, name: str) -> pa.Table:
    return pa.concat_tables([pa.table({}), *store.snapshot()[name]], promote_options="default")


@pytest.fixture(params=["memory", "rocksdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    opened: list[StateStore] = []

    def one(specs: list[TableSpec]) -> StateStore:
        folder = tmp_path / f"rocks-{len(opened)}"
        opened.append(MemoryStore(specs) if request.param == "memory" else RocksStore(specs, folder))
        return opened[-1]

    yield one
    for store in opened:
        store.close()


@pytest.mark.parametrize("config", [Memory(), Parquet(), RocksDB()], ids=["memory", "parquet", "rocksdb"])
@pytest.mark.parametrize(("before", "with_rows", "bound"), [(1, 0, 1), (0, 1, 1), (1, None, 1)])
def test_of_two_bounds_a_loaded_store_has_the_later_one(
    config: StoreConfig, before: int, with_rows: int | None, bound: int, tmp_path: Path
) -> None:
    config = replace(config, cache_dir=str(tmp_path / "cache"))
    with open_store(config, Objects(tmp_path), "loaded", [*SPECS], PartitionState()) as store:
        store.expire("main", before)
        bounds = {} if with_rows is None else {"main": with_rows}
        store.load({"main": [table(MAIN, [A, B])]}, Applied(3, "later"), bounds)
        assert store.expired["main"] == bound
        assert as_tuples(rows_of(store, "main")) == [B]


def test_an_expiry_that_cannot_be_leaves_every_table_as_it_was(make: Make) -> None:
    store = make([*SPECS])
    store.apply({"main": TableChanges(put=table(MAIN, [A]))}, Applied(1, "one"))
    changes = {"main": TableChanges(put=table(MAIN, [B])), "named": TableChanges(expire=0)}
    with pytest.raises(UsageError, match="table-expiry"):
        store.apply(changes, Applied(2, "two"))
    assert store.applied == Applied(1, "one")
    assert as_tuples(rows_of(store, "main")) == [A]


def test_a_table_nobody_declared_leaves_everything_as_it_was(make: Make) -> None:
    store = make([*SPECS])
    changes = {"main": TableChanges(put=table(MAIN, [A])), "other": TableChanges(expire=0)}
    with pytest.raises(NotFoundError, match="no-table"):
        store.apply(changes, Applied(1, "one"))
    assert store.applied == Applied()
    assert as_tuples(rows_of(store, "main")) == []


def test_reading_a_table_nobody_declared(make: Make) -> None:
    store = make([*SPECS])
    with pytest.raises(NotFoundError, match="no-table"):
        store["other"].lookup(table(MAIN, [A]))
    with pytest.raises(NotFoundError, match="no-table"):
        list(store["other"].scan())


def test_asking_for_no_key_finds_no_row(make: Make) -> None:
    store = make([*SPECS])
    for _ in range(2):
        found = store["main"].lookup(MAIN.key_schema.empty_table())
        assert (len(found.found), found.rows.num_rows) == (0, 0)
        assert found.rows.schema.equals(MAIN.schema)
        store.apply({"main": TableChanges(put=table(MAIN, [A]))}, Applied(store.applied.sequence + 1, "x"))


def test_closing_twice_is_fine(request: pytest.FixtureRequest, make: Make, tmp_path: Path) -> None:
    store = (
        MemoryStore(SPECS) if request.node.callspec.params["make"] == "memory" else RocksStore(SPECS, tmp_path / "r")
    )
    store.close()
    store.close()
    assert store.applied == Applied()


def test_tables_of_one_store_need_different_names(make: Make) -> None:
    with pytest.raises(UsageError, match="table-names"):
        make([MAIN, MAIN])


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "date32[day]")


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_scan_is_bounded_whatever_integer_leads(request: pytest.FixtureRequest, make: Make, kind: str) -> None:
    spec = TableSpec("numbers", (Column("n", kind),), (Column("v", "int64", combiner="sum"),))
    numbers = pa.array([1, 2, 3, 4, 100], pa.int32())
    typed = numbers.cast(spec.key[0].arrow)
    store = make([spec])
    store.apply({"numbers": TableChanges(put=pa.table({"n": typed, "v": numbers.cast(pa.int64())}))}, Applied(1, "x"))

    def key(bound: int | None) -> tuple[int] | None:
        return None if bound is None else (bound,)

    def values(lower: int | None, upper: int | None) -> list[int]:
        return [v for rows in store["numbers"].scan(key_range(key(lower), key(upper))) for v in rows["v"].to_pylist()]

    assert values(2, 4) == [2, 3]
    assert values(None, 3) == [1, 2]
    assert values(4, None) == [4, 100]
    assert values(None, None) == [1, 2, 3, 4, 100]


@pytest.mark.parametrize("kind", ["int32", "int64", "date32[day]"])
def test_rows_expire_whatever_integer_leads(request: pytest.FixtureRequest, make: Make, kind: str) -> None:
    spec = TableSpec("numbers", (Column("n", kind),), (Column("v", "int64", combiner="sum"),), "n")
    rows = pa.table({"n": pa.array([1, 2], pa.int32()).cast(spec.key[0].arrow), "v": pa.array([1, 2], pa.int64())})
    store = make([spec])
    store.apply({"numbers": TableChanges(put=rows, expire=1)}, Applied(1, "x"))
    store.apply({"numbers": TableChanges(merge=rows)}, Applied(2, "y"))
    assert store["numbers"].lookup(rows).found.to_pylist() == [False, True]
    assert rows_of(store, "numbers")["v"].to_pylist() == [4]


def configs(folder: Path) -> list[StoreConfig]:
    return [Parquet(), Memory(), RocksDB(cache_dir=str(folder))]


@pytest.mark.parametrize("number", [0, 1, 2], ids=["parquet", "memory", "rocksdb"])
def test_a_cache_that_fell_behind_sees_a_table_emptied(tmp_path: Path, number: int) -> None:
    objects, config = Objects(tmp_path / "root"), configs(tmp_path / "cache")[number]
    row = ("k", True, 1)
    gone = TableChanges(delete=table(NAMED, [row], keys_only=True))
    tick = TableChanges(put=table(MAIN, [A]))
    first = advance(
        objects, SPECS, PartitionState(), {"named": TableChanges(put=table(NAMED, [row])), "main": tick}, 1
    )
    with open_store(config, objects, "job", SPECS, first) as store:
        assert as_tuples(rows_of(store, "named")) == [row]
    second = advance(objects, SPECS, first, {"named": gone}, 2)
    third = advance(objects, SPECS, second, {"main": tick}, 3, Parquet(max_levels=2))
    assert [ref.rows for ref in third.files if ref.table == "named"] == []
    with open_store(config, objects, "job", SPECS, third) as store:
        assert as_tuples(rows_of(store, "named")) == []


@pytest.mark.parametrize("number", [0, 1, 2], ids=["parquet", "memory", "rocksdb"])
def test_a_cache_that_fell_behind_sees_a_row_deleted_next_to_rows_that_expired(tmp_path: Path, number: int) -> None:
    """The snapshot that left the row out holds nothing but expired rows, and is dropped with them."""
    objects, config = Objects(tmp_path / "root"), configs(tmp_path / "cache")[number]
    deleted = (100, *A[1:])
    tick = TableChanges(put=table(NAMED, [("k", True, 1)]))
    base = advance(
        objects, SPECS, PartitionState(), {"main": TableChanges(put=table(MAIN, [deleted, A])), "named": tick}, 1
    )
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "main")) == [A, deleted]
    gone = TableChanges(delete=table(MAIN, [deleted], keys_only=True))
    base = advance(objects, SPECS, base, {"main": gone}, 2)
    base = advance(objects, SPECS, base, {"named": tick}, 3, Parquet(max_levels=2))
    assert [(ref.kind, ref.rows) for ref in base.files if ref.table == "main"] == [("snapshot", 1)]
    base = advance(objects, SPECS, base, {"main": TableChanges(expire=5), "named": tick}, 4)
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "main")) == []


@pytest.mark.parametrize("number", [0, 1, 2], ids=["parquet", "memory", "rocksdb"])
def test_a_cache_that_fell_behind_applies_nothing_twice(tmp_path: Path, number: int) -> None:
    """One table's files are folded across the cache's position, which the other table still names."""
    objects, config = Objects(tmp_path / "root"), configs(tmp_path / "cache")[number]
    one = TableChanges(merge=table(NAMED, [("k", True, 1)]))
    both = {"named": one, "main": TableChanges(put=table(MAIN, [A]))}
    base = advance(objects, SPECS, PartitionState(), both, 1)
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "named")) == [("k", True, 1)]
    for sequence in (2, 3, 4):
        base = advance(objects, SPECS, base, {"named": one}, sequence, Parquet(max_levels=2))
    assert [(ref.table, ref.first, ref.last) for ref in base.files] == [
        ("main", 1, 1),
        ("named", 1, 3),
        ("named", 4, 4),
    ]
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "named")) == [("k", True, 4)]


@pytest.mark.parametrize("number", [0, 1, 2], ids=["parquet", "memory", "rocksdb"])
def test_a_cache_that_followed_another_line_is_rebuilt(tmp_path: Path, number: int) -> None:
    """After a rewind what comes next follows an older checkpoint, and the cache has what was abandoned."""
    objects, config = Objects(tmp_path / "root"), configs(tmp_path / "cache")[number]
    one = {"named": TableChanges(merge=table(NAMED, [("k", True, 1)]))}
    base = advance(objects, SPECS, PartitionState(), one, 1)
    abandoned = advance(objects, SPECS, base, one, 2)
    with open_store(config, objects, "job", SPECS, abandoned) as store:
        assert as_tuples(rows_of(store, "named")) == [("k", True, 2)]
    after = advance(objects, SPECS, base, {"main": TableChanges(put=table(MAIN, [A]))}, 4)
    with open_store(config, objects, "job", SPECS, after) as store:
        assert as_tuples(rows_of(store, "named")) == [("k", True, 1)]
        assert as_tuples(rows_of(store, "main")) == [A]


@pytest.mark.parametrize("number", [0, 1, 2], ids=["parquet", "memory", "rocksdb"])
def test_a_cache_hears_of_an_expiry_that_wrote_no_file(tmp_path: Path, number: int) -> None:
    objects, config = Objects(tmp_path / "root"), configs(tmp_path / "cache")[number]
    base = advance(objects, SPECS, PartitionState(), {"main": TableChanges(put=table(MAIN, [A, B]))}, 1)
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "main")) == [A, B]
    later = advance(objects, SPECS, base, {"main": TableChanges(expire=1)}, 2)
    assert (later.lineage, later.files) == (base.lineage, base.files)
    with open_store(config, objects, "job", SPECS, later) as store:
        assert as_tuples(rows_of(store, "main")) == [B]
        assert store["main"].lookup(table(MAIN, [A, B])).found.to_pylist() == [False, True]


def test_a_damaged_file_stops_every_store(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "root")
    base = advance(objects, SPECS, PartitionState(), {"main": TableChanges(put=table(MAIN, [A, B]))}, 1)
    path = Path(objects.locate(base.files[0].path))
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    for config in configs(tmp_path / "cache"):
        with (
            pytest.raises(CorruptionError, match=r"file-damaged.*changelog"),
            open_store(config, objects, "job", SPECS, base) as store,
        ):
            list(store["main"].scan())  # the parquet store finds out when it reads


def test_a_damaged_cache_is_rebuilt_from_the_files(tmp_path: Path) -> None:
    objects, config = Objects(tmp_path / "root"), RocksDB(cache_dir=str(tmp_path / "cache"))
    base = advance(objects, SPECS, PartitionState(), {"main": TableChanges(put=table(MAIN, [A, B]))}, 1)
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "main")) == [A, B]
    folder = rocks_folder(config, "job")
    (folder / "CURRENT").write_bytes(b"nonsense")
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "main")) == [A, B]


def test_a_cache_of_other_tables_is_rebuilt(tmp_path: Path) -> None:
    objects, config = Objects(tmp_path / "root"), RocksDB(cache_dir=str(tmp_path / "cache"))
    RocksStore([NAMED], rocks_folder(config, "job")).close()
    base = advance(objects, SPECS, PartitionState(), {"main": TableChanges(put=table(MAIN, [A]))}, 1)
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "main")) == [A]


def test_a_zombie_in_the_cache_folder_is_left_alone(tmp_path: Path) -> None:
    objects, config = Objects(tmp_path / "root"), RocksDB(cache_dir=str(tmp_path / "cache"))
    base = advance(objects, SPECS, PartitionState(), {"main": TableChanges(put=table(MAIN, [A]))}, 1)
    zombie = RocksStore(SPECS, rocks_folder(config, "job"))
    with pytest.raises(UnavailableError, match="rocksdb-open"):
        RocksStore(SPECS, rocks_folder(config, "job"))
    with open_store(config, objects, "job", SPECS, base) as store:
        assert as_tuples(rows_of(store, "main")) == [A]
    assert zombie.applied == Applied()
    assert as_tuples(rows_of(zombie, "main")) == []
    zombie.close()


@pytest.mark.parametrize("wrong", [{"max_levels": 1}, {"snapshot_bytes": 0}], ids=["max_levels", "snapshot_bytes"])
def test_limits_nothing_can_keep_are_refused(wrong: dict[str, Any]) -> None:
    for config in (Memory, Parquet, RocksDB):
        with pytest.raises(UsageError, match="store-"):
            config(**wrong)
