"""A root that a newer version has written: it stops who does not know what its manifests need, and stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.manifests import files_below
from tests.helpers.moves import reset_to
from tests.helpers.runner_services import ASK_RUNS, MAKE_ROOTS, TRY_STORAGE, VERBS
from tests.helpers.worked_example import STREAM, example
from tidestate.operators import Policy
from tidestate.operators.inspect.query import query
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest_file import CAPABILITIES
from tidestate.recovery.log.pins import pin
from tidestate.recovery.moves.fork import execute_fork, plan_fork
from tidestate.recovery.moves.rescale import execute_rescale, plan_rescale
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.spec.store import Parquet

NEWER = "trial/1"
NEEDED = {4, 5, 6}
"""Checkpoints of the newer version."""


@contextmanager
def newer_version() -> Iterator[None]:
    """It knows a capability, and its jobs use it."""
    with (
        patch.dict(CAPABILITIES, {NEWER: "a trial"}),
        patch("tidestate.operators.bind.needs.needs_of", lambda _description: [NEWER]),
    ):
        yield


def run(root: Path, batches: int, policy: Policy | None = None) -> None:
    job = example("retracting").standalone(checkpoint=root, store=Parquet(), policy=policy)
    job.run(STREAM[:batches])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 1 to 3 of this version, then 4 to 6 of the newer one."""
    root = tmp_path_factory.mktemp("newer") / "root"
    run(root, 2)
    with newer_version():
        run(root, 4)
    return root


@pytest.fixture
def root(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "root"))


OF_STATE = ("bundles/1", "wide-sums/1")
"""What the state of the job needs, whatever is tried here."""


def needs(root: Path) -> dict[int, list[str] | None]:
    """By checkpoint what its file says, beyond what the job has needed from the first on."""
    manifests = [json.loads(path.read_bytes())["manifest"] for path in sorted((root / "manifests").glob("*.json"))]
    return {one["id"]: [name for name in one["needs"] if name not in OF_STATE] or None for one in manifests}


def test_manifests_name_what_they_need_from_the_start_that_uses_it_on(root: Path) -> None:
    assert needs(root) == {number: [NEWER] if number in NEEDED else None for number in range(1, 7)}


@pytest.mark.parametrize(
    "policy",
    [
        ts.Policy(),
        ts.Policy(damaged="reset"),
        ts.Policy(messages="forget"),
        ts.Policy(messages="rebuild"),
        ts.Policy(spark="stop"),
    ],
    ids=str,
)
def test_no_policy_goes_back_over_it(root: Path, policy: Policy) -> None:
    before = files_below(root)
    with pytest.raises(IncompatibleError) as caught:
        run(root, 5, policy)
    assert (caught.value.code, NEWER in caught.value.message) == ("newer-version", True)
    assert files_below(root) == before


def test_a_reset_after_damage_does_not_go_back_over_it(root: Path) -> None:
    newest = Path(root, "manifests", sorted(path.name for path in Path(root, "manifests").iterdir())[-1])
    newest.write_bytes(b"rubbish")
    with pytest.raises(IncompatibleError) as caught:
        run(root, 5, ts.Policy(damaged="reset"))
    assert caught.value.code == "newer-version"


def test_it_is_named_before_the_configuration_is_decoded(root: Path) -> None:
    path = sorted((root / "manifests").glob("*.json"))[-1]
    with pytest.raises(IncompatibleError) as caught:
        query(root)
    assert caught.value.context == {"path": f"manifests/{path.name}"}


READ_ON = {"serve", "report", "diff"}
"""Verbs that read what can be read: pages name the other checkpoints, and two older ones can be compared."""


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_changes_it(root: Path, tmp_path: Path, verb: str) -> None:
    with newer_version():
        pin(Checkpoint.open(root), 2, "kept")
    given = [one.format(tmp_path) for one in VERBS[verb]]
    before = files_below(root)
    done = CliRunner().invoke(app, [verb, str(root), *given])
    assert files_below(root) == before
    assert (done.exit_code == 0) == (verb in READ_ON)
    assert verb in READ_ON or NEWER in done.output + str(done.exception)
    assert not (tmp_path / "fork").exists()


def test_a_fork_of_an_older_checkpoint_is_refused_too(root: Path, tmp_path: Path) -> None:
    """The pin would be a change of the root."""
    before = files_below(root)
    with pytest.raises(IncompatibleError):
        execute_fork(plan_fork(root, tmp_path / "fork", 3))
    assert files_below(root) == before
    assert not (tmp_path / "fork").exists()


def test_every_verb_on_a_root_is_tried() -> None:
    lines = (ROOT / "docs" / "reference" / "cli.md").read_text().splitlines()
    assert {line.split("`")[1] for line in lines if line.startswith("| [`")} == set(
        VERBS
    ) | MAKE_ROOTS | ASK_RUNS | TRY_STORAGE


def test_verify_names_each_checkpoint(root: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(root), "--json"])
    found = json.loads(done.stdout)
    assert {one["checkpoint"] for one in found["findings"] if NEWER in one["why"]} == NEEDED


def test_forks_and_moves_carry_it_on_and_a_rewind_before_it_gets_rid_of_it(root: Path, tmp_path: Path) -> None:
    with newer_version():
        execute_rescale(Checkpoint.open(root), plan_rescale(Checkpoint.open(root), 3))
        for number, kept in ((5, [NEWER]), (3, None)):
            execute_fork(plan_fork(root, tmp_path / f"fork {number}", number))
            assert needs(tmp_path / f"fork {number}") == {number: kept}
        reset_to(Checkpoint.open(root), 5)
    assert [needs(root)[number] for number in (7, 8)] == [[NEWER], [NEWER]]
    with newer_version():
        reset_to(Checkpoint.open(root), 3)
    assert needs(root)[9] is None
    run(root, 3)  # this version goes on from there
    run(tmp_path / "fork 3", 3)
    listed = CliRunner().invoke(app, ["list", str(root), "--json"])
    assert listed.exit_code == 0, listed.output


def test_show_prints_it(root: Path) -> None:
    with newer_version():
        lines = CliRunner().invoke(app, ["show", str(root)]).stdout.splitlines()
    assert ["needs", "bundles/1,", f"{NEWER},", "wide-sums/1"] in [line.split() for line in lines]


def test_a_job_that_no_longer_uses_it_still_needs_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with newer_version():
        run(root, 1)
    with patch.dict(CAPABILITIES, {NEWER: "a trial"}):
        run(root, 2)
    assert set(map(str, needs(root).values())) == {str([NEWER])}


def test_a_harness_stops_too(tmp_path: Path) -> None:
    with newer_version():
        example().harness(STREAM[0].schema, folder=tmp_path)
    with pytest.raises(IncompatibleError) as caught:
        example().harness(STREAM[0].schema, folder=tmp_path)
    assert caught.value.code == "newer-version"
