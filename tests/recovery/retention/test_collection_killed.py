"""Collections at the same time, and one that dies: the second one sees the first, and the next one finishes it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers.collected import NOW, files, observed, run, state, whole
from tests.helpers.collected import root as root
from tests.helpers.forked import forked
from tests.helpers.interrupted import Interrupted
from tests.helpers.moves import reset_to
from tests.helpers.process import LONG, longer
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin
from tidestate.recovery.retention.collection import collect, plan_collection
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import ConflictError, NotFoundError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.testing.faults import Crash, FaultyObjects, When

__all__ = ["root"]


def test_who_comes_second_sees_the_other(root: Path) -> None:
    """A pin made at any moment of a collection either keeps its checkpoint, or says that it came too late."""
    outcomes = set()
    for moment in range(1, 60, 1 if LONG else 4):
        copy = _copy(root, root.parent / f"copy-{moment}")
        before = state(Checkpoint.open(copy), Checkpoint.open(copy).read(4).manifest)
        kept: list[bool] = []

        def act(copy: Path = copy, kept: list[bool] = kept) -> None:
            try:
                pin(Checkpoint.open(copy), 4, "mine")
                kept.append(True)
            except NotFoundError:
                kept.append(False)

        overtaken = Interrupted(copy, moment, act)
        collect(dataclasses.replace(Checkpoint.open(copy), objects=overtaken), NOW)
        if not overtaken.acted:
            break  # a collection has no more calls
        outcomes.add(tuple(kept))
        if kept == [True]:
            assert state(Checkpoint.open(copy), Checkpoint.open(copy).read(4).manifest) == before
        whole(copy)
    assert {(True,), (False,)} <= outcomes


def test_a_pin_that_a_collection_overtakes_keeps_its_checkpoint_or_says_so(root: Path) -> None:
    """The same the other way round: a whole collection at any moment of a pin."""
    outcomes = set()
    for moment in range(1, 16, 1 if LONG else 2):
        copy = _copy(root, root.parent / f"pinned-{moment}")
        before = state(Checkpoint.open(copy), Checkpoint.open(copy).read(4).manifest)
        overtaken = Interrupted(copy, moment, lambda copy=copy: collect(Checkpoint.open(copy), NOW))
        try:
            pin(dataclasses.replace(Checkpoint.open(copy), objects=overtaken), 4, "mine")
        except NotFoundError:
            outcomes.add(False)
        else:
            outcomes.add(True)
            assert state(Checkpoint.open(copy), Checkpoint.open(copy).read(4).manifest) == before
        whole(copy)
    assert outcomes == {True, False}


def test_a_reset_meanwhile_keeps_what_it_goes_back_to(root: Path) -> None:
    """At any moment of a collection: it is refused, or all that it names stays."""
    outcomes = set()
    for moment in range(1, 60, 1 if LONG else 4):
        copy = _copy(root, root.parent / f"copy-{moment}")
        before = state(Checkpoint.open(copy), Checkpoint.open(copy).read(4).manifest)
        done: list[bool] = []

        def act(copy: Path = copy, done: list[bool] = done) -> None:
            try:
                reset_to(Checkpoint.open(copy), 4)
                done.append(True)
            except NotFoundError:
                done.append(False)

        overtaken = Interrupted(copy, moment, act)
        collect(dataclasses.replace(Checkpoint.open(copy), objects=overtaken), NOW)
        if not overtaken.acted:
            break  # a collection has no more calls
        outcomes.add(tuple(done))
        whole(copy)
        head = Checkpoint.open(copy).head()
        assert head is not None
        if done == [True]:
            assert state(Checkpoint.open(copy), head.manifest) == before
    assert {(True,), (False,)} <= outcomes


def _copy(root: Path, to: Path) -> Path:
    shutil.copytree(root, to)
    return to


@pytest.mark.parametrize("when", ["after", *longer("before")])
def test_dead_at_any_call_and_finished_by_the_next(root: Path, tmp_path: Path, when: When) -> None:
    checkpoint = Checkpoint.open(root)
    before = observed(checkpoint)
    pin(checkpoint, 4, "mine")
    held = state(checkpoint, checkpoint.read(4).manifest)
    clean = _copy(root, tmp_path / "clean")
    collect(Checkpoint.open(clean), NOW)
    counted = FaultyObjects(Objects(_copy(root, tmp_path / "counted")))
    collect(dataclasses.replace(Checkpoint.open(tmp_path / "counted"), objects=counted), NOW)
    chosen = [n for n, call in enumerate(counted.log, 1) if call.split()[0] in ("create", "put")]
    deletes = [n for n, call in enumerate(counted.log, 1) if call.startswith("delete ")]
    assert len(deletes) > 12
    for number in (*chosen, *deletes[::9], deletes[-1]):
        copy = _copy(root, tmp_path / f"{when}-{number}")
        faulty = FaultyObjects(Objects(copy), number, crash=True, when=when)
        with pytest.raises(Crash):
            collect(dataclasses.replace(Checkpoint.open(copy), objects=faulty), NOW)
        again = Checkpoint.open(copy)
        assert observed(again) == before
        assert state(again, again.read(4).manifest) == held
        whole(copy)
        collect(again, NOW)
        assert {path for path in files(copy) if not path.startswith("gc/")} == {
            path for path in files(clean) if not path.startswith("gc/")
        }
        assert len([path for path in files(copy) if path.startswith("gc/outputs")]) == len(again.boundary().outputs)
        assert observed(again) == before
        whole(copy)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("manifests", "0"), id="boundary", marks=pytest.mark.long),
        pytest.param(("manifests", "2"), id="manifests"),
        pytest.param(("files", "3"), id="files", marks=pytest.mark.long),
    ],
)
def test_killed_while_it_deletes(root: Path, tmp_path: Path, moment: tuple[str, str]) -> None:
    before = observed(Checkpoint.open(root))
    assert forked("tests.children.collecting", root, *moment) == -signal.SIGKILL
    checkpoint = Checkpoint.open(root)
    assert len(checkpoint.ids()) == 3
    assert observed(checkpoint) == before
    whole(root)
    run(root, 12)
    run(tmp_path / "other", 12)
    assert [rows for _, rows in observed(checkpoint)] == [
        rows for _, rows in observed(Checkpoint.open(tmp_path / "other"))
    ]
    collect(checkpoint, CheckpointRetention(newest=99, grace="0 seconds"))
    whole(root)
    assert checkpoint.stored_ids() == checkpoint.ids()


def test_of_two_collections_one_says_so(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    before = observed(checkpoint)

    class Slow(Objects):
        def put(self, path: str, data: bytes | pa.Buffer) -> None:
            super().put(path, data)
            if path.startswith("gc/outputs"):
                collect(Checkpoint.open(root), CheckpointRetention(newest=5, grace="0 seconds"))

    with pytest.raises(ConflictError, match="collection-moved"):
        collect(dataclasses.replace(checkpoint, objects=Slow(root)), NOW)
    assert len(checkpoint.ids()) == 5
    collect(checkpoint, NOW)
    assert len(checkpoint.ids()) == 3
    assert observed(checkpoint) == before
    assert len([path for path in files(root) if path.startswith("gc/")]) == 1 + len(checkpoint.boundary().outputs)
    whole(root)


def test_halves_of_files_go_when_nobody_writes_them_any_more(root: Path) -> None:
    """Left by a process that was killed while it wrote; of another one, that still writes; and what is not ours."""
    dead = FaultyObjects(Objects(root), 3, crash=True)
    with pytest.raises(Crash):
        _write(dead)
    (half,) = (root / "data/windows/0").glob(".*")
    (root / "gc").mkdir(exist_ok=True)
    left = [half, root / "manifests" / f".12.json.{'a' * 32}", root / "gc" / f".x.{'b' * 32}"]
    strange = [root / "spark" / ".0.crc", root / "data" / ".keep", root / f".git.{'c' * 31}"]
    (root / "spark").mkdir()
    for path in (*left, *strange):
        path.touch()
    now_ = time.time()
    for path in (*left[:2], *strange):
        os.utime(path, (now_ - 3700, now_ - 3700))
    planned = plan_collection(Checkpoint.open(root), NOW).result
    halves = {str(path.relative_to(root)) for path in left[:2]}
    assert {path for path in planned.files if Path(path).name.startswith(".")} == halves
    collect(Checkpoint.open(root), NOW)
    assert [path.exists() for path in (*left, *strange)] == [False, False, True, True, True, True]
    whole(root)
    longer = CheckpointRetention(newest=3, grace="3 hours")
    os.utime(left[2], (now_ - 2 * 3600, now_ - 2 * 3600))
    collect(Checkpoint.open(root), longer)
    assert left[2].exists()
    collect(Checkpoint.open(root), NOW)
    assert not left[2].exists()


def _write(objects: Objects) -> None:
    with objects.writer("data/windows/0/11-half.parquet") as sink:
        sink.write(b"half")
        sink.write(b"never")
