"""The RocksDB store under a lock, damage, a full disk and a kill: an error that says so, never a wrong row."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from rocksdict import WriteBatch

from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG, SCRATCH, longer
from tests.helpers.rocks_tables import PLAIN, SPECS, VALUE, fill, numbers, opened, rows_of, sst_files
from tidestate.statestore.errors import CorruptionError, TidestateError, UnavailableError, UsageError
from tidestate.statestore.spec.changes import Applied
from tidestate.statestore.stores.rocksdb import RocksStore


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: RocksDB syncs often."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        yield Path(name) / "store"


def test_a_second_opener_is_reported_of_the_lock(folder: Path) -> None:
    with opened(folder), pytest.raises(UnavailableError, match="lock") as refused:
        RocksStore(SPECS, folder)
    assert refused.value.code == "rocksdb-open"
    with opened(folder):
        pass


def test_an_opener_in_another_process_is_reported_of_the_lock(folder: Path) -> None:
    with opened(folder):
        done = child(folder, "RocksStore(SPECS, folder)")
    assert done.returncode == 1
    assert b"rocksdb-open" in done.stderr


def test_other_tables_are_refused(folder: Path) -> None:
    fill(folder)
    with pytest.raises(CorruptionError, match="rocksdb-tables"):
        RocksStore([VALUE], folder)
    with opened(folder, PLAIN) as store:
        assert store.applied == Applied(1, "a")


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_load_cut_off_after_its_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder, PLAIN) as store:
        monkeypatch.setattr(store, "_commit", stop)
        with pytest.raises(Killed):
            store.load({"plain": [numbers(0, 10)]}, Applied(3, "c"))
        assert store.applied == Applied()
        monkeypatch.undo()
        with pytest.raises(CorruptionError, match="rocksdb-damaged"):
            store.load({"plain": [numbers(0, 10)]}, Applied(3, "c"))
    with pytest.raises(CorruptionError, match="rocksdb-damaged"):
        RocksStore([PLAIN], folder)


def stop(*_: object) -> None:
    raise Killed


def test_a_load_whose_source_fails_leaves_an_empty_store(folder: Path) -> None:
    def source() -> Iterator[pa.Table]:
        yield numbers(0, 10)
        raise ZeroDivisionError

    with opened(folder, PLAIN) as store:
        with pytest.raises(ZeroDivisionError):
            store.load({"plain": source()}, Applied(3, "c"))
        with pytest.raises(UsageError, match="load-order"):
            store.load({"plain": [numbers(5, 10), numbers(0, 5)]}, Applied(3, "c"))
        assert rows_of(store, "plain") == []
        store.load({"plain": [numbers(0, 10), numbers(10, 20)]}, Applied(3, "c"))
    with opened(folder, PLAIN) as store:
        assert store.applied == Applied(3, "c")
        assert rows_of(store, "plain") == numbers(0, 20).to_pylist()
        assert not (folder / "load").exists()


def test_flipped_bytes_are_never_believed(folder: Path) -> None:
    """Right rows or an error, whichever byte of a file is wrong and however it is read."""
    rows = fill(folder)
    [file] = sst_files(folder)
    size, seen = file.stat().st_size, set()
    ways = ("scan", "reverse", "lookup", "ranges")
    for place, offset in enumerate(random.Random(1).sample(range(size), 25)):
        copy = folder.with_name("damaged")
        shutil.copytree(folder, copy)
        flip(copy / file.name, offset)
        seen |= {outcome(copy, rows, way) for way in (ways if LONG else ways[place % 2 :: 2])}
        shutil.rmtree(copy)
    assert seen == {"right", "rocksdb-damaged"}


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x55
    file.write_bytes(bytes(data))


def outcome(folder: Path, rows: pa.Table, way: str) -> str:
    try:
        with opened(folder, PLAIN) as store:
            assert read(store, rows, way).equals(rows)
        return "right"
    except CorruptionError as error:
        return error.code


def read(store: RocksStore, rows: pa.Table, way: str) -> pa.Table:
    if way == "lookup":
        return store["plain"].lookup(rows.select(["k"])).rows
    if way == "ranges":
        everybody = pa.table({"none": [None] * 20}).select([])
        lower = pa.array(range(0, 5000, 250), pa.int64())
        return store["plain"].ranges(everybody, lower, pa.array([n + 250 for n in lower.to_pylist()])).rows
    found = pa.concat_tables(store["plain"].scan(reverse=way == "reverse"))
    return found if way == "scan" else found.take(pa.array(range(found.num_rows))[::-1])


@pytest.mark.parametrize("harm", ["cut", "gone", "manifest", "current"])
def test_lost_files_are_damage(folder: Path, harm: str) -> None:
    rows = fill(folder)
    [file] = sst_files(folder)
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif harm == "gone":
        file.unlink()
    elif harm == "manifest":
        next(folder.glob("MANIFEST-*")).write_bytes(b"nonsense")
    else:
        (folder / "CURRENT").write_bytes(b"nonsense")
    assert outcome(folder, rows, "scan") == "rocksdb-damaged"


def test_a_place_that_cannot_hold_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="rocksdb-io"):
        RocksStore(SPECS, tmp_path / "file" / "store")


CHILD = """
import os, resource, sys
from pathlib import Path
import pyarrow as pa
from tidestate.statestore.spec.changes import Applied, TableChanges
from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.stores.rocksdb import RocksStore
from tests.helpers.rocks_tables import PLAIN, SPECS, numbers
folder = Path(sys.argv[1])
"""


def child(folder: Path, code: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", CHILD + code, str(folder)]
    return subprocess.run(command, capture_output=True, timeout=120, cwd=ROOT, check=False)


FULL = """
store = RocksStore([PLAIN], folder)
store.apply({"plain": TableChanges(put=numbers(0, 10))}, Applied(1, "a"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
wide = pa.table({"k": range(100, 108), "v": [os.urandom(1 << 18).hex() for _ in range(8)]}, schema=PLAIN.schema)
store.apply({"plain": TableChanges(put=wide)}, Applied(2, "b"))
try:
    store._database.flush()
except UnavailableError as error:
    print(error.code)
try:
    store.apply({"plain": TableChanges(put=wide)}, Applied(3, "c"))
except UnavailableError as error:
    print(error.code, store.applied.sequence)
print(store["plain"].lookup(numbers(0, 10)).found.true_count)
store.close()
other = RocksStore([PLAIN], folder.with_name("other"))
try:
    other.load({"plain": [wide]}, Applied(1, "a"))
except UnavailableError as error:
    print(error.code, other.applied.sequence)
other.close()
"""


def test_a_full_disk(folder: Path) -> None:
    done = child(folder, FULL)
    assert done.stdout.decode().splitlines() == ["rocksdb-io", "rocksdb-io 2", "10", "rocksdb-io 0"], (
        done.stderr.decode()
    )
    with opened(folder, PLAIN) as store:  # whatever was flushed is a prefix
        assert store.applied.sequence in (0, 1, 2)


KILLED = """
store = RocksStore([PLAIN], folder)
for sequence in range(1, 1000):
    rows = pa.table({"k": range(2000), "v": [f"{sequence} " + "x" * 500] * 2000}, schema=PLAIN.schema)
    store.apply({"plain": TableChanges(put=rows)}, Applied(sequence, str(sequence)))
    if sequence % 50 == 0:
        store._database.flush()
    print(sequence, flush=True)
"""


@pytest.mark.parametrize("at", [60, *longer(30, 120)])
def test_a_killed_process_leaves_a_prefix(folder: Path, at: int) -> None:
    command = [sys.executable, "-c", CHILD + KILLED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and int(line) < at:
            pass
        os.kill(process.pid, signal.SIGKILL)
    with opened(folder, PLAIN) as store:
        sequence = store.applied.sequence
        assert at // 50 * 50 <= sequence
        rows = rows_of(store, "plain")
        assert len(rows) == (2000 if sequence else 0)
        assert all(row["v"].startswith(f"{sequence} ") for row in rows)


def test_every_error_names_the_folder(folder: Path) -> None:
    with opened(folder), pytest.raises(TidestateError) as refused:
        RocksStore(SPECS, folder)
    assert refused.value.context["folder"] == str(folder)


@pytest.mark.parametrize("value", [b"", b"x", b"x" * 1000])
def test_a_value_that_is_no_row_is_damage(folder: Path, value: bytes) -> None:
    fill(folder, 10)
    with opened(folder, PLAIN) as store:
        table = store["plain"]
        [key] = table._keys.encode(numbers(3, 4).select(["k"])).to_list()
        batch = WriteBatch(raw_mode=True)
        batch.put(key, value)
        store._database.write(batch)
        for way in ("scan", "lookup", "ranges"):
            with pytest.raises(CorruptionError, match="rocksdb-damaged"):
                read(store, numbers(0, 10), way)


@pytest.mark.parametrize("meta", [b"", b"\xff", b"[" * 100_000, b'{"tables":[],"sequence":"x"}', b'"\xff"'])
def test_what_a_folder_says_of_itself_may_be_nothing(folder: Path, meta: bytes) -> None:
    fill(folder, 10)
    with opened(folder, PLAIN) as store:
        batch = WriteBatch(raw_mode=True)
        batch.put(b"\xfe", meta)
        store._database.write(batch)
    with pytest.raises(CorruptionError, match="rocksdb-"):
        RocksStore([PLAIN], folder)
