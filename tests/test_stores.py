"""Three stores, one law: memory, rocksdb and parquet hold the rows a plain dict would, whatever is done to them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statestore.changes import Applied, TableChanges
from statestore.errors import UsageError
from statestore.fold import combine
from statestore.layered import LayeredStore
from statestore.objects import Objects
from statestore.opening import open_store
from statestore.rocksdb import RocksStore
from statestore.segments import PartitionState
from statestore.store import Memory, Parquet, RocksDB, StateStore, StoreConfig
from tests.conftest import SCRATCH, forget
from tests.lineage import advance
from tests.table_model import MAIN, SPECS, Row, TableModel, plain, table

TIMES = st.integers(-3, 6)
TEXTS = st.sampled_from(["", "a", "a\x00", "a\x00\xff", "b", "é", "漢"])
MAIN_KEYS = st.tuples(TIMES, TEXTS, st.sampled_from([-(2**63), -1, 0, 1, 2**40]))
MAIN_VALUES = st.tuples(
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from([-2.5, 0.0, 0.25, 7.0]),
    st.none() | st.sampled_from([date(1969, 12, 31), date(2024, 2, 29)]),
    st.none() | TEXTS,
)
NAMED_KEYS = st.tuples(TEXTS, st.booleans())
NAMED_VALUES = st.tuples(st.none() | st.integers(-5, 5))
KEYS: dict[str, st.SearchStrategy[Row]] = {"main": MAIN_KEYS, "named": NAMED_KEYS}
VALUES: dict[str, st.SearchStrategy[Row]] = {"main": MAIN_VALUES, "named": NAMED_VALUES}


@st.composite
def table_changes(draw: st.DrawFn, name: str) -> TableChanges:
    spec = {spec.name: spec for spec in SPECS}[name]
    rows = st.tuples(KEYS[name], VALUES[name]).map(lambda pair: (*pair[0], *pair[1]))
    width = len(spec.key)

    def some(strategy: st.SearchStrategy[Any], keys_only: bool = False, unique: bool = False) -> pa.Table | None:
        by = {"unique_by": lambda row: row[:width]} if unique else {}
        drawn = draw(st.lists(strategy, max_size=5, **by))
        return table(spec, drawn, keys_only=keys_only) if drawn else None

    expire = draw(st.none() | st.integers(-5, 5)) if spec.expiry else None
    delete, put, merge = some(KEYS[name], keys_only=True), some(rows, unique=True), some(rows)
    return TableChanges(delete, put, merge, expire)


class Stores(RuleBasedStateMachine):
    """Every store is fed the same changes; the durable files are written beside them."""

    def __init__(self) -> None:
        super().__init__()
        forget()
        self.folder = Path(tempfile.mkdtemp(prefix="stores-", dir=SCRATCH))
        self.objects = Objects(self.folder / "root")
        self.base = PartitionState()
        self.model = {spec.name: TableModel(spec) for spec in SPECS}
        self.memory = LayeredStore(SPECS)
        self.rocks = RocksStore(SPECS, self.folder / "rocks")

    def teardown(self) -> None:
        self.rocks.close()
        shutil.rmtree(self.folder)

    @initialize(max_files=st.sampled_from([2, 4, 12]), snapshot_every=st.sampled_from([2, 5, 50]))
    def begin(self, max_files: int, snapshot_every: int) -> None:
        self.sequence = 0
        self.limits = {"max_files": max_files, "snapshot_every": snapshot_every}

    @rule(
        changes=st.fixed_dictionaries({}, optional={name: table_changes(name) for name in KEYS}),
        skipped=st.integers(0, 2),
    )
    def change(self, changes: dict[str, TableChanges], skipped: int = 0) -> None:
        self.sequence += 1 + skipped
        for name, one in changes.items():
            self.model[name].apply(one)
        self.base = advance(self.objects, SPECS, self.base, changes, self.sequence, **self.limits)
        for store in (self.memory, self.rocks):
            store.apply(changes, Applied(self.sequence, self.base.lineage))
            assert store.applied == Applied(self.sequence, self.base.lineage)

    @rule(bound=st.integers(-5, 5))
    def tick(self, bound: int) -> None:
        """Time passes: rows expire and no file is written."""
        self.change({"main": TableChanges(expire=bound)})

    @rule(name=st.sampled_from(sorted(KEYS)), data=st.data(), times=st.integers(1, 4))
    def change_one(self, name: str, data: st.DataObject, times: int) -> None:
        """One table's files are folded while the other's stay as they are."""
        for _ in range(times):
            self.change({name: data.draw(table_changes(name))})

    @rule(data=st.data(), name=st.sampled_from(sorted(KEYS)), back=st.integers(0, 3))
    def change_out_of_turn(self, data: st.DataObject, name: str, back: int) -> None:
        changes = {name: data.draw(table_changes(name))}
        for store in (self.memory, self.rocks):
            with pytest.raises(UsageError, match="sequence"):
                store.apply(changes, Applied(self.sequence - back, "other"))
            assert store.applied == Applied(self.sequence, self.base.lineage)

    @rule(data=st.data(), name=st.sampled_from(sorted(KEYS)), where=st.sampled_from(["direct", "durable"]))
    def lookup(self, data: st.DataObject, name: str, where: str) -> None:
        keys = data.draw(st.lists(KEYS[name], max_size=6))
        expected = self.model[name].lookup(keys)
        asked = table(self.model[name].spec, keys, keys_only=True)
        with ExitStack() as stack:
            for store in self.stores(where, stack):
                found = store.lookup(name, asked)
                rows = plain(found.rows)
                assert found.found.to_pylist() == [row is not None for row in expected]
                assert [row if row is not None else rows[i] for i, row in enumerate(expected)] == rows
                missing = [rows[i] for i, row in enumerate(expected) if row is None]
                width = len(self.model[name].spec.key)
                assert all(value is None for row in missing for value in row[width:])
                assert [row[:width] for row in rows] == keys

    @rule(
        lower=st.none() | st.integers(-8, 9),
        upper=st.none() | st.integers(-8, 9),
        where=st.sampled_from(["direct", "durable"]),
    )
    def scan(self, lower: int | None, upper: int | None, where: str) -> None:
        expected = self.model["main"].scan(lower, upper)
        with ExitStack() as stack:
            for store in self.stores(where, stack):
                ordered = [row for rows in store.scan("main", lower, upper) for row in plain(rows)]
                assert ordered == expected
                loose = pa.concat_tables([MAIN.schema.empty_table(), *store.scan("main", lower, upper, folded=False)])
                assert sorted(map(repr, plain(combine(MAIN, loose)))) == sorted(map(repr, expected))

    @rule()
    def reopen_rocksdb(self) -> None:
        applied = self.rocks.applied
        self.rocks.close()
        self.rocks = RocksStore(SPECS, self.folder / "rocks")
        assert self.rocks.applied == applied

    @rule(number=st.integers(0, 2), lost=st.sampled_from([False] * 5 + [True]))
    def open_one(self, number: int, lost: bool) -> None:
        """Only one of the three: the others fall behind and have to catch up later."""
        config = self.configs()[number]
        if lost:
            forget()
            shutil.rmtree(self.folder / "cache", ignore_errors=True)
        with open_store(config, self.objects, "job/windows/0/1", SPECS, self.base) as store:
            self.check(store)

    @invariant()
    def same_rows(self) -> None:
        for store in (self.memory, self.rocks):
            self.check(store)

    def stores(self, where: str, stack: ExitStack) -> list[StateStore]:
        if where == "direct":
            return [self.memory, self.rocks]
        opened = [open_store(c, self.objects, "job/windows/0/1", SPECS, self.base) for c in self.configs()]
        return [stack.enter_context(store) for store in opened]

    def configs(self) -> list[StoreConfig]:
        return [Parquet(), Memory(), RocksDB(cache_dir=str(self.folder / "cache"))]

    def check(self, store: StateStore) -> None:
        found = store.snapshot()
        assert list(found) == [spec.name for spec in SPECS]
        for name, rows in found.items():
            assert rows.schema.equals(self.model[name].spec.schema)
            assert plain(rows) == self.model[name].snapshot()


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=max(120, settings.default.max_examples // 2))
