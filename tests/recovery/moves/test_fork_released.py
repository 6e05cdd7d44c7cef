"""A fork that has files of its own for all of its state lets go of the root it was forked from."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.helpers.collected import root as root
from tests.helpers.collected import run, whole
from tests.helpers.moves import fork
from tests.helpers.process import longer
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import state_files
from tidestate.recovery.log.pins import pin
from tidestate.recovery.log.records import held_pins, read_pins
from tidestate.recovery.retention.collection import collect, plan_collection
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.testing.faults import Crash, FaultyObjects, When

__all__ = ["root"]

NEWEST = CheckpointRetention(newest=1, grace="0 seconds")


@pytest.fixture
def forked(root: Path) -> Path:
    """A fork of ``root`` at checkpoint 5 whose head needs no file of it, but whose older checkpoints do."""
    path = root.parent / "forked"
    fork(root, path, 5)
    run(path, 14)
    assert needing(path)[-1] < Checkpoint.open(path).ids()[-1]
    return path


def needing(path: Path) -> list[int]:
    """Checkpoints that name files of another root."""
    return [one.id for one in Checkpoint.open(path).history() if any(ref.root for ref in state_files(one))]


def test_its_pin_goes_with_the_last_checkpoint_that_needs_it(root: Path, forked: Path) -> None:
    checkpoint = Checkpoint.open(forked)
    pin(checkpoint, needing(forked)[-1], "still")
    assert [one.fork for one in read_pins(Objects(root))] == [str(forked)]
    assert plan_collection(checkpoint, NEWEST).result.freed == ()
    assert collect(checkpoint, NEWEST).freed == ()
    assert read_pins(Objects(root)), "a pinned checkpoint of the fork reads its files"
    whole(forked)
    assert CliRunner().invoke(app, ["unpin", str(forked), "still"]).exit_code == 0
    planned = plan_collection(checkpoint, NEWEST).result
    assert planned.freed == (str(root),)
    assert read_pins(Objects(root)), "it was only a plan"
    answered = CliRunner().invoke(app, ["gc", str(forked), "--newest", "1", "--grace", "0s", "--confirm"])
    assert "none of its files is needed any more" in " ".join(answered.output.split())
    assert read_pins(Objects(root)) == []
    assert held_pins(Objects(root)) == set()
    assert collect(checkpoint, NEWEST).freed == ()
    collect(Checkpoint.open(root), NEWEST)
    whole(root)
    shutil.rmtree(root)
    whole(forked)
    run(forked, 14)


def test_other_pins_stay(root: Path, forked: Path) -> None:
    fork(forked, root.parent / "third", needing(forked)[-1])
    pin(Checkpoint.open(root), 5, "mine")
    collect(Checkpoint.open(forked), NEWEST)
    assert {one.fork for one in read_pins(Objects(root))} == {"", str(root.parent / "third"), str(forked)}
    shutil.rmtree(root.parent / "third")
    for one in read_pins(Objects(forked)):
        (forked / "pins" / f"{one.name}.json").unlink()
        (forked / "pins" / f"{one.name}.held").unlink()
    collect(Checkpoint.open(forked), NEWEST)
    assert {one.fork for one in read_pins(Objects(root))} == {"", str(root.parent / "third")}


@pytest.mark.long
def test_a_root_that_is_gone_keeps_nothing(root: Path, forked: Path) -> None:
    shutil.rmtree(root)
    assert collect(Checkpoint.open(forked), NEWEST).freed == ()
    whole(forked)


class Forked(Objects):
    """A fork's objects, and others in the place of the root that it was forked from."""

    def __init__(self, objects: Objects, base: Objects) -> None:
        super().__init__(objects.root, bases=objects.bases)
        self._base = base

    def at(self, number: int) -> Objects:
        return self._base if number else self


@pytest.mark.parametrize("when", ["before", *longer("after")])
def test_dead_while_it_lets_go_and_finished_by_the_next(root: Path, forked: Path, when: When) -> None:
    checkpoint = Checkpoint.open(forked)

    def output_watermark(name: str, number: int | None = None) -> FaultyObjects:
        shutil.copytree(root, root.parent / name)
        base = FaultyObjects(Objects(root.parent / name), number, crash=number is not None, when=when)
        collect(dataclasses.replace(checkpoint, objects=Forked(checkpoint.objects, base)), NEWEST)
        return base

    deletes = [number for number, call in enumerate(output_watermark("counted").log, 1) if call.startswith("delete ")]
    assert len(deletes) == 2
    for number in deletes:
        with pytest.raises(Crash):
            output_watermark(f"dead-{number}", number)
        left = Objects(root.parent / f"dead-{number}")
        assert held_pins(left) <= {one.name for one in read_pins(left)}
        collect(dataclasses.replace(checkpoint, objects=Forked(checkpoint.objects, left)), NEWEST)
        assert (read_pins(left), held_pins(left)) == ([], set())
        whole(forked)
