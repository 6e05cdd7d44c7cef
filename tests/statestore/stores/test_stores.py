"""Three stores on the same durable files: each opens at what a manifest says, however far behind it was."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.helpers.lineage import advance
from tests.helpers.process import LONG, SCRATCH, examples, forget
from tests.helpers.table_model import MAIN, SPECS, KeyRow, TableModel, as_tuples, table
from tidestate.statestore.files import partition_log, sortedfile
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StateStore, StoreConfig
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores import parquet
from tidestate.statestore.stores.opening import open_store
from tidestate.statestore.table.fold import combine

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
BOUND_TEXTS = st.none() | TEXTS
BOUNDS = st.none() | st.tuples(TIMES) | st.tuples(TIMES, TEXTS) | MAIN_KEYS
KEYS: dict[str, st.SearchStrategy[KeyRow]] = {"main": MAIN_KEYS, "named": NAMED_KEYS}
VALUES: dict[str, st.SearchStrategy[KeyRow]] = {"main": MAIN_VALUES, "named": NAMED_VALUES}


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
    """Changes become durable files, folded often and in small blocks; every store opens at what they say."""

    def __init__(self) -> None:
        super().__init__()
        forget()
        self.folder = Path(tempfile.mkdtemp(prefix="stores-", dir=SCRATCH))
        self.objects = Objects(self.folder / "root")
        self.base = PartitionState()
        self.model = {spec.name: TableModel(spec) for spec in SPECS}
        self.patch = pytest.MonkeyPatch()

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)

    @initialize(
        max_levels=st.sampled_from([2, 4, 12]),
        snapshot_bytes=st.sampled_from([1, 5000, 1 << 30]),
        block_bytes=st.sampled_from([60, 400, 4 << 20]),
        band_share=st.sampled_from([16, 1 << 18]),
    )
    def begin(self, max_levels: int, snapshot_bytes: int, block_bytes: int, band_share: int) -> None:
        self.sequence = 0
        self.limits = Parquet(max_levels=max_levels, snapshot_bytes=snapshot_bytes, budget_bytes=1 << 20)
        self.patch.setattr(sortedfile, "BLOCK_BYTES", block_bytes)
        for module in (parquet, partition_log):
            self.patch.setattr(module, "BAND_SHARE", band_share)

    @rule(
        changes=st.fixed_dictionaries({}, optional={name: table_changes(name) for name in KEYS}),
        skipped=st.integers(0, 2),
    )
    def change(self, changes: dict[str, TableChanges], skipped: int = 0) -> None:
        self.sequence += 1 + skipped
        for name, one in changes.items():
            self.model[name].apply(one)
        self.base = advance(self.objects, SPECS, self.base, changes, self.sequence, self.limits)

    @rule(bound=st.integers(-5, 5))
    def tick(self, bound: int) -> None:
        """Time passes: rows expire and no file is written."""
        self.change({"main": TableChanges(expire=bound)})

    @rule(name=st.sampled_from(sorted(KEYS)), data=st.data(), times=st.integers(1, 4))
    def change_one(self, name: str, data: st.DataObject, times: int) -> None:
        """One table's files are folded while the other's stay as they are."""
        for _ in range(times):
            self.change({name: data.draw(table_changes(name))})

    @rule(data=st.data(), name=st.sampled_from(sorted(KEYS)))
    def lookup(self, data: st.DataObject, name: str) -> None:
        keys = data.draw(st.lists(KEYS[name], max_size=6))
        expected = self.model[name].lookup(keys)
        asked = table(self.model[name].spec, keys, keys_only=True)
        for store in self.stores():
            found = store[name].lookup(asked)
            rows = as_tuples(found.rows)
            assert found.found.to_pylist() == [row is not None for row in expected]
            assert [row if row is not None else rows[i] for i, row in enumerate(expected)] == rows

    @rule(lower=BOUNDS, upper=BOUNDS, reverse=st.booleans())
    def scan(self, lower: KeyRow | None, upper: KeyRow | None, reverse: bool) -> None:
        expected = [
            row
            for row in self.model["main"].snapshot()
            if (lower is None or row[: len(lower)] >= lower) and (upper is None or row[: len(upper)] < upper)
        ]
        for store in self.stores():
            batches = store["main"].scan(key_range(lower, upper), reverse=reverse)
            found = [row for rows in batches for row in as_tuples(rows)]
            assert found == (expected[::-1] if reverse else expected)
            loose = pa.concat_tables(
                [MAIN.schema.empty_table(), *store["main"].scan(key_range(lower, upper), folded=False)]
            )
            assert sorted(map(repr, as_tuples(combine(MAIN, loose)))) == sorted(map(repr, expected))

    @rule(
        requests=st.lists(st.tuples(TIMES, TEXTS, BOUND_TEXTS, BOUND_TEXTS), max_size=4),
        width=st.integers(0, 2),
    )
    def ranges(self, requests: list[KeyRow], width: int) -> None:
        prefixes = table(MAIN, [(*request_index[:2], 0, None, None, None, None) for request_index in requests])
        prefixes = prefixes.select(MAIN.key_names[:width])
        kind = MAIN.key[width].arrow
        low = [
            (request_index[0] - 1 if width == 0 else request_index[2] if width == 1 else request_index[0])
            for request_index in requests
        ]
        high = [
            (request_index[0] + 2 if width == 0 else request_index[3] if width == 1 else None)
            for request_index in requests
        ]
        expected = [
            (number, row)
            for number, request_index in enumerate(requests)
            for row in self.model["main"].snapshot()
            if row[:width] == request_index[:width]
            and (low[number] is None or row[width] >= low[number])
            and (high[number] is None or row[width] < high[number])
        ]
        for store in self.stores():
            found = store["main"].ranges(prefixes, pa.array(low, kind), pa.array(high, kind))
            assert list(zip(found.request_index.to_pylist(), as_tuples(found.rows), strict=True)) == expected

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
        if self.base.sequence % 3 == 0:
            for store in self.stores():
                self.check(store)

    def stores(self) -> Iterator[StateStore]:
        for config in self.configs():
            with open_store(config, self.objects, "job/windows/0/1", SPECS, self.base) as store:
                yield store

    def configs(self) -> list[StoreConfig]:
        return [Parquet(budget_bytes=1 << 20), Memory(), RocksDB(cache_dir=str(self.folder / "cache"))]

    def check(self, store: StateStore) -> None:
        found = store.snapshot()
        assert list(found) == [spec.name for spec in SPECS]
        for name, batches in found.items():
            spec = self.model[name].spec
            rows = pa.concat_tables([spec.schema.empty_table(), *batches])
            assert rows.schema.equals(spec.schema)
            assert as_tuples(rows) == self.model[name].snapshot()


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=settings.default.max_examples // 2 if LONG else examples(100))
