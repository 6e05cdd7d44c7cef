"""What a restore reads is counted, reported, kept in the manifest, predicted, rehearsed by ``tidestate restore``."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers.command import json_here, tidestate
from tests.helpers.process import forget
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import stream
from tests.helpers.worked_example import STREAM, example
from tidestate.operators.spark.platforms import platform_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState, Restore, files_of
from tidestate.recovery.start import restore_budget
from tidestate.recovery.start.restore_drill import run_restore_drill
from tidestate.statestore.errors import CorruptionError, UsageError
from tidestate.statestore.files.compaction import plan
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.store import RESTORE_BYTES_PER_S, Memory, Parquet, Restored, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.stores import opening
from tidestate.statestore.stores.restore_monitor import RestoreMonitor, progress_text

MB = 1_000_000


def ref(size: int, rows: int = 10, first: int = 1, **more: Any) -> FileRef:
    return FileRef(path="p", bytes=size, checksum="c", rows=rows, table="t", first=first, last=first, **more)


def state_of(manifest: Manifest) -> list[FileRef]:
    return [one for op in manifest.operators.values() for part in op.partitions for one in part.files]


def test_a_restore_tells_how_far_it_is() -> None:
    seconds, reported = [0.0], []
    watch = RestoreMonitor(lambda done, whole: reported.append((done, whole)), every_s=2.0, clock=lambda: seconds[0])
    small, large = ref(100, 10), ref(900, 90)
    rows = pa.table({"k": range(30)})
    with watch.timed():
        watch.expect([small, large])
        for _ in watch.reading([small], [rows.slice(0, 5)]):
            seconds[0] += 1.0
        for _ in watch.reading([large], [rows, rows, rows]):
            seconds[0] += 1.0
    whole = Restored(2, 1000, 100)
    assert reported == [
        (Restored(1, 400, 40, 2.0), whole),  # the first file, and a third of the rows of the second
        (Restored(1, 1000, 100, 4.0), whole),
        (Restored(2, 1000, 100, 4.0), whole),
    ]
    assert watch.restored == Restored(2, 1000, 100, 4.0)
    assert progress_text(*reported[0]) == "1 of 2 files, 0.0 of 0.0 MB, 40 of 100 rows, 0.0 MB/s, 3 s left"


def test_what_was_read_in_vain_is_not_counted_but_its_time_is() -> None:
    seconds = [0.0]
    watch = RestoreMonitor(clock=lambda: seconds[0])
    with watch.timed():
        watch.expect([ref(7)])
        watch.took([ref(7)])
        seconds[0] = 3.0
        watch.expect([ref(100), ref(50)])
        watch.took([ref(100), ref(50)])
    assert watch.restored == Restored(2, 150, 20, 3.0)


@pytest.mark.parametrize("name", ["memory", "rocksdb"])
def test_a_start_keeps_what_it_restored_in_the_manifest(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Memory() if name == "memory" else RocksDB(cache_dir=str(tmp_path / "first"))
    root = tmp_path / "root"
    example("retracting").standalone(checkpoint=root, store=store, partitions=1).run(STREAM[:3])
    checkpoint = Checkpoint.open(root)
    first = checkpoint.read(4).manifest
    assert first.restored == Restore(1, name, 0, 0, 0, 0.0, 0.0, 0.0, 30, 1)
    forget()
    elsewhere = store if name == "memory" else RocksDB(cache_dir=str(tmp_path / "second"))
    with caplog.at_level(logging.INFO):
        example("retracting").standalone(checkpoint=root, store=elsewhere, partitions=1).run(STREAM[:5])
    needed = state_of(first)
    batch, last = checkpoint.read(6).manifest, checkpoint.read(7).manifest
    assert batch.restored is not None
    assert (batch.restored.checkpoint, batch.restored.files) == (5, len(needed))
    assert (batch.restored.bytes, batch.restored.rows) == (sum(f.bytes for f in needed), sum(f.rows for f in needed))
    assert batch.restored.seconds == batch.restored.total_s > 0  # one partition after the other
    assert batch.restored.predicted_s == pytest.approx(batch.restored.bytes / RESTORE_BYTES_PER_S)
    assert last.restored == batch.restored
    assert f"restored {len(needed)} files" in caplog.text
    assert "predicted 0.0 s, budget 30 s" in caplog.text


def test_a_cache_that_is_there_restores_what_it_lacks(tmp_path: Path) -> None:
    root, store = tmp_path / "root", RocksDB(cache_dir=str(tmp_path / "cache"))
    example("retracting").standalone(checkpoint=root, store=store).run(STREAM[:2])
    forget()
    example("retracting").standalone(checkpoint=root, store=Parquet()).run(STREAM[:4])
    example("retracting").standalone(checkpoint=root, store=store).run(STREAM[:5])
    checkpoint = Checkpoint.open(root)
    heads = [one for one in checkpoint.history() if one.kind == "fence"]
    found = [checkpoint.read(head.id + 1).manifest.restored for head in heads]
    assert [one.store for one in found if one] == ["rocksdb", "parquet", "rocksdb"]
    assert found[1] == Restore(4, "parquet", 0, 0, 0, 0.0, 0.0, 0.0, 30, 1)
    assert found[2] is not None
    # The cache holds all up to the checkpoint before its last one: a store never applies what it has just computed.
    newer = [one for one in state_of(heads[2]) if one.last > 2]
    assert (found[2].files, found[2].bytes) == (len(newer), sum(one.bytes for one in newer))


def manifest_of(*partitions: tuple[int, ...], restored: Restore | None = None) -> Manifest:
    states = tuple(PartitionState(files=tuple(ref(size) for size in sizes)) for sizes in partitions)
    operators = {name: OperatorState({}, "f", (), states) for name in ("a", "b")}
    return Manifest(1, 9, "", "j", 1, "w", "batch", 0, operators, restored=restored)


def measured(rate: int | None, store: str = "memory") -> Restore:
    return Restore(8, store, 0, 0, 0, 0.0, 0.0, 0.0, 30, 2, rate)


def test_a_prediction_is_the_slowest_partition_on_the_slots_there_are() -> None:
    sizes = manifest_of((10, 20), (50,), (5,)).operators.values()
    assert restore_budget.predicted_s(sizes, "rocksdb", 10) == 10.0  # 50 bytes in each of two operators
    assert restore_budget.predicted_s(sizes, "rocksdb", 10, 3) == 10.0
    assert restore_budget.predicted_s(sizes, "rocksdb", 10, 1) == 17.0
    assert restore_budget.predicted_s(sizes, "parquet", 10) == 0.0
    assert restore_budget.predicted_restore(manifest_of((10,))) is None
    expected = {"store": "memory", "predicted_s": 5.0, "budget_s": 30}
    assert restore_budget.predicted_restore(manifest_of((10, 20), (50,), restored=measured(20))) == expected
    assert (
        restore_budget.predicted_restore_text(manifest_of((1,), restored=measured(1)))
        == "2.0 s predicted into memory, budget 30 s"
    )


def test_the_speed_is_measured_where_enough_was_read_and_believed_within_bounds() -> None:
    head, store = manifest_of((10,), restored=measured(77 * MB)), Memory()
    whole = Restored(1, 100 * MB, 5, 2.0)
    assert restore_budget.restore_of(head, store, [(0, whole), (1, whole)], 2).rate == 50 * MB
    assert restore_budget.restore_of(head, store, [(0, Restored(1, 100, 5, 2.0))], 2).rate == 77 * MB
    assert restore_budget.restore_of(head, RocksDB(), [(0, Restored())], 2).rate is None
    slow, fast = Restored(1, 100 * MB, 5, 1e6), Restored(1, 100 * MB, 5, 1e-9)
    assert restore_budget.restore_of(head, store, [(0, slow)], 2).rate == restore_budget.SLOWEST
    assert restore_budget.restore_of(head, store, [(0, fast)], 2).rate == restore_budget.FASTEST
    assert restore_budget.rate_of(head, "memory") == 77 * MB
    assert restore_budget.rate_of(head, "rocksdb") == RESTORE_BYTES_PER_S
    assert restore_budget.budgeted(store, head).restore_bytes_per_s == 77 * MB
    taken = restore_budget.restore_of(head, store, [(0, whole), (0, whole), (1, whole)], 2)
    assert (taken.seconds, taken.total_s) == (4.0, 6.0)
    assert restore_budget.restore_text(taken).startswith("restored 3 files, 300 MB, 15 rows in 4.0 s; predicted")


SPEC = TableSpec("t", (Column("k", "int64"),), ())


def test_snapshots_follow_the_measured_speed() -> None:
    levels = [(ref(40 * MB, kind="snapshot"),), (ref(20 * MB, first=2),), (ref(20 * MB, first=3),)]
    config = StoreConfig("memory", snapshot_bytes=1 << 40, recovery_s=1)
    fast = msgspec.structs.replace(config, restore_bytes_per_s=100 * MB)
    slow = msgspec.structs.replace(config, restore_bytes_per_s=50 * MB)
    assert (0, 3, None) not in plan(levels, fast, 0, SPEC)
    assert plan(levels, slow, 0, SPEC) == [(0, 3, None)]


def test_a_measured_speed_is_used_by_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_budget, "ENOUGH_BYTES", 1)
    monkeypatch.setattr(restore_budget, "SLOWEST", 1)
    for batches in (3, 4, 5):
        forget()
        example("retracting").standalone(checkpoint=tmp_path, store=Memory()).run(STREAM[:batches])
    found = [one.restored for one in Checkpoint.open(tmp_path).history() if one.kind == "batch" and one.restored]
    assert found[-2].rate is not None
    assert found[-1].predicted_s == pytest.approx(sum(f.bytes for f in before(tmp_path)) / found[-2].rate)


def before(root: Path) -> list[FileRef]:
    """Files of the newest fence."""
    return state_of([one for one in Checkpoint.open(root).history() if one.kind == "fence"][-1])


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_drill_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    example("retracting").standalone(checkpoint=tmp_path / "root", partitions=3).run(STREAM[:4])
    checkpoint, was = Checkpoint.open(tmp_path / "root"), contents(tmp_path / "root")
    manifest = checkpoint.read(5).manifest
    needed = state_of(manifest)
    reported: list[tuple[Restored, Restored]] = []
    for store in ("memory", "rocksdb"):
        found = run_restore_drill(
            checkpoint, manifest, store, parallel=2, on_progress=lambda *both: reported.append(both)
        )
        assert (found.whole.files, found.whole.bytes) == (len(needed), sum(one.bytes for one in needed))
        assert (found.operators["windows"].files, found.budget_s) == (len(needed), 30)
        assert reported[-1][0].files == reported[-1][1].files == len(needed)
    assert contents(tmp_path / "root") == was
    assert not opening._memory
    assert os.listdir(tmp_path / "tmp") == []
    with pytest.raises(UsageError, match="a restore drill needs"):
        run_restore_drill(checkpoint, manifest, "parquet")


def test_a_drill_finds_a_damaged_file(tmp_path: Path) -> None:
    example("retracting").standalone(checkpoint=tmp_path, partitions=3).run(STREAM[:4])
    checkpoint = Checkpoint.open(tmp_path)
    manifest = checkpoint.read(5).manifest
    Path(checkpoint.objects.locate(state_of(manifest)[0].path)).write_bytes(b"")
    with pytest.raises(CorruptionError):
        run_restore_drill(checkpoint, manifest, parallel=2)
    assert not opening._memory


def test_the_rocksdb_store_says_which_package_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example("retracting").standalone(checkpoint=tmp_path).run(STREAM[:2])
    monkeypatch.setitem(__import__("sys").modules, "tidestate.statestore.stores.rocksdb", None)
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(UsageError, match=r"tidestate\[rocksdb\].*\[store-package\]"):
        run_restore_drill(checkpoint, checkpoint.read(3).manifest, "rocksdb")


@pytest.mark.long
@pytest.mark.spark
def test_a_restart_and_a_drill_of_a_spark_job(spark: SparkSession, tmp_path: Path) -> None:
    root, description = tmp_path / "root", job()
    for number, table in enumerate(sample(4, 100)):
        write(tmp_path / "input", number, table)
        if number in (2, 3):
            store = RocksDB(cache_dir=str(tmp_path / f"cache-{number}"))
            events = stream(spark, tmp_path / "input")
            running = description.on_spark(events, checkpoint=root, store=store, partitions=2).start()
            running.processAllAvailable()
            running.stop()
    checkpoint = Checkpoint.open(root)
    head = checkpoint.head()
    assert head is not None
    found = head.manifest.restored
    needed = before(root)
    assert found is not None
    assert (found.store, found.files, found.rows) == ("rocksdb", len(needed), sum(one.rows for one in needed))
    assert found.parallel == platform_of(spark).parallelism

    observed = tidestate("show", root)
    assert "s predicted into rocksdb, budget 30 s" in observed.stdout
    assert f"restored {len(needed)} files" in observed.stdout
    assert " ago)" in observed.stdout
    listed = json_here("list", root, "--json")
    assert listed[0]["recovery"] is None
    assert listed[-1]["recovery"]["store"] == "rocksdb"

    drill = tidestate("restore", root, "--parallel", 2)
    assert (drill.returncode, drill.stderr) == (0, "")
    assert max(map(len, drill.stdout.splitlines())) <= 80
    assert f"checkpoint {head.manifest.id} into rocksdb, 2 partitions at a time\npredicted" in drill.stdout
    there = state_of(head.manifest)
    (older,) = json_here("restore", root, "--at", 3, "--store", "memory", "--json")
    assert older["whole"]["files"] == len(state_of(checkpoint.read(3).manifest))
    assert drill.stdout.splitlines()[2].split()[1] == f"{len(there)}"
    assert set(files_of(head.manifest)) >= set(there)
