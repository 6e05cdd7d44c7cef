"""Store-level benchmarks, each with its peer in the same process: ``python -m tools.bench stores [--json]``.

Rows have a 16-byte key and four int64 values that are summed (32 bytes). Every figure is from one run; quote ratios.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from tidestate.statestore.files.filetable import FileTable, open_sources
from tidestate.statestore.files.folding import fold_into
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState, SegmentName
from tidestate.statestore.spec.changes import Applied, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import Parquet, StateStore
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.memory import MemoryStore
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.stores.rocksdb import RocksStore

VALUES = 4
ROWS = TableSpec("rows", (Column("k", "binary"),), tuple(Column(f"v{i}", "int64", "", "sum") for i in range(VALUES)))
ROW_BYTES = 16 + 8 * VALUES
BATCH = 100_000
ROUNDS = 10


def keys(count: int, seed: int = 1) -> pa.Array:
    """Distinct random keys of 16 bytes."""
    data = np.random.default_rng(seed).bytes(16 * count)
    return pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def rows(chosen: pa.Array, seed: int) -> pa.Table:
    """Those keys in random order with random values."""
    random = np.random.default_rng(seed)
    shuffled = chosen.take(pa.array(random.permutation(len(chosen))))
    return pa.table([shuffled, *(random.integers(0, 1000, len(chosen)) for _ in range(VALUES))], schema=ROWS.schema)


def merges(folder: Path) -> Iterator[dict[str, Any]]:
    """Ten merges of 100,000 rows over the same keys, each with its durable segment, then one scan."""
    batches = [rows(keys(BATCH), seed) for seed in range(ROUNDS)]
    peer = _timed(lambda: _plain_arrow(batches, folder / "peer"))
    for name in ("memory", "parquet"):
        objects = Objects(folder / name)
        started = time.perf_counter()
        store: StateStore = MemoryStore([ROWS])
        state = PartitionState()
        for number, batch in enumerate(batches, 1):
            changes = {"rows": TableChanges(merge=batch)}
            state = _log(objects).append(state, changes, number)
            if name == "memory":
                store.apply(changes, Applied(number, state.lineage))
        store = store if name == "memory" else ParquetStore([ROWS], objects, state)
        folded = sum(batch.num_rows for batch in store["rows"].scan())
        total = time.perf_counter() - started
        again = _timed(lambda store=store: sum(batch.num_rows for batch in store["rows"].scan()))  # type: ignore[misc]
        fresh = _snapshot_scan(folder / f"{name}-snapshot", store)
        yield {
            "name": f"merges and a scan, {name}",
            "rows_per_s": round(BATCH * ROUNDS / total),
            "aim": 3_000_000,
            "peer": "pyarrow: ten Arrow files with fsync, one group_by, one sort",
            "ratio": round(peer / total, 2),
            "folded_rows": folded,
            "scan_again_rows_per_s": round(folded / again),
            "scan_snapshot_rows_per_s": fresh,
            "scan_aim": 10_000_000,
        }


def _snapshot_scan(folder: Path, store: StateStore) -> int:
    """Rows a second of a first scan of a snapshot file with a million rows."""
    wide = rows(keys(1_000_000, 7), 7)
    objects = Objects(folder)
    state = _log(objects, snapshot_bytes=1).append(PartitionState(), {"rows": TableChanges(put=wide)}, 1)
    state = _log(objects, snapshot_bytes=1).append(state, {"rows": TableChanges(put=wide.slice(0, 1))}, 2)
    state = msgspec.structs.replace(state, files=state.files[:-1])
    seconds = _timed(
        lambda: sum(b.num_rows for b in ParquetStore([ROWS], objects, state)["rows"].scan(key_range((b"",))))
    )
    return int(wide.num_rows / seconds)


def _plain_arrow(batches: list[pa.Table], folder: Path) -> None:
    folder.mkdir()
    for number, batch in enumerate(batches):
        with pa.OSFile(str(folder / str(number)), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_table(batch)
        _sync(folder / str(number))
    files = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in sorted(folder.iterdir())]
    sums = [(f"v{i}", "sum") for i in range(VALUES)]
    pa.concat_tables(files).group_by("k", use_threads=False).aggregate(sums).sort_by("k")


def checkpoints(folder: Path, count: int = 10_000) -> Iterator[dict[str, Any]]:
    """Many checkpoints of one window that stays open, a thousand keys: nothing grows."""
    objects, state, batch = Objects(folder / "open"), PartitionState(), rows(keys(1000), 3)
    took: list[float] = []
    shape: list[tuple[int, int]] = []
    for number in range(1, count + 1):
        started = time.perf_counter()
        state = _log(objects).append(state, {"rows": TableChanges(merge=batch)}, number)
        took.append(time.perf_counter() - started)
        shape.append((len(state.files), len(msgspec.json.encode(state))))
    tenth = max(1, count // 10)
    early, late = slice(tenth, 2 * tenth), slice(count - tenth, count)
    yield {
        "name": f"{count:,} checkpoints of one open window",
        "files_max": [max(files for files, _ in shape[part]) for part in (early, late)],
        "manifest_bytes_max": [max(size for _, size in shape[part]) for part in (early, late)],
        "median_ms": [round(1000 * statistics.median(took[part]), 2) for part in (early, late)],
        "mean_ms": [round(1000 * statistics.mean(took[part]), 2) for part in (early, late)],
        "peer": "the second tenth of the same run, first of each pair",
        "ratio": round(statistics.mean(took[early]) / statistics.mean(took[late]), 2),
        "aim": "flat",
    }


def rocksdb(folder: Path) -> Iterator[dict[str, Any]]:
    """Put, get and scan of a million rows: ours with Arrow in and out, bare rocksdict with lists of bytes."""
    wide = rows(keys(1_000_000), 5)
    asked = wide.select(["k"]).take(pa.array(np.random.default_rng(3).permutation(wide.num_rows)[:BATCH]))
    store = RocksStore([ROWS], folder / "rocks")
    batches = [wide.slice(start, BATCH) for start in range(0, wide.num_rows, BATCH)]

    def put() -> None:
        for number, batch in enumerate(batches, 1):
            store.apply({"rows": TableChanges(put=batch)}, Applied(number, str(number)))

    ours = {
        "put": _timed(put),
        "get": _timed(lambda: store["rows"].lookup(asked)),
        "scan": _timed(lambda: sum(batch.num_rows for batch in store["rows"].scan())),
    }
    store.close()
    theirs = _bare(folder / "bare", wide, asked)
    for verb, seconds in ours.items():
        count = BATCH if verb == "get" else wide.num_rows
        yield {
            "name": f"rocksdb {verb}",
            "rows_per_s": round(count / seconds),
            "peer": "rocksdict, raw bytes, the same options",
            "peer_rows_per_s": round(count / theirs[verb]),
            "ratio": round(theirs[verb] / seconds, 2),
            "aim": 0.8,
        }


def _bare(folder: Path, wide: pa.Table, asked: pa.Table) -> dict[str, float]:
    from tidestate.statestore.stores.rocks.files import options

    made: Options = options()
    db = Rdict(str(folder), made)
    no_wal = WriteOptions()
    no_wal.disable_wal = True
    data = np.stack([column.to_numpy() for column in wide.columns[1:]], 1).astype("<i8").tobytes()
    values = [data[place : place + 8 * VALUES] for place in range(0, len(data), 8 * VALUES)]
    names, wanted = wide["k"].to_pylist(), sorted(asked["k"].to_pylist())

    def put() -> None:
        for start in range(0, len(names), BATCH):
            batch = WriteBatch(raw_mode=True)
            for name, value in zip(names[start : start + BATCH], values[start : start + BATCH], strict=True):
                batch.put(name, value)
            db.write(batch, no_wal)

    def scan() -> None:
        cursor = db.iter()
        cursor.seek_to_first()
        found = []
        while cursor.valid():
            found.append(cursor.value())
            cursor.next()
        del cursor

    took = {"put": _timed(put), "get": _timed(lambda: db.get(wanted)), "scan": _timed(scan)}
    db.close()
    return took


def snapshots(folder: Path) -> Iterator[dict[str, Any]]:
    """A snapshot of a million rows written and read back; and a RocksDB rebuilt from it."""
    objects, wide = Objects(folder / "snapshot"), rows(keys(1_000_000), 11)
    small = {"rows": TableChanges(merge=wide.slice(0, 1000))}
    state = _log(objects).append(PartitionState(), {"rows": TableChanges(put=wide)}, 1)
    started = time.perf_counter()
    state = _log(objects, snapshot_bytes=1).append(state, small, 2)
    first = time.perf_counter() - started
    # Of the first snapshot only: it is folded with a changelog over it, as all later ones are.
    table = FileTable(ROWS, open_sources(objects, ROWS, state.files), None, Parquet().budget_bytes // 32)
    runs = []
    for number in range(7):
        name = SegmentName("again", 0, 1, 1, 2, "again", "", f"again-{number}", 2)
        runs.append(_timed(lambda name=name: fold_into(objects, ROWS, table, "snapshot", name)))  # type: ignore[misc]
        # As a superseded one is removed; else each run would measure memory that this machine has never touched.
        shutil.rmtree(folder / "snapshot" / "data" / "again")
    write = statistics.median(runs)
    state = msgspec.structs.replace(state, files=state.files[:-1])
    snapshot = Path(objects.locate(state.files[0].path))
    copy = _timed(lambda: _copied(snapshot, folder / "copy"))
    read = _timed(lambda: _restore(MemoryStore([ROWS]), objects, state))
    for verb, seconds in (("write", write), ("first write, from an unsorted log", first), ("restore", read)):
        yield {
            "name": f"parquet snapshot, {verb}",
            "mb_per_s": round(wide.nbytes / seconds / 1e6),
            "aim": 200,
            "peer": "a copy of the snapshot file with fsync",
            "peer_mb_per_s": round(snapshot.stat().st_size / copy / 1e6),
            "ratio": round(copy / seconds, 2),
            "rows": wide.num_rows,
        }
    store = RocksStore([ROWS], folder / "restored")
    seconds = _timed(lambda: _restore(store, objects, state))
    store.close()
    yield {
        "name": "rocksdb restore",
        "rows_per_s": round(wide.num_rows / seconds),
        "aim": 1_500_000,
        "peer": "restore of the memory store",
        "ratio": round(read / seconds, 2),
    }


def _restore(store: StateStore, objects: Objects, state: PartitionState) -> None:
    files = ParquetStore([ROWS], objects, state)
    store.load(files.snapshot(), Applied(2, state.lineage))


def memory(folder: Path, budget_mb: int = 64, times: int = 20) -> Iterator[dict[str, Any]]:
    """State many times the budget, written, merged into and scanned in a process of its own."""
    command = [sys.executable, "-m", "tools.bench.stores", str(folder / "large"), str(budget_mb), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the memory run failed:\n{done.stderr[-3000:]}")
    facts: dict[str, Any] = msgspec.json.decode(done.stdout.splitlines()[-1])
    yield {
        "name": f"state {times} times a budget of {budget_mb} MB",
        **facts,
        "peer": "the same process before it had state, first of each pair",
        "ratio": round(facts["resident_mb"][0] / facts["resident_mb"][1], 2),
        "aim": "within the budget plus a constant",
    }


def large(folder: Path, budget_mb: int, times: int) -> dict[str, Any]:
    """Fill, look up, scan and fold state of ``times`` the budget; the largest resident size on the way."""
    objects, state = Objects(folder), PartitionState()
    config = Parquet(budget_bytes=budget_mb << 20)
    total = budget_mb * times << 20
    before = _resident_mb()
    written = number = 0
    batch_rows = (budget_mb << 20) // 8 // ROW_BYTES
    while written < total:
        number += 1
        batch = rows(keys(batch_rows, number), number)
        log = PartitionLog(objects, [ROWS], config, "bench", 0, 1, uuid.uuid4().hex)
        state = log.append(state, {"rows": TableChanges(put=batch)}, number)
        written += batch.nbytes
    with_state = ParquetStore([ROWS], objects, state, budget_bytes=config.budget_bytes)
    asked = keys(batch_rows, 1)
    found = with_state["rows"].lookup(pa.table({"k": asked.slice(0, 1000)})).found
    started = time.perf_counter()
    count = sum(batch.num_rows for batch in with_state["rows"].scan())
    seconds = time.perf_counter() - started
    return {
        "resident_mb": [before, _resident_mb()],
        "state_mb": round(written / 1e6),
        "rows": count,
        "found": int(np.count_nonzero(found)),
        "files": len(state.files),
        "scan_rows_per_s": round(count / seconds),
    }


def _resident_mb() -> int:
    """The largest resident size of this process so far, in megabytes; ``getrusage`` would count its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return round(int(peak) * 1024 / 1e6)


def _log(objects: Objects, **settings: int) -> PartitionLog:
    return PartitionLog(objects, [ROWS], Parquet(**settings), "bench", 0, 1, uuid.uuid4().hex)


def _copied(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    _sync(target)


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


BENCHES: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "merges": merges,
    "checkpoints": checkpoints,
    "rocksdb": rocksdb,
    "snapshots": snapshots,
    "memory": memory,
}


def run(chosen: list[str]) -> Iterator[dict[str, Any]]:
    """The chosen benches, or all."""
    for name in chosen or list(BENCHES):
        with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
            yield from BENCHES[name](Path(folder))


if __name__ == "__main__":
    print(msgspec.json.encode(large(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))).decode())
