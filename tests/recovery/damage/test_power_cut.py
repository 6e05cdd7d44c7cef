"""A writer dies at any sync, another goes on, then the power goes: what a sink has had is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs

import tidestate as ts
from tests.helpers.process import LONG
from tidestate import agg
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.boundary import Pin
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import DeliveryId, files_of
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.log.records import HELD_SUFFIX, PINS, pin_path, read_pins, seal
from tidestate.recovery.moves.repair import open_for_start
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import ConflictError, NotFoundError
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.storage import local
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.testing.faults import Crash
from tidestate.statestore.testing.power import Disk

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the disk reads files back by /proc")

BATCHES = [pa.table({"t": [datetime(2026, 1, day, tzinfo=UTC)], "k": ["a"]}) for day in (1, 2)]
"""Each fires the window of the one before."""


class Power:
    """A disk, and all that was acknowledged on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch, self._cuts = folder, monkeypatch, 0
        (folder / "disk").mkdir(parents=True)
        self.root = folder / "disk" / "jobs" / "root"

    def dies_at(self, at: int | None) -> Disk:
        disk = Disk(self._folder / "disk", at, _REAL)
        self._monkeypatch.setattr(os, "fsync", disk.fsync)
        self.disk = disk
        local._settled.clear()
        return disk

    def next_process(self) -> None:
        self.disk.alive()
        local._settled.clear()

    def left(self) -> Path:
        """The root after a power cut."""
        self._cuts += 1
        return self.disk.cut(self._folder / f"cut-{self._cuts}") / "jobs" / "root"


_REAL = os.fsync


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Power]]:
    return lambda name: Power(tmp_path / name, monkeypatch)


def check(root: Path, acknowledged: int) -> None:
    """That checkpoint is there with all that it needs."""
    checkpoint = Checkpoint.open(root)
    manifest = checkpoint.read(acknowledged).manifest
    for ref in files_of(manifest):
        read_verified(checkpoint.objects, ref)


def run(power: Power) -> None:
    """To the end of time; whenever the sink has got something, the power could go."""

    def sink(_panes: pa.Table, delivery: DeliveryId) -> None:
        if not power.disk.crashed:
            check(power.left(), delivery.checkpoint)

    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 day")).aggregate(n=agg.count()).named("job")
    job.standalone(checkpoint=str(power.root), sink=sink, store=Parquet(), partitions=2).run(BATCHES, drain=True)
    newest = Checkpoint.open(power.root).stored_ids()[-1]
    check(power.left(), newest)


@pytest.mark.slow
def test_what_a_sink_has_had_survives_a_power_cut(power: Callable[[str], Power]) -> None:
    whole = power("whole")
    calls = whole.dies_at(None)
    run(whole)
    assert calls.calls > 30
    for at in range(1, calls.calls + 1, 1 if LONG else 3):
        broken = power(f"at-{at}")
        disk = broken.dies_at(at)
        with pytest.raises(Crash):
            run(broken)
        assert disk.crashed
        broken.next_process()
        run(broken)


def published(power: Power) -> Checkpoint:
    """A root whose newest manifest was linked by a process that died before it was synced."""
    power.dies_at(None)
    run(power)
    checkpoint = Checkpoint.open(power.root)
    newest = checkpoint.head()
    assert newest is not None
    power.disk.dies_next(2)  # its bytes are synced, its name is not
    with pytest.raises(Crash):
        checkpoint.publish(
            structs.replace(newest.manifest, id=newest.manifest.id + 1, parent=newest.checksum, panes=(), late=())
        )
    power.next_process()
    checkpoint = Checkpoint.open(power.root)
    assert checkpoint.ids()[-1] == newest.manifest.id + 1
    return checkpoint


USES: dict[str, Callable[[Checkpoint], object]] = {
    "panes are read": lambda checkpoint: checkpoint.pane_paths(),
    "it is pinned": lambda checkpoint: pin(checkpoint, checkpoint.ids()[-1]),
    "others are collected": lambda checkpoint: collect(
        checkpoint, CheckpointRetention(newest=1, grace="0 seconds"), now_us()
    ),
    "a drained job starts": lambda checkpoint: open_for_start(checkpoint, Policy(), lambda _manifest: None),
}


@pytest.mark.parametrize("what", USES)
def test_who_goes_on_from_a_manifest_makes_it_durable(power: Callable[[str], Power], what: str) -> None:
    broken = power("disk")
    checkpoint = published(broken)
    newest = checkpoint.ids()[-1]
    assert newest not in Checkpoint.open(broken.left()).stored_ids()
    USES[what](checkpoint)
    check(broken.left(), newest)


def test_a_boundary_that_was_not_synced_is_before_anything_is_deleted(power: Callable[[str], Power]) -> None:
    broken = power("disk")
    broken.dies_at(None)
    run(broken)
    checkpoint, keep = Checkpoint.open(broken.root), CheckpointRetention(newest=1, grace="0 seconds")
    calls = broken.disk.calls
    for at in range(calls + 1, calls + 20):
        broken.next_process()
        broken.disk.dies_next(at - calls)
        try:
            collect(checkpoint, keep, now_us())
        except Crash:
            if checkpoint.boundary().number:
                break
    assert checkpoint.boundary().number == 1
    assert not Checkpoint.open(broken.left()).boundary().number
    broken.next_process()
    assert collect(checkpoint, keep, now_us()).checkpoints
    assert Checkpoint.open(broken.left()).boundary().number == 1


def of_first_batch(power: Power) -> tuple[Checkpoint, int]:
    """A root, and a checkpoint there that has files."""
    power.dies_at(None)
    run(power)
    checkpoint = Checkpoint.open(power.root)
    return checkpoint, next(one.id for one in checkpoint.history() if one.kind == "batch")


def collected(checkpoint: Checkpoint, number: int) -> None:
    """It and its files are deleted, and new ones are written into their folders."""
    folders = {ref.path.rpartition("/")[0] for ref in files_of(checkpoint.read(number).manifest)}
    assert number in collect(checkpoint, CheckpointRetention(newest=1, grace="0 seconds"), now_us()).checkpoints
    for folder in folders:
        checkpoint.objects.put(f"{folder}/later", b"")


def test_a_pin_that_was_removed_is_not_back_without_its_checkpoint(power: Callable[[str], Power]) -> None:
    """Who removed it died before its sync."""
    disk = power("disk")
    checkpoint, number = of_first_batch(disk)
    pin(checkpoint, number, "mine")
    for path in (f"{PINS}/mine{HELD_SUFFIX}", pin_path("mine")):
        checkpoint.objects.delete(path)
    collected(checkpoint, number)
    checkpoint.settle()
    left = Checkpoint.open(disk.left())
    assert verify(left, read_percent=100).findings == ()
    assert collect(left, CheckpointRetention(newest=1), now_us()).pinned == ()


def test_a_pin_that_was_removed_stays_so(power: Callable[[str], Power]) -> None:
    disk = power("disk")
    checkpoint, number = of_first_batch(disk)
    pin(checkpoint, number, "mine")
    unpin(checkpoint, "mine")
    assert read_pins(Objects(disk.left())) == []


def test_a_manifest_is_not_back_without_its_files(power: Callable[[str], Power]) -> None:
    """A process that pins it died before it saw that it has been collected."""
    disk = power("disk")
    checkpoint, number = of_first_batch(disk)
    collected(checkpoint, number)
    checkpoint.objects.create(pin_path("late"), seal(Pin("late", number, now_us(), "writer")))
    left = Checkpoint.open(disk.left())
    assert verify(left, read_percent=100).findings == ()
    with pytest.raises(NotFoundError):
        left.read(number)


def test_a_name_that_is_taken_is_taken_after_a_power_cut(power: Callable[[str], Power]) -> None:
    broken = power("disk")
    broken.dies_at(None)
    objects = Objects(broken.root)
    objects.put("pins/other", b"")
    broken.disk.dies_next(2)
    with pytest.raises(Crash):
        objects.create("pins/a", b"mine")
    broken.next_process()
    with pytest.raises(ConflictError):
        objects.create("pins/a", b"theirs")
    assert Objects(broken.left()).read("pins/a") == b"mine"


def test_folders_that_another_made_are_synced_once(power: Callable[[str], Power]) -> None:
    broken = power("disk")
    disk = broken.dies_at(None)
    (broken.root / "data" / "job").mkdir(parents=True)  # by who died right then
    objects = Objects(broken.root)
    objects.put("data/job/a", b"1")
    before = disk.calls
    objects.put("data/job/b", b"2")
    assert disk.calls - before == 2  # the file and its folder
    assert Objects(broken.left()).read("data/job/b") == b"2"
    broken.next_process()
    (broken.root / "data" / "job" / "a").unlink()
    (broken.root / "data" / "job" / "b").unlink()
    (broken.root / "data" / "job").rmdir()
    objects.put("data/job/c", b"3")
    assert Objects(broken.left()).read("data/job/c") == b"3"
