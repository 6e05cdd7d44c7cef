"""What a collection keeps: output by its age, what a pin may bring back, and roots that are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.collected import observed, run, whole
from tests.helpers.collected import root as root
from tests.helpers.moves import fork, reset_to
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.retention.collection import collect, execute_collection, plan_collection, survey
from tidestate.recovery.retention.rules import CheckpointRetention, unacknowledged


def test_what_was_abandoned_is_none_of_those_that_are_kept(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    reset_to(checkpoint, 6)
    run(root, 8)

    def counting() -> list[int]:
        head = checkpoint.chosen(None).manifest
        return [number for number in checkpoint.ids() if not head.abandons(number)]

    before = counting()
    assert before[:6] == [1, 2, 3, 4, 5, 6]
    collect(checkpoint, CheckpointRetention(newest=len(before) - 4, grace="0 seconds"))
    assert counting() == before[4:]


@pytest.mark.parametrize("meanwhile", [False, True], ids=["before", "meanwhile"])
def test_an_abandoned_one_that_is_pinned_keeps_the_output_before_it(root: Path, meanwhile: bool) -> None:
    """A reset may make it count again, with all that was put out up to it."""
    checkpoint, few = Checkpoint.open(root), CheckpointRetention(newest=1, grace="0 seconds")
    before = [(number, rows) for number, rows in observed(checkpoint) if number <= 9]
    assert [number for number, _ in before if number > 6]
    if not meanwhile:
        pin(checkpoint, 9, "mine")
    reset_to(checkpoint, 6)
    run(root, 8)
    planned = plan_collection(checkpoint, few)
    if meanwhile:
        pin(checkpoint, 9, "mine")
    execute_collection(checkpoint, planned)
    collect(checkpoint, few)
    reset_to(checkpoint, 9)
    assert observed(checkpoint) == before
    whole(root)


def test_a_pinned_one_alone_holds_the_root_that_was_forked(root: Path, tmp_path: Path) -> None:
    few = CheckpointRetention(newest=1, grace="0 seconds")
    fork(root, tmp_path / "second", 5)
    second = Checkpoint.open(tmp_path / "second")
    pin(second, second.ids()[0], "mine")
    run(tmp_path / "second", 14)
    assert plan_collection(second, few).result.freed == collect(second, few).freed == ()
    collect(Checkpoint.open(root), few)
    whole(tmp_path / "second")
    unpin(second, "mine")
    assert collect(second, few).freed == (str(root),)


def test_output_is_old_at_its_age_and_not_a_microsecond_before(root: Path) -> None:
    known = survey(Checkpoint.open(root))
    made = [(one.created_us, len(one.panes)) for one in known.manifests.values()]
    for created_us, _ in made:
        for at_us in (created_us + 4, created_us + 5):
            old = sum(files for time_us, files in made if time_us <= at_us - 5)
            assert unacknowledged(known, CheckpointRetention(panes="5 us"), at_us) == old
    assert sum(files for _, files in made) > 3


def test_output_that_is_gone_stays_gone_where_more_is_kept_from_then_on(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    for until in (11, 12):
        run(root, until, sink=lambda *_: None)
    collect(checkpoint, CheckpointRetention(newest=3, grace="0 seconds", panes="0 seconds"))
    gone = checkpoint.boundary()
    assert (gone.panes_gone > 10, gone.late_gone > 10) == (True, True)
    run(root, 14)
    collect(checkpoint, CheckpointRetention(newest=1, grace="0 seconds", panes=f"{2**50} us"))
    now = checkpoint.boundary()
    assert now.id > gone.id
    assert (now.panes_gone, now.late_gone) == (gone.panes_gone, gone.late_gone)
    whole(root)
