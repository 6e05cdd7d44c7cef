"""The contract on our stores, and on stores with a bug in each of which it must be found."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.helpers.durable_store import DurableStore
from tests.helpers.process import LONG, longer
from tests.servers.clouds import Cloud, azure_endpoint, cloud, fronts, gcs_endpoint  # noqa: F401  (fixtures)
from tests.servers.hdfs import hdfs_root, hdfs_server  # noqa: F401  (fixtures)
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tests.servers.volumes import VOLUME, FilesApi, files_api, files_server  # noqa: F401  (fixtures)
from tidestate.statestore.errors import CommitUnknownError, LimitError, UnavailableError
from tidestate.statestore.files import filetable, partition_log, sortedfile
from tidestate.statestore.spec.changes import Applied, ChangeSet, KeyBound, Lookup, Ranges, TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING, Cut, KeyRange
from tidestate.statestore.spec.store import Parquet, StateStore
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores import parquet
from tidestate.statestore.stores.memory import MemoryStore, MemoryTable
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.stores.rocksdb import RocksStore
from tidestate.statestore.testing import BrokenPromise, Crash, FaultyObjects, StoreContract, contract_changes
from tidestate.statestore.testing.faults import When
from tidestate.statestore.testing.machine import machine, machine_settings
from tidestate.statestore.testing.refusals import REFUSED


class Ours(StoreContract):
    @pytest.fixture(autouse=True)
    def _fewer_change_sets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if not LONG:
            monkeypatch.setattr(contract_changes, "MANY", 16)

    def test_any_history(self, tmp_path: Path) -> None:
        """In CI a share of the histories."""
        search = machine_settings(max_examples=machine_settings().max_examples if LONG else 2)
        run_state_machine_as_test(machine(self.open, tmp_path, durable=self.durable), settings=search)


class TestMemory(Ours):
    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return MemoryStore(specs)


class TestRocksDB(Ours):
    durable = True

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return RocksStore(specs, folder)


@pytest.mark.slow
@pytest.mark.usefixtures("_small_bands")
class TestParquet(Ours):
    """In RAM and spilled: nothing durable of its own, so it comes back empty. It reads as the next."""

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return ParquetStore(specs, budget_bytes=SMALL_BUDGET)


@pytest.mark.usefixtures("_small_bands")
class TestParquetOnFiles(Ours):
    """The durable files, folded often and read in small bands."""

    durable = durable_apply = True

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return DurableStore(specs, Objects(folder), FOLDING)


@pytest.mark.usefixtures("_on_s3")
class TestParquetOnS3(Ours):
    """The same on a real S3 server, read by ranges and from local copies."""

    durable = durable_apply = True

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return _remote(specs, folder)


@pytest.mark.long
@pytest.mark.usefixtures("_on_clouds")
class TestParquetOnClouds(Ours):
    """The same on a real server of each service."""

    durable = durable_apply = True

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return _remote(specs, folder)


@pytest.mark.long
@pytest.mark.usefixtures("_on_volumes")
class TestParquetOnVolumes(Ours):
    """The same by the Files API of Databricks, on a server of ours."""

    durable = durable_apply = True

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return _remote(specs, folder)


@pytest.mark.long
@pytest.mark.usefixtures("_on_hdfs")
class TestParquetOnHdfs(Ours):
    """The same on Hadoop's small cluster, where each create is a file and its new name."""

    durable = durable_apply = True

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return _remote(specs, folder)


def _remote(specs: Sequence[TableSpec], folder: Path) -> StateStore:
    folder_name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    root = f"{os.environ['TIDESTATE_TEST_ROOT']}/{folder_name}"
    return DurableStore(specs, Objects(root, copies=os.environ["TIDESTATE_TEST_COPIES"]), FOLDING)


SMALL_BUDGET = 4096
FOLDING = Parquet(max_levels=3, snapshot_bytes=2000, budget_bytes=1 << 20)


@pytest.fixture
def _small_bands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "batch_to_batch" in request.node.name:
        return  # 150,000 rows: they have bands of their own
    for module in (parquet, partition_log):
        monkeypatch.setattr(module, "BAND_SHARE", 1 << 10)
    monkeypatch.setattr(sortedfile, "BLOCK_BYTES", 300)
    monkeypatch.setattr(filetable, "SPLIT_BYTES", 300)


@pytest.fixture
def _copies(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDESTATE_TEST_COPIES", str(tmp_path_factory.mktemp("copies")))


@pytest.fixture
def _on_s3(s3_root: str, _copies: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("TIDESTATE_TEST_ROOT", s3_root)


@pytest.fixture
def _on_clouds(cloud: Cloud, _copies: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("TIDESTATE_TEST_ROOT", cloud.root)


@pytest.fixture
def _on_volumes(files_api: FilesApi, _copies: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("TIDESTATE_TEST_ROOT", VOLUME)


@pytest.fixture
def _on_hdfs(hdfs_root: str, _copies: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("TIDESTATE_TEST_ROOT", hdfs_root)


class Broken(MemoryStore):
    """A store of tables of another class."""

    Table: type[MemoryTable]

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        super().__init__(specs)
        self._tables = {spec.name: self.Table(spec) for spec in specs}


class ShowsExpired(Broken):
    class Table(MemoryTable):
        def lookup(self, keys: pa.Table) -> Lookup:
            bound, self.expired = self.expired, None
            found = super().lookup(keys)
            self.expired = bound
            return found

    def expire(self, table: str, bound: int) -> None:
        layers = self[table].layers
        super().expire(table, bound)
        self[table].layers = layers


class BoundGoesBack(MemoryStore):
    def expire(self, table: str, bound: int) -> None:
        super().expire(table, bound)
        self[table].expired = bound


class MergesLikePut(MemoryStore):
    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        parts = {}
        for name, part in changes.items():
            rows, keys = part.merge, self._specs[name].key_names
            if rows is not None and rows.group_by(keys).aggregate([]).num_rows == rows.num_rows:
                part = TableChanges(part.delete, part.put if part.put is not None else rows, None, part.expire)
            parts[name] = part
        super().apply(parts, applied)


class DeletesLast(MemoryStore):
    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        super().apply({n: TableChanges(None, p.put, p.merge, p.expire) for n, p in changes.items()}, applied)
        self._applied = Applied(applied.sequence - 1)
        super().apply({n: TableChanges(p.delete) for n, p in changes.items()}, applied)


def test_a_fold_that_fails_leaves_memory_as_it_was() -> None:
    """Many merges are folded within ``apply``, where a sum may turn out to be too large."""
    spec = TableSpec("n", (Column("k", "int64"),), (Column("n", "int64", combiner="sum"),))
    other = TableSpec("other", spec.key, spec.values)
    store, row = MemoryStore([other, spec]), pa.table({"k": [1], "n": [2**62]})
    changes = {"other": TableChanges(merge=pa.table({"k": [1], "n": [1]})), "n": TableChanges(merge=row)}
    failed = 0
    for sequence in range(1, 60):
        before, count = store.applied, sum(batch["n"][0].as_py() for batch in store["other"].scan())
        try:
            store.apply(changes, Applied(sequence))
        except LimitError:
            failed += 1
            assert (store.applied, sum(b["n"][0].as_py() for b in store["other"].scan())) == (before, count)
    assert failed > 3


class NotAtomic(MemoryStore):
    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        for name, part in changes.items():
            before = self._applied
            super().apply({name: part}, applied)
            self._applied = before
        super().apply({}, applied)


class Unordered(Broken):
    class Table(MemoryTable):
        def scan(self, keys: KeyRange = EVERYTHING, **options: Any) -> Iterator[pa.Table]:
            for rows in super().scan(keys, **options):
                order = list(range(rows.num_rows))
                random.Random(1).shuffle(order)
                yield rows.take(pa.array(order, pa.int64()))


class ReversesBatchesOnly(Broken):
    class Table(MemoryTable):
        def scan(
            self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True
        ) -> Iterator[pa.Table]:
            batches = list(super().scan(keys, folded=folded))
            yield from batches[::-1] if reverse else batches


class UpperIsIncluded(Broken):
    class Table(MemoryTable):
        def scan(self, keys: KeyRange = EVERYTHING, **options: Any) -> Iterator[pa.Table]:
            upper = keys.upper and Cut(keys.upper.values, after=True)
            return super().scan(KeyRange(keys.lower, upper), **options)


class NotAligned(Broken):
    class Table(MemoryTable):
        def lookup(self, keys: pa.Table) -> Lookup:
            return super().lookup(keys.sort_by([(name, "ascending") for name in keys.column_names]))


class LooseSchema(Broken):
    class Table(MemoryTable):
        def lookup(self, keys: pa.Table) -> Lookup:
            found = super().lookup(keys)
            return Lookup(found.found, found.rows.select(sorted(found.rows.column_names)))


class RangesIgnoreBounds(Broken):
    class Table(MemoryTable):
        def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
            return super().ranges(prefixes, lower)


class LosesARow(MemoryStore):
    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        return {name: (rows.slice(0, rows.num_rows - 1) for rows in self[name].scan()) for name in self._specs}


class LoadsOverRows(MemoryStore):
    def load(self, rows: Mapping[str, Any], applied: Applied, expired: Mapping[str, int] | None = None) -> None:
        self._applied = Applied()
        super().load(rows, applied, expired)


class ForgetsTheBound(MemoryStore):
    def load(self, rows: Mapping[str, Any], applied: Applied, expired: Mapping[str, int] | None = None) -> None:
        super().load(rows, applied, None)


class OpensAhead(MemoryStore):
    """Remembers in the folder how far it came, but not the rows."""

    def __init__(self, specs: Sequence[TableSpec], folder: Path) -> None:
        super().__init__(specs)
        self._file = folder / "applied"
        folder.mkdir(parents=True, exist_ok=True)
        if self._file.exists():
            sequence, _, lineage = self._file.read_text().partition(" ")
            self._applied = Applied(int(sequence), lineage)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        super().apply(changes, applied)
        self._file.write_text(f"{applied.sequence} {applied.lineage}")


Test = Callable[[StoreContract, Path], None]

BUGS: dict[Callable[..., StateStore], Test] = {
    ShowsExpired: lambda c, p: c.test_expired_rows_are_never_seen(p, "int64"),
    BoundGoesBack: lambda c, p: c.test_expired_rows_are_never_seen(p, "int32"),
    MergesLikePut: lambda c, p: c.test_many_change_sets(p),
    DeletesLast: lambda c, p: c.test_parts_apply_in_order(p),
    NotAtomic: lambda c, p: c.test_refused_whole(p, REFUSED[0]),
    Unordered: lambda c, p: c.test_scans_keep_to_their_bounds(p, False),
    ReversesBatchesOnly: lambda c, p: c.test_scans_stay_in_order_from_batch_to_batch(p),
    UpperIsIncluded: lambda c, p: c.test_scans_keep_to_their_prefix(p),
    NotAligned: lambda c, p: c.test_look_ups_are_aligned(p),
    LooseSchema: lambda c, p: c.test_a_value_that_expired_may_be_put_again(p),
    RangesIgnoreBounds: lambda c, p: c.test_ranges_of_many_requests(p, 2),
    LosesARow: lambda c, p: c.test_a_snapshot_loads_into_another_store(p),
    LoadsOverRows: lambda c, p: c.test_load_wants_an_empty_store(p),
    ForgetsTheBound: lambda c, p: c.test_load_takes_few_tables_in_many_batches(p),
    OpensAhead: lambda c, p: c.test_opened_again_and_again(p),
}
"""Each store with its bug, and the test that is there to find it."""

BY_TESTS_ONLY = {NotAtomic, LoadsOverRows, ReversesBatchesOnly}
"""What the state machine does not look for, or not surely in few examples."""
BY_CHANCE = [bug for bug in BUGS if bug not in BY_TESTS_ONLY]


class Unnamed(StoreContract):
    def __init__(self, make: Callable[..., StateStore]) -> None:
        self._make = make

    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        return self._make(specs, folder) if self._make is OpensAhead else self._make(specs)


@pytest.mark.parametrize("broken", BUGS, ids=lambda broken: broken.__name__)
def test_a_bug_is_found_by_its_test(tmp_path: Path, broken: Callable[..., StateStore]) -> None:
    BUGS[broken](Unnamed(MemoryStore), tmp_path / "sound")
    with pytest.raises((BrokenPromise, pytest.fail.Exception)):
        BUGS[broken](Unnamed(broken), tmp_path / "broken")


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [NotAligned, Unordered, *longer(*(bug for bug in BY_CHANCE if bug not in (NotAligned, Unordered)))],
    ids=lambda broken: broken.__name__,
)
def test_a_bug_is_found_by_chance(tmp_path: Path, broken: Callable[..., StateStore]) -> None:
    search = machine_settings(phases=[Phase.generate], max_examples=200, derandomize=True, database=None)
    with pytest.raises(BrokenPromise):
        run_state_machine_as_test(machine(Unnamed(broken).open, tmp_path), settings=search)


def test_the_package_itself_needs_no_test_tools() -> None:
    check = "import sys, tidestate.statestore; sys.exit(bool({'pytest', 'hypothesis'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


WHENS: tuple[When, ...] = ("before", "during", "after")


def _publish(objects: Objects) -> None:
    """Every kind of call once or more; at the end ``name`` is there."""
    objects.put("data", b"12345678")
    with objects.writer("large") as sink:
        sink.write(b"abc")
        sink.write(b"def")
    with objects.open_input("large") as file:
        assert file.read(2) + file.read() == b"abcdef"
    assert objects.read("data") == bytes(objects.map("data")) == b"12345678"
    objects.create("name", b"{}")
    objects.delete("data")
    assert not objects.exists("data")
    assert objects.names("") == ["large", "name"]


def test_every_call_of_objects_is_wrapped() -> None:
    public = {name for name in vars(Objects) if not name.startswith("_")}
    assert public <= vars(FaultyObjects).keys()


def _calls(folder: Path) -> list[str]:
    faulty = FaultyObjects(Objects(folder))
    _publish(faulty)
    assert faulty.calls == len(faulty.log)
    return faulty.log


def test_parquet_files_pass_through(tmp_path: Path) -> None:
    rows, objects = pa.table({"n": [1, 2, 3]}), FaultyObjects(Objects(tmp_path))
    with objects.writer("rows.parquet") as sink:
        pq.write_table(rows, sink)
    with objects.open_input("rows.parquet") as file:
        assert pq.read_table(file).equals(rows)
    assert objects.calls > 6
    with pytest.raises(Crash):
        pq.read_table(FaultyObjects(Objects(tmp_path), 2, crash=True).open_input("rows.parquet"))


def test_every_call_is_counted_and_named(tmp_path: Path) -> None:
    log = _calls(tmp_path)
    assert log[:5] == ["put data", "writer large", "write large", "write large", "end of writer large"]
    assert log[5:9] == ["open_input large", "input large", "input large", "read data"]
    assert log[9:] == ["map data", "create name", "delete data", "exists data", "names "]


@pytest.mark.parametrize("when", WHENS)
def test_a_crash_at_any_call_ends_everything(tmp_path: Path, when: When) -> None:
    log = _calls(tmp_path / "whole")
    for number, name in enumerate(log, 1):
        objects = Objects(tmp_path / str(number))
        faulty = FaultyObjects(objects, number, crash=True, when=when)
        with pytest.raises(Crash):
            _publish(faulty)
        with pytest.raises(Crash):
            faulty.exists("data")
        assert faulty.log == log[:number]
        done = number if when == "after" else number - 1
        assert objects.exists("large") == ("end of writer large" in log[:done])
        assert objects.exists("name") == ("create name" in log[:done])
        if name == "put data":
            expected = {"before": None, "during": b"1234", "after": b"12345678"}[when]
            assert (objects.read("data") if objects.exists("data") else None) == expected


@pytest.mark.parametrize("when", WHENS)
def test_an_error_at_any_call_passes(tmp_path: Path, when: When) -> None:
    for number, name in enumerate(_calls(tmp_path / "whole"), 1):
        faulty = FaultyObjects(Objects(tmp_path / str(number)), number, when=when)
        kind = CommitUnknownError if (name, when) == ("create name", "after") else UnavailableError
        with pytest.raises(kind):
            _publish(faulty)
        assert not faulty.exists("nothing")
        assert faulty.exists("name") == (name in POSTERIOR or (when == "after" and name == "create name"))


POSTERIOR = ("delete data", "exists data", "names ")  # after the call that creates the name
