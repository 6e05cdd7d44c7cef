"""Another process in the middle of a read, a start, a commit or a collection: what is gone then was collected."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers.collected import STORE, TABLES, files, run, whole
from tests.helpers.collected import root as root
from tests.helpers.forks import JOB
from tests.helpers.interrupted import Interrupted
from tests.helpers.manifests import chain, following
from tests.helpers.process import LONG
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.reset import plan_reset
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import ConflictError, FencedError
from tidestate.statestore.storage.objects import Objects

__all__ = ["root"]
ONE = CheckpointRetention(newest=1, grace="0 seconds")


BY_AGE = CheckpointRetention(newest=9, grace="0 seconds", panes="0 seconds")


def interrupted(root: Path, moment: int, act: Callable[[], None]) -> Checkpoint:
    return dataclasses.replace(Checkpoint.open(root), objects=Interrupted(root, moment, act))


def acted(checkpoint: Checkpoint) -> bool:
    """Whether it has made as many calls as were to be made before the interruption."""
    assert isinstance(checkpoint.objects, Interrupted)
    return checkpoint.objects.acted


def copy_of(root: Path, moment: int) -> Path:
    return Path(shutil.copytree(root, root.parent / f"copy-{moment}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "further", [pytest.param(10, id="the job stands"), pytest.param(12, id="the job goes on", marks=pytest.mark.long)]
)
def test_the_newest_is_found_whatever_is_collected_meanwhile(root: Path, further: int) -> None:
    for moment in range(1, 14, 1 if LONG else 2):
        copy = copy_of(root, moment)

        def act(copy: Path = copy) -> None:
            if further > 10:
                run(copy, further)
            collect(Checkpoint.open(copy), ONE)

        overtaken = interrupted(copy, moment, act)
        head = overtaken.head(search=True)
        if not acted(overtaken):
            break
        assert head is not None
        assert head.manifest.id in (11, 14)


def test_a_commit_that_comes_after_one_that_is_collected_meanwhile_is_lost(tmp_path: Path) -> None:
    for moment in range(1, 9):
        root = tmp_path / f"root-{moment}"
        checkpoint = Checkpoint.open_or_create(root)
        heads = chain(checkpoint, 3)

        def act(checkpoint: Checkpoint = checkpoint, last: object = heads[-1]) -> None:
            for _ in range(3):
                last = checkpoint.publish(following(checkpoint, last))  # type: ignore[arg-type]
            collect(checkpoint, ONE)

        loser = interrupted(root, moment, act)
        with pytest.raises((FencedError, ConflictError)):
            loser.publish(following(loser, heads[1]))


def test_a_root_that_another_process_makes_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start finds no marker, and then manifests: of a run that has just begun."""
    exists, other = Objects.exists, list[Checkpoint]()

    def then_another_begins(objects: Objects, path: str) -> bool:
        found = exists(objects, path)
        monkeypatch.undo()
        other.append(Checkpoint.open_or_create(tmp_path / "root"))
        chain(other[0], 2)
        return found

    monkeypatch.setattr(Objects, "exists", then_another_begins)
    assert Checkpoint.open_or_create(tmp_path / "root").marker == other[0].marker


@pytest.mark.long
@pytest.mark.slow
def test_a_collection_that_another_one_overtakes_says_so(root: Path) -> None:
    """Also where the job has gone on, or a pin was removed."""
    outcomes = set()
    for moment in range(1, 60, 3 if LONG else 12):
        copy = copy_of(root, moment)
        pin(Checkpoint.open(copy), 3, "one")
        collect(Checkpoint.open(copy), CheckpointRetention(newest=5, grace="0 seconds"))

        def act(copy: Path = copy) -> None:
            unpin(Checkpoint.open(copy), "one")
            run(copy, 12)
            collect(Checkpoint.open(copy), ONE)

        outcomes.add("done")
        overtaken = interrupted(copy, moment, act)
        with suppress(ConflictError):
            collect(overtaken, CheckpointRetention(newest=2, grace="0 seconds"))
            outcomes.add("not overtaken")
        whole(copy)
        if not acted(overtaken):
            break
    assert outcomes == {"done", "not overtaken"}


def test_an_older_self_whose_files_were_collected_is_fenced(tmp_path: Path) -> None:
    """It finds files missing, which is no damage."""
    root = tmp_path / "root"

    def batches() -> Iterator[pa.Table]:
        yield from TABLES[:4]
        run(root, 9)
        collect(Checkpoint.open(root), ONE)
        yield TABLES[4]

    with pytest.raises(FencedError):
        JOB.standalone(checkpoint=root, store=STORE).run(batches())
    whole(root)


@pytest.mark.slow
def test_a_repair_next_to_a_job_that_begins_finds_nothing_wrong(tmp_path: Path) -> None:
    """It has listed no manifests, and then files of some."""
    for moment in range(1, 14, 1 if LONG else 2):
        root = tmp_path / f"root-{moment}"
        Checkpoint.open_or_create(root)
        checkpoint = interrupted(root, moment, partial(run, root, 2))
        planned = plan_repair(checkpoint)
        assert (planned.findings, planned.reset) == ((), None)
        if not acted(checkpoint):
            break


def _verified(checkpoint: Checkpoint) -> bool:
    return verify(checkpoint, read_percent=100).findings == ()


def _repaired(checkpoint: Checkpoint) -> bool:
    planned = plan_repair(checkpoint)
    return (planned.findings, planned.reset) == ((), None)


def _reset(checkpoint: Checkpoint) -> bool:
    return plan_reset(checkpoint, 10).to == 10


@pytest.mark.slow
@pytest.mark.parametrize("look", [_verified, _repaired, _reset])
def test_output_that_is_deleted_by_its_age_meanwhile_is_not_missed(
    root: Path, look: Callable[[Checkpoint], bool]
) -> None:
    """Nor is a file of the index, which a collection replaces."""
    collect(Checkpoint.open(root), CheckpointRetention(newest=6, grace="0 seconds"))
    deleted = set()
    for moment in range(1, 60, 2):
        copy = copy_of(root, moment)
        before = files(copy)
        checkpoint = interrupted(copy, moment, partial(collect, Checkpoint.open(copy), BY_AGE))
        assert look(checkpoint)
        if not acted(checkpoint):
            break
        deleted |= {path.partition("/")[0] for path in before - files(copy)}
        shutil.rmtree(copy)
    assert deleted >= {"late", "gc"}


def test_the_mark_of_a_removed_pin_that_comes_back_is_no_pin(root: Path) -> None:
    """Its request was carried out twice, the second time late."""
    checkpoint = Checkpoint.open(root)
    made = pin(checkpoint, 3, "one")
    mark = root / "pins" / f"{made.name}.held"
    data = mark.read_bytes()
    unpin(checkpoint, "one")
    collect(checkpoint, CheckpointRetention(newest=5, grace="0 seconds"))
    mark.write_bytes(data)
    assert _verified(checkpoint)
    collect(checkpoint, ONE)
    assert _verified(checkpoint)


@pytest.mark.slow
def test_a_repair_that_is_overtaken_by_the_job_and_a_collection_looks_again(root: Path) -> None:
    for moment in range(1, 60, 3 if LONG else 7):
        copy = copy_of(root, moment)

        def act(copy: Path = copy) -> None:
            run(copy, 12)
            collect(Checkpoint.open(copy), ONE)

        checkpoint = interrupted(copy, moment, act)
        assert _repaired(checkpoint)
        if not acted(checkpoint):
            break
        shutil.rmtree(copy)


def test_an_older_writer_that_takes_the_id_of_a_collected_parent_changes_nothing(tmp_path: Path) -> None:
    """Its manifest came too late, and does not count."""
    root, name = tmp_path / "root", Path("manifests", f"{4:020d}.json")
    heads = chain(Checkpoint.open_or_create(root), 3)
    older = Checkpoint.open(shutil.copytree(root, tmp_path / "older"))
    older.publish(following(older, heads[-1], created_us=1))
    checkpoint = Checkpoint.open(root)
    for number in (4, 5):
        heads.append(checkpoint.publish(following(checkpoint, heads[-1], id=number)))

    def act(copy: Path) -> None:
        collect(Checkpoint.open(copy), ONE)
        shutil.copy(tmp_path / "older" / name, copy / name)

    for look in (_verified, _repaired, Checkpoint.head):
        for moment in range(1, 12):
            copy = copy_of(root, moment)
            assert look(interrupted(copy, moment, partial(act, copy)))
            if not (copy / name).exists() or (copy / name).read_bytes() != (tmp_path / "older" / name).read_bytes():
                act(copy)
            assert look(Checkpoint.open(copy))
            shutil.rmtree(copy)
