"""The RocksDB store where it differs from the others: its folder, its scans, its sweep; and a random history."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.process import SCRATCH, longer
from tests.helpers.rocks_tables import LEADING, PLAIN, SECOND, SPECS, VALUE, fill, numbers, opened, rows_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.changes import Applied, TableChanges
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.stores.memory import MemoryStore
from tidestate.statestore.stores.rocks import table as rocks_table
from tidestate.statestore.stores.rocksdb import RocksStore


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: RocksDB syncs often."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        yield Path(name) / "store"


def test_close_gives_the_folder_free_whatever_is_unfinished(folder: Path) -> None:
    fill(folder)
    store = RocksStore([PLAIN], folder)
    begun, fresh, streams = store["plain"].scan(), store["plain"].scan(reverse=True), store.snapshot()
    next(begun)
    store.close()
    store.close()
    with opened(folder, PLAIN) as again:
        assert len(rows_of(again, "plain")) == 5000
    for scan in (begun, fresh, streams["plain"]):
        with pytest.raises(UsageError, match="store-closed"):
            next(scan)
    with pytest.raises(UsageError, match="store-closed"):
        store.apply({}, Applied(2, "b"))
    assert store.applied == Applied(1, "a")


def test_a_scan_sees_the_rows_of_its_call(folder: Path) -> None:
    with opened(folder, PLAIN) as store:
        store.apply({"plain": TableChanges(put=numbers(0, 3000))}, Applied(1, "a"))
        scan = store["plain"].scan()
        next(scan)
        store.apply({"plain": TableChanges(delete=numbers(1000, 3000), put=numbers(0, 9, "y"))}, Applied(2, "b"))
        rest = [row["v"] for batch in scan for row in batch.to_pylist()]
        assert rest == [f"x{i}" for i in range(1024, 3000)]
        assert len(rows_of(store, "plain")) == 1000


@pytest.mark.parametrize("reverse", [False, True])
def test_bounds_at_the_ends_of_a_table(folder: Path, reverse: bool) -> None:
    with opened(folder) as store:
        put = {"plain": TableChanges(put=numbers(-2, 3)), "value": TableChanges(put=value_rows({b"": 5, b"\xff": 6}))}
        store.apply(put, Applied(1, "a"))
        step = -1 if reverse else 1
        for lower, upper, found in (
            ((-2,), (3,), 5),
            ((0,), (0,), 0),
            ((1,), (0,), 0),
            ((-(2**63),), (2**63 - 1,), 5),
        ):
            rows = [row["k"] for row in rows_of(store, "plain", lower=lower, upper=upper, reverse=reverse)]
            assert rows == list(range(-2, 3))[::step][: len(rows)]
            assert len(rows) == found
        assert [r["k"] for r in rows_of(store, "value", lower=(b"",), upper=(b"\xff",), reverse=reverse)] == [b""]
        assert [r["k"] for r in rows_of(store, "value", prefix=(b"\xff",), reverse=reverse)] == [b"\xff"]
        assert rows_of(store, "second", reverse=reverse) == []


def value_rows(times: dict[bytes, int | None]) -> pa.Table:
    return pa.table({"k": list(times), "t": list(times.values()), "n": [1] * len(times)}, schema=VALUE.schema)


def physical(store: RocksStore, place: int) -> int:
    """Rows that a table really has in the database."""
    return len(store._database.scan(bytes([place]), bytes([place + 1])).read(1 << 20))


def test_the_sweep_deletes_a_bounded_part_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks_table, "SCAN_ROWS", 100)
    with opened(folder) as store:
        store.apply(
            {"value": TableChanges(put=value_rows({b"%03d" % i: i % 2 for i in range(250)}))}, Applied(1, "a")
        )
        store.expire("value", 0)
        assert len(rows_of(store, "value")) == 125
        left = []
        for sequence in range(2, 6):
            store.apply({}, Applied(sequence, "b"))
            left.append(physical(store, 2))
        assert left == [200, 150, 125, 125]
    with opened(folder) as store:  # it goes on after a restart, from the first key again for a new bound
        store.apply({"value": TableChanges(expire=1)}, Applied(6, "c"))
        assert rows_of(store, "value") == []
        store.apply({}, Applied(7, "d"))
        assert physical(store, 2) == 0


def test_no_read_finds_what_is_still_to_be_swept(folder: Path) -> None:
    with opened(folder) as store:
        store.apply({"value": TableChanges(put=value_rows({b"gone": 0, b"here": 1}))}, Applied(1, "a"))
        store.expire("value", 0)
        assert physical(store, 2) == 2
        assert [row["k"] for row in rows_of(store, "value")] == [b"here"]
        asked = pa.table({"k": pa.array([b"gone", b"here"], pa.binary())})
        assert store["value"].lookup(asked).found.to_pylist() == [False, True]


def test_the_sweep_remembers_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks_table, "SCAN_ROWS", 10)
    rows = pa.table({"k": [f"{i:02}" for i in range(30)], "t": [1] * 30, "n": [1] * 30}, schema=SECOND.schema)
    with opened(folder) as store:
        store.apply({"second": TableChanges(put=rows)}, Applied(1, "a"))
        store.apply({"second": TableChanges(expire=1)}, Applied(2, "b"))
        assert physical(store, 1) == 20
    with opened(folder) as store:
        assert store._meta.sweeps["second"].at > b"\x01"
        store.apply({}, Applied(3, "c"))
        assert physical(store, 1) == 10


def test_the_sweep_spares_what_the_same_change_puts(folder: Path) -> None:
    with opened(folder) as store:
        store.apply({"value": TableChanges(put=value_rows({b"a": 1, b"b": 1}))}, Applied(1, "a"))
        store.apply({"value": TableChanges(put=value_rows({b"a": 9}), expire=1)}, Applied(2, "b"))
        assert [row["k"] for row in rows_of(store, "value")] == [b"a"]


def test_an_expired_row_hides_the_one_it_replaces(folder: Path) -> None:
    with opened(folder) as store:
        store.apply({"value": TableChanges(put=value_rows({b"a": 9, b"b": None}), expire=5)}, Applied(1, "a"))
        store.apply({"value": TableChanges(put=value_rows({b"a": 2}))}, Applied(2, "b"))
        assert [row["k"] for row in rows_of(store, "value")] == [b"b"]
        assert physical(store, 2) == 1


def test_a_merge_never_meets_an_expired_row(folder: Path) -> None:
    row = pa.table({"k": ["a"], "t": [3], "n": [1]}, schema=SECOND.schema)
    with opened(folder) as store:
        store.apply({"second": TableChanges(merge=row)}, Applied(1, "a"))
        store.expire("second", 3)
        store.apply({"second": TableChanges(merge=row)}, Applied(2, "b"))
        assert rows_of(store, "second") == []


def test_bounds_beyond_the_column(folder: Path) -> None:
    with opened(folder) as store:
        row = pa.table({"t": [3], "k": ["a"], "n": [1], "names": [["x"]]}, schema=LEADING.schema)
        store.apply({"leading": TableChanges(put=row, expire=-(2**63))}, Applied(1, "a"))
        assert len(rows_of(store, "leading")) == 1
        store.expire("leading", 2**63 - 1)
        assert rows_of(store, "leading") == []


def test_rows_too_wide_for_a_batch_come_one_by_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks_table, "CHUNK_BYTES", 1 << 20)
    wide = pa.table({"k": range(4), "v": ["x" * (1 << 20)] * 4}, schema=PLAIN.schema)
    with opened(folder, PLAIN) as store:
        store.load({"plain": [wide]}, Applied(1, "a"))
    with opened(folder, PLAIN) as store:
        assert [batch.num_rows for batch in store["plain"].scan()] == [1] * 4
        assert pa.concat_tables(store["plain"].scan()).equals(wide)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *longer(1, 2, 3)])
def test_the_same_as_in_memory(folder: Path, seed: int) -> None:
    """A random history on both stores, with restarts of this one."""
    dice, memory = random.Random(seed), MemoryStore(SPECS)
    store = RocksStore(SPECS, folder)
    for sequence in range(1, 16):
        changes = {spec.name: random_changes(dice, spec, sequence) for spec in dice.sample(SPECS, 3)}
        for each in (memory, store):
            each.apply(changes, Applied(sequence, f"s{sequence}"))
        if dice.random() < 0.3:
            store.close()
            store = RocksStore(SPECS, folder)
        asked = [random_rows(dice, spec).select(spec.key_names) for spec in SPECS]
        assert reported(store, asked) == reported(memory, asked)
    store.close()


def random_changes(dice: random.Random, spec: TableSpec, sequence: int) -> TableChanges:
    parts = {op: random_rows(dice, spec) for op in ("delete", "put", "merge") if dice.random() < 0.6}
    if spec is VALUE:
        parts.pop("merge", None)
    if "delete" in parts:
        parts["delete"] = parts["delete"].select(spec.key_names)
    expire = dice.randrange(sequence) if spec.expiry and dice.random() < 0.4 else None
    return TableChanges(**parts, expire=expire)


def random_rows(dice: random.Random, spec: TableSpec) -> pa.Table:
    made: dict[str, Any] = {
        "string": lambda: dice.choice("abc\x00"),
        "binary": lambda: bytes([dice.randrange(4)]),
        "list<item: string>": lambda: dice.choice([None, [], ["p"], ["q", None]]),
    }
    columns = (*spec.key, *spec.values)
    distinct: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for _ in range(dice.randrange(12)):
        row = tuple(made.get(c.type, lambda: dice.randrange(20))() for c in columns)
        distinct[row[: len(spec.key)]] = row
    rows = list(distinct.values())
    return pa.table([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(spec.schema)], schema=spec.schema)


def reported(store: MemoryStore | RocksStore, asked: list[pa.Table]) -> list[Any]:
    """All that a store says, of some keys of each table too."""
    found: list[Any] = [store.applied, store.expired]
    for spec, keys in zip(SPECS, asked, strict=True):
        found += [rows_of(store, spec.name, reverse=reverse) for reverse in (False, True)]
        looked_up = store[spec.name].lookup(keys)
        near = store[spec.name].ranges(keys.select(spec.key_names[:-1]))
        found += [looked_up.found, looked_up.rows, near.request_index, near.rows]
    return found
