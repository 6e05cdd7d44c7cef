"""Manifests under ids that no job reaches: they are not ours, or the next one is refused; none counts in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidestate as ts
from tests.helpers.collected import JOB, STORE, TABLES, run
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import LAST_NUMBER
from tidestate.recovery.moves.repair import plan_repair
from tidestate.statestore.errors import CorruptionError


def stray(root: Path, number: int) -> None:
    newest = manifest_path(Checkpoint.open(root).stored_ids()[-1])
    (root / manifest_path(number)).write_bytes((root / newest).read_bytes())


@pytest.mark.parametrize("number", [2**63 - 1, 2**63 - 2, LAST_NUMBER + 1])
def test_a_name_beyond_the_last_is_not_ours(tmp_path: Path, number: int) -> None:
    run(tmp_path, 2)
    before = Checkpoint.open(tmp_path).ids()
    stray(tmp_path, number)
    assert Checkpoint.open(tmp_path).ids() == before
    assert plan_repair(Checkpoint.open(tmp_path)).reset is None
    run(tmp_path, 3)
    assert Checkpoint.open(tmp_path).ids() == [*before, before[-1] + 1, before[-1] + 2]


@pytest.mark.parametrize("number", [LAST_NUMBER, LAST_NUMBER - 1])
def test_after_the_last_nothing_is_published_or_delivered(tmp_path: Path, number: int) -> None:
    run(tmp_path, 2)
    stray(tmp_path, number)
    delivered: list[int] = []
    job = JOB.standalone(
        checkpoint=tmp_path,
        store=STORE,
        policy=ts.Policy(damaged="reset"),
        sink=lambda _rows, delivery: delivered.append(delivery.checkpoint),
    )
    with pytest.raises(CorruptionError, match="ids-used-up"):
        job.run(TABLES[:3])
    assert all(number in Checkpoint.open(tmp_path).ids() for number in delivered)
