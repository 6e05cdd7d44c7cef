"""Collecting old checkpoints: what is kept stays whole, what was put out stays, nothing else does, whatever dies."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.collected import NOW, TABLES, files, observed, run, state, whole
from tests.helpers.collected import root as root
from tests.helpers.command import tidestate_here
from tests.helpers.manifests import chain, following
from tests.helpers.moves import fork, reset_to
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_root as s3_root
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.log.records import read_pins
from tidestate.recovery.retention.collection import collect, plan_collection, survey
from tidestate.recovery.retention.rules import CheckpointRetention, collection_limit
from tidestate.statestore.errors import CorruptionError, FencedError, NotFoundError, UsageError
from tidestate.statestore.storage.objects import Objects


def test_what_the_grace_keeps_is_counted(root: Path) -> None:
    """Of ten batches and a fence three would stay; all were the newest within the grace."""
    checkpoint = Checkpoint.open(root)
    assert plan_collection(checkpoint, CheckpointRetention(newest=3)).result.within_grace == 8
    assert plan_collection(checkpoint, NOW).result.within_grace == 0
    done = tidestate_here("gc", root, "--newest", "3")
    assert "8 checkpoints only because of --grace: those that were the newest within 1 hour stay" in done.stdout


def test_old_checkpoints_go_and_their_output_stays(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    before, ids, panes = observed(checkpoint), checkpoint.ids(), checkpoint.pane_paths()
    kept = {number: state(checkpoint, checkpoint.read(number).manifest) for number in ids[-3:]}
    there = files(root)
    planned = plan_collection(checkpoint, NOW).result
    assert files(root) == there
    done = collect(checkpoint, NOW)
    assert dataclasses.replace(done, files=()) == dataclasses.replace(planned, files=())
    assert set(done.files) == set(planned.files)
    assert done.checkpoints == tuple(ids[:-3])
    assert there - files(root) == {*done.files, *(manifest_path(number) for number in ids[:-3])}
    assert any(path.startswith("data/") for path in done.files)
    assert checkpoint.ids() == ids[-3:]
    assert observed(checkpoint) == before
    assert checkpoint.pane_paths() == panes
    assert {number: state(checkpoint, checkpoint.read(number).manifest) for number in kept} == kept
    whole(root)
    assert collect(checkpoint, NOW).files == ()


@pytest.mark.long
def test_the_job_goes_on_and_is_collected_again_and_again(root: Path, tmp_path: Path) -> None:
    for batches in (10, 11, 12, 13, 14):
        collect(Checkpoint.open(root), NOW)
        run(root, batches)
    run(tmp_path / "other", 14)
    found, expected = (
        [rows for _, rows in observed(Checkpoint.open(path)) if rows] for path in (root, tmp_path / "other")
    )
    assert found == expected
    assert len(Checkpoint.open(root).boundary().outputs) <= 4
    whole(root)


def test_a_sink_that_comes_later_gets_what_was_collected_too(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    expected = [output.id for output in checkpoint.outputs() if output.panes]
    collect(checkpoint, NOW)
    seen: list[int] = []
    run(root, 10, sink=lambda _rows, one: seen.append(one.checkpoint))
    assert seen == expected


def test_what_is_collected_is_named(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    collect(checkpoint, NOW)
    left = checkpoint.ids()
    for number in (1, left[0] - 1):
        with pytest.raises(NotFoundError) as caught:
            checkpoint.read(number)
        assert caught.value.code == "collected"
        assert (caught.value.context["boundary"], caught.value.context["oldest"]) == (left[0] - 1, left[0])
        for act in (pin, reset_to):
            with pytest.raises(NotFoundError, match="collected"):
                act(checkpoint, number)
    assert read_pins(checkpoint.objects) == []
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        checkpoint.read(99)


def test_an_older_self_that_takes_a_collected_id_is_fenced(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    heads = chain(checkpoint, 6)
    collect(checkpoint, CheckpointRetention(newest=2, grace="0 seconds"))
    for _ in range(2):
        with pytest.raises(FencedError):
            Checkpoint.open(tmp_path).publish(following(checkpoint, heads[1]))
        assert checkpoint.ids() == [5, 6]
        assert checkpoint.stored_ids() == [3, 5, 6]
        with pytest.raises(NotFoundError, match="collected"):
            checkpoint.read(3)
    collect(checkpoint, CheckpointRetention(newest=2, grace="0 seconds"))
    assert checkpoint.stored_ids() == [5, 6]


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (CheckpointRetention(newest=1, grace="0 seconds"), 1),
        (CheckpointRetention(newest=4, grace="0 seconds"), 4),
        (CheckpointRetention(newest=99, grace="0 seconds"), 10),
        (CheckpointRetention(age="35 us", grace="0 seconds"), 4),
        (CheckpointRetention(age="0 seconds", grace="0 seconds"), 1),
        (CheckpointRetention(newest=2, age="35 us", grace="0 seconds"), 4),
        (CheckpointRetention(newest=1, grace="20 us"), 3),
        (CheckpointRetention(newest=1, grace="21 us"), 3),
        (CheckpointRetention(newest=1, grace="22 us"), 4),
        (CheckpointRetention(age="31 us", grace="0 seconds"), 3),
        (CheckpointRetention(age="32 us", grace="0 seconds"), 4),
        (CheckpointRetention(panes="0 seconds"), 10),
    ],
    ids=repr,
)
def test_what_is_kept(tmp_path: Path, retention: CheckpointRetention, left: int) -> None:
    checkpoint, head = Checkpoint.open_or_create(tmp_path), None
    for number in range(1, 11):
        head = checkpoint.publish(following(checkpoint, head, created_us=10 * number))
    assert 10 - collection_limit(survey(checkpoint), retention, 101) == left


def test_a_pinned_one_stays_readable_until_it_is_unpinned(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    before = state(checkpoint, checkpoint.read(4).manifest)
    assert pin(checkpoint, 4, "mine", note="why").name == "mine"
    pin(checkpoint, 4, "mine")  # again is fine
    with pytest.raises(UsageError, match="pin-taken"):
        pin(checkpoint, 5, "mine")
    planned, done = plan_collection(checkpoint, NOW).result, collect(checkpoint, NOW)
    assert (done.pinned, set(done.files)) == ((4,), set(planned.files))
    assert 4 not in checkpoint.ids()
    assert state(checkpoint, checkpoint.read(4).manifest) == before
    whole(root)
    pin(checkpoint, 4, "second")  # what is held can be pinned once more
    unpin(checkpoint, "mine")
    assert collect(checkpoint, NOW).files == ()
    assert state(checkpoint, checkpoint.read(4).manifest) == before
    with pytest.raises(NotFoundError, match="no-such-pin"):
        unpin(checkpoint, "mine")
    unpin(checkpoint, "second")
    with pytest.raises(NotFoundError, match="collected"):
        checkpoint.read(4)
    assert collect(checkpoint, NOW).checkpoints == (4,)
    whole(root)


def test_output_goes_by_age_once_it_is_acknowledged(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    old = CheckpointRetention(panes="0 seconds")
    outputs = list(checkpoint.outputs())
    assert sum(len(one.late) for one in outputs) > 0
    done = collect(checkpoint, dataclasses.replace(old, newest=3, grace="0 seconds"))
    assert done.unacknowledged == sum(len(one.panes) for one in outputs) > 0
    assert [one.panes for one in checkpoint.outputs() if one.panes] == [one.panes for one in outputs if one.panes]
    assert [path for path in files(root) if path.startswith("late/")] == []
    whole(root)
    seen: list[int] = []
    run(root, 11, sink=lambda _rows, one: seen.append(one.checkpoint))
    run(root, 12, sink=lambda _rows, one: seen.append(one.checkpoint))
    head = checkpoint.head()
    assert head is not None
    acknowledged = head.manifest.delivered.panes
    assert acknowledged > 10
    collect(checkpoint, old)
    assert [one.id for one in checkpoint.outputs() if one.panes and one.id <= acknowledged] == []
    whole(root)
    run(root, 14, sink=lambda _rows, one: seen.append(one.checkpoint))
    assert {one.id for one in outputs if one.panes} < set(seen)
    assert seen[-1] == max(one.id for one in checkpoint.outputs() if one.panes)


def test_damage_stops_it_before_anything_happens(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    path = root / manifest_path(5)
    good = path.read_bytes()
    for damage in (good[:-30], None):
        path.unlink() if damage is None else path.write_bytes(damage)
        there = files(root)
        with pytest.raises(CorruptionError, match=r"manifest-(damaged|gone)"):
            collect(checkpoint, NOW)
        assert files(root) == there
    path.write_bytes(good)
    pin(checkpoint, 5, "mine")
    collect(checkpoint, NOW)
    held = root / "pins/mine.json"
    sound = held.read_bytes()
    held.write_bytes(sound.replace(b"5", b"6"))
    with pytest.raises(CorruptionError, match="record-damaged"):
        collect(checkpoint, NOW)
    held.write_bytes(sound)
    path.unlink()
    with pytest.raises(CorruptionError, match="pin-broken"):
        collect(checkpoint, NOW)
    assert [one.kind for one in verify(checkpoint).findings] == ["manifest"]


def test_what_was_abandoned_goes_with_its_output(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    reset_to(checkpoint, 6)
    kept = observed(checkpoint)
    abandoned = [one for one in files(root) if one.startswith("panes/")]
    for _ in range(2):
        run(root, 8)
    collect(checkpoint, CheckpointRetention(newest=1, grace="0 seconds"))
    collect(checkpoint, CheckpointRetention(newest=1, grace="0 seconds"))
    assert observed(checkpoint)[: len(kept)] == kept
    left = {path for output in checkpoint.outputs() for path in (ref.path for ref in output.panes)}
    assert {one for one in files(root) if one.startswith("panes/")} == left
    assert set(abandoned) - left
    whole(root)


# In every run `tests.faults.test_network` collects on S3, over a bad line.
@pytest.mark.long
@pytest.mark.slow
def test_on_s3(s3_root: str) -> None:
    run(s3_root, 6)
    checkpoint = Checkpoint.open(s3_root)
    before = [(one.id, one.panes, one.late) for one in checkpoint.outputs() if one.panes or one.late]
    fork(s3_root, f"{s3_root}-fork", 3)
    done = collect(checkpoint, NOW)
    assert len(done.checkpoints) == 3
    assert [(one.id, one.panes, one.late) for one in checkpoint.outputs() if one.panes or one.late] == before
    run(s3_root, 7)
    run(f"{s3_root}-fork", 4)
    whole(s3_root)
    whole(f"{s3_root}-fork")
    assert plan_collection(checkpoint, CheckpointRetention(newest=99, grace="0 seconds")).result.files == ()


def test_a_file_of_an_attempt_that_lost_stays_for_the_grace(root: Path) -> None:
    """Who wrote it may still be there, though its checkpoint was published by another one."""
    checkpoint = Checkpoint.open(root)
    newest = checkpoint.ids()[-1]
    path, made = f"data/windows/0/{newest}-{'a' * 32}.changelog.arrow", checkpoint.read(newest).manifest.created_us
    checkpoint.objects.put(path, b"half")
    for grace_us, at_us, expected in ((1000, made + 999, ()), (1000, made + 1000, (path,)), (0, made, (path,))):
        everything = CheckpointRetention(newest=99, grace=f"{grace_us} us")
        paths = plan_collection(checkpoint, everything, at_us).result.files
        # What the run has left in its control folder ages by the file system's clock, which no test can stop.
        assert tuple(file for file in paths if not file.startswith("control/")) == expected


@pytest.mark.long
def test_a_fork_of_a_fork_reads_where_the_files_are(root: Path, tmp_path: Path) -> None:
    fork(root, tmp_path / "second", 5)
    run(tmp_path / "second", 6)
    fork(tmp_path / "second", tmp_path / "third", 5)
    for path in (root, tmp_path / "second"):
        collect(Checkpoint.open(path), CheckpointRetention(newest=1, grace="0 seconds"))
    assert Checkpoint.open(tmp_path / "third").marker.bases == (str(tmp_path / "second"), str(root))
    with pytest.raises(UsageError, match="pin-fork"):
        unpin(Checkpoint.open(root), read_pins(Objects(root))[0].name)
    # The one in the middle may go its way: what the third reads is pinned for it in both.
    unpin(
        Checkpoint.open(root), next(one.name for one in read_pins(Objects(root)) if "second" in one.fork), force=True
    )
    collect(Checkpoint.open(root), CheckpointRetention(newest=1, grace="0 seconds"))
    whole(tmp_path / "third")
    run(tmp_path / "third", 14)
    run(tmp_path / "other", 14)
    ends = [Checkpoint.open(path).head() for path in (tmp_path / "third", tmp_path / "other")]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].manifest.totals == ends[1].manifest.totals
    assert [rows for _, rows in observed(Checkpoint.open(tmp_path / "third"))] == [
        rows for _, rows in observed(Checkpoint.open(tmp_path / "other"))
    ][-len(observed(Checkpoint.open(tmp_path / "third"))) :]


def test_the_root_it_was_forked_from_is_gone(root: Path, tmp_path: Path) -> None:
    fork(root, tmp_path / "second", 5)
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptionError) as caught:
        run(tmp_path / "second", 8)
    assert (caught.value.code, caught.value.context["root"]) == ("base-missing", str(root))
    assert {one.kind for one in verify(Checkpoint.open(tmp_path / "second")).findings} == {"file"}
    (tmp_path / "elsewhere").rename(root)
    run(tmp_path / "second", 8)
    whole(tmp_path / "second")


# In every run `tests/faults/test_simulation.py` has more, in any order.
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    """Batches, restarts, pins, forks, resets and collections in any order: all that is kept is as it was."""
    chance = random.Random(seed)
    roots, known = [tmp_path / "0"], {}
    taken = {tmp_path / "0": 1}
    run(tmp_path / "0", 1)
    kept: dict[tuple[Path, int], list[Any]] = {}
    for _ in range(14):
        root = chance.choice(roots)
        checkpoint = Checkpoint.open(root)
        act = chance.choice(["run", "run", "run", "pin", "unpin", "fork", "gc", "gc"])
        ids = checkpoint.ids()
        if act == "run":
            taken[root] = min(len(TABLES), taken[root] + chance.randint(1, 2))
            run(root, taken[root])
        elif act == "pin":
            number = chance.choice(ids)
            pin(checkpoint, number)
            kept[root, number] = state(checkpoint, checkpoint.read(number).manifest)
        elif act == "unpin":
            mine = [one for one in read_pins(checkpoint.objects) if not one.fork]
            if mine:
                gone = chance.choice(mine)
                unpin(checkpoint, gone.name)
                if gone.checkpoint not in [one.checkpoint for one in read_pins(checkpoint.objects)]:
                    kept.pop((root, gone.checkpoint), None)
        elif act == "fork" and len(roots) < 4:
            new = tmp_path / str(len(roots))
            number = chance.choice(ids)
            manifest = checkpoint.read(number).manifest
            fork(root, new, number)
            roots.append(new)
            taken[new] = manifest.input.batches if manifest.input else 0
            kept[root, number] = state(checkpoint, manifest)
        elif act == "gc":
            before = observed(checkpoint)
            for number in ids:
                known[root, number] = state(checkpoint, checkpoint.read(number).manifest)
            settings = CheckpointRetention(newest=chance.randint(1, 4), grace="0 seconds")
            collect(checkpoint, settings)
            assert observed(checkpoint) == before
            for number in checkpoint.ids():
                assert state(checkpoint, checkpoint.read(number).manifest) == known[root, number]
            collect(checkpoint, settings)
            assert plan_collection(checkpoint, settings).result.files == ()
        for path in roots:
            whole(path)
        for (path, number), rows in kept.items():
            there = Checkpoint.open(path)
            assert state(there, there.read(number).manifest) == rows


def test_links_to_folders_are_not_followed(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    run(other, 14)
    there = files(other)
    (root / "data" / "more").symlink_to(other / "data" / "windows")
    (root / "panes" / "again").symlink_to(root / "panes")
    (root / "data" / "lone.parquet").symlink_to(next((other / "data").rglob("*.parquet"), other / "tidestate.json"))
    done = collect(Checkpoint.open(root), NOW)
    assert done.files
    assert files(other) == there
    assert not [path for path in done.files if path.startswith(("data/more/", "panes/again/"))]
    whole(root)
    whole(other)


def test_a_folder_of_a_root_that_is_a_link_keeps_its_files(root: Path, tmp_path: Path) -> None:
    (root / "data").rename(tmp_path / "disk")
    (root / "data").symlink_to(tmp_path / "disk")
    there = files(tmp_path / "disk")
    (tmp_path / "link").symlink_to(root)  # the whole root may lie behind one
    done = collect(Checkpoint.open(tmp_path / "link"), NOW)
    assert done.checkpoints
    assert not [path for path in done.files if path.startswith("data/")]
    assert files(tmp_path / "disk") == there
    whole(root)
