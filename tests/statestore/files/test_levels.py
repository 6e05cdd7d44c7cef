"""A table too large to be folded at once: its levels, folded piece by piece, always hold what was written."""

from __future__ import annotations

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.process import LONG, longer
from tests.helpers.table_model import KeyRow, TableModel, as_tuples, table
from tidestate.statestore.files import compaction, folding, partition_log, sortedfile
from tidestate.statestore.files.compaction import under_way
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import FileRef, PartitionState, levels_of
from tidestate.statestore.files.sortedfile import SortedFile
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import open_store
from tidestate.statestore.stores.parquet import ParquetStore

BY_KEY = TableSpec(
    "t",
    (Column("t", "int64"), Column("k", "string")),
    (Column("n", "int64", combiner="sum"), Column("note", "string", combiner="replace")),
    "t",
)
BY_VALUE = TableSpec("t", (Column("k", "string"),), (Column("at", "int64"), Column("note", "string")), "at")
CONFIG = Parquet(max_levels=5, snapshot_bytes=1 << 40, budget_bytes=1 << 20)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything a thousand times smaller than it is."""
    monkeypatch.setattr(compaction, "WORK_BYTES", 90_000)
    monkeypatch.setattr(compaction, "SMALL_BYTES", 1000)
    monkeypatch.setattr(folding, "FILE_BYTES", 40_000)
    monkeypatch.setattr(partition_log, "BAND_SHARE", 128)
    monkeypatch.setattr(sortedfile, "BLOCK_BYTES", 8000)


class Table:
    """A table on disk and what it should hold."""

    def __init__(self, spec: TableSpec, folder: Path, seed: int) -> None:
        self.spec, self.objects = spec, Objects(folder)
        self.state, self.model = PartitionState(), TableModel(spec)
        self.random = np.random.default_rng(seed)
        self.pieces = 0

    def write(self, number: int, rows: int) -> None:
        """One checkpoint of puts, deletes and merges; now and then something expires."""
        chosen = self.random.integers(0, 4000, rows)
        changed = {"put": self._rows(chosen[: rows // 2]), "delete": self._rows(chosen[-rows // 8 :], keys_only=True)}
        if self.spec is BY_KEY:
            changed["merge"] = self._rows(chosen)
        expire = number // 5 - 10 if number % 5 == 0 and number > 60 else None
        changes = TableChanges(**changed, expire=expire)  # type: ignore[arg-type]
        log = PartitionLog(self.objects, [self.spec], CONFIG, "w", 0, 1, uuid.uuid4().hex)
        self.state = log.append(self.state, {"t": changes}, number)
        self.model.apply(changes)
        self.pieces += under_way(self.levels) is not None

    def _rows(self, chosen: np.ndarray, *, keys_only: bool = False) -> pa.Table:
        if self.spec is BY_KEY:
            rows: list[KeyRow] = [(int(c) % 40, f"k{c:04}", 1, self._note()) for c in chosen]
        else:
            rows = [(f"k{c:04}", int(c) % 40, self._note()) for c in chosen]
        width = len(self.spec.key)
        unique = list({row[:width]: row for row in rows}.values())
        return table(self.spec, unique, keys_only=keys_only)

    def _note(self) -> str:
        return self.random.bytes(50).hex()

    @property
    def levels(self) -> list[tuple[FileRef, ...]]:
        return levels_of(self.state.files)

    def check(self) -> None:
        store = ParquetStore([self.spec], self.objects, self.state, budget_bytes=1 << 16)
        expected = self.model.snapshot()
        assert [row for rows in store["t"].scan() for row in as_tuples(rows)] == expected
        keys = table(self.spec, expected[:: max(1, len(expected) // 20)])
        found = store["t"].lookup(keys.select(self.spec.key_names))
        assert as_tuples(found.rows) == as_tuples(keys)
        for level in self.levels:
            self._check_level(level)

    def _check_level(self, level: tuple[FileRef, ...]) -> None:
        """Its files are disjoint and in key order."""
        if level[0].kind == "changelog":
            return
        ends = [SortedFile(self.objects, self.spec, ref).end for ref in level]
        assert ends == sorted(set(ends))
        for before, ref in zip(ends, level[1:], strict=False):
            layers = SortedFile(self.objects, self.spec, ref).layers(EVERYTHING)
            firsts = [row[: len(self.spec.key)] for layer in layers for row in as_tuples(layer.rows.slice(0, 1))]
            assert all(before < first for first in firsts)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [BY_KEY, BY_VALUE], ids=["by key", "by value"])
def test_a_large_table_holds_what_was_written_while_it_is_folded_in_pieces(spec: TableSpec, tmp_path: Path) -> None:
    written = Table(spec, tmp_path, 1)
    for number in range(1, 51):
        written.write(number, 100)
        if number % (10 if LONG else 25) == 0:
            written.check()
        assert len(written.levels) <= CONFIG.max_levels + 4
    assert written.pieces > 1
    assert max(len(level) for level in written.levels) > 2


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples if LONG else 4)
@given(spec=st.sampled_from([BY_KEY, BY_VALUE]), seed=st.integers(0, 1000), rows=st.integers(1, 150))
def test_no_mix_of_sizes_changes_what_a_table_holds(spec: TableSpec, seed: int, rows: int) -> None:
    with TemporaryDirectory() as folder:
        written = Table(spec, Path(folder), seed)
        for number in range(1, 20):
            written.write(number, int(written.random.integers(1, rows + 1)))
        written.check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rocksdb", *longer("memory")])
def test_a_store_follows_and_rebuilds_while_a_table_is_folded_in_pieces(name: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    config = Memory() if name == "memory" else RocksDB(cache_dir=cache)
    written = Table(BY_KEY, tmp_path / "root", 2)
    for number in range(1, 41):
        written.write(number, 100)
        # Sometimes it falls behind what has been folded meanwhile.
        if number % 6 == 0 and number % 30 > 10:
            with open_store(config, written.objects, f"{tmp_path}", [BY_KEY], written.state) as store:
                assert [row for rows in store["t"].scan() for row in as_tuples(rows)] == written.model.snapshot()
    assert written.pieces > 2
