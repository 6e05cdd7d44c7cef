"""The simulation: seeds keep every promise, one seed is one run, and faults that are planted are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from typer.testing import CliRunner

from tests.faults.simulation import __main__ as command
from tests.faults.simulation.chance import FAULTS, Options
from tests.faults.simulation.jobs import DESCRIPTIONS, case_of, expected_of
from tests.faults.simulation.planted import PLANTED
from tests.faults.simulation.run import Outcome, simulate
from tests.faults.simulation.scheduler import Event, Process, Scheduler
from tests.faults.simulation.shrink import Shrinker
from tests.faults.simulation.storage import SimulatedFileSystem
from tests.faults.simulation.world import World
from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG
from tidestate.statestore.storage.dialects.dialect import UNTRIED
from tidestate.statestore.storage.probe import probe

SEEDS = range(1000) if LONG else (9, 27, 28, 42, 52)
"""Those of the default form are of five jobs, four of which came last, and meet most faults."""
MOST_SEEDS = 40
"""So many a planted fault may take, from the first one on that has found it."""
DIGEST = """
import sys
from tests.faults.simulation.run import simulate
print(simulate(int(sys.argv[1])).digest)
"""
LOSES = Options(planted="loses-an-event", off=frozenset() if LONG else frozenset(FAULTS) - {"slow", "error", "late"})
"""In the default form with kinds of faults enough that some are left out."""


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [simulate(seed) for seed in SEEDS]


@pytest.mark.slow
def test_no_seed_breaks_a_promise(outcomes: list[Outcome]) -> None:
    assert [(one.seed, str(one.violation)) for one in outcomes if one.violation] == []


@pytest.mark.slow
def test_these_seeds_meet_faults_of_every_kind_but_the_rarest(outcomes: list[Outcome]) -> None:
    met = {kind for one in outcomes for kind in one.faults}
    assert len(met) >= len(FAULTS) - 3
    assert len({one.case.partition(" ")[0] for one in outcomes}) >= 4
    assert sum(one.commits for one in outcomes) > 10 * len(outcomes)


@pytest.mark.long
@pytest.mark.slow
def test_the_same_seed_is_the_same_run_whatever_python_hashes(outcomes: list[Outcome]) -> None:
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {"PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT), "PATH": ""}
    shortest = min(outcomes, key=lambda outcome: outcome.requests)
    command = [sys.executable, "-c", DIGEST, str(shortest.seed)]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(shortest.digest)


@pytest.mark.slow
@pytest.mark.long  # in every run: that of another process, above
def test_a_seed_again_in_this_process_is_the_same_run(outcomes: list[Outcome]) -> None:
    again = simulate(outcomes[0].seed, traced=True)
    assert (again.digest, again.fired) == (outcomes[0].digest, outcomes[0].fired)
    assert len(again.lines) == again.requests


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    outcome = first_failure(Options(planted=name))
    assert outcome.violation is not None
    assert outcome.violation.kind in PLANTED[name].found_as, str(outcome.violation)


def first_failure(options: Options) -> Outcome:
    first = PLANTED[options.planted].seed
    for seed in range(first, first + MOST_SEEDS):
        outcome = simulate(seed, options)
        if outcome.violation is not None:
            return outcome
    raise AssertionError(f"{options.planted} was not found by {MOST_SEEDS} seeds")


@pytest.mark.slow
@pytest.mark.long  # it helps who looks for the fault; that faults are found is in every run
def test_a_failing_seed_is_made_smaller() -> None:
    first = first_failure(LOSES)
    shrinker = Shrinker(first, LOSES)
    smallest = shrinker.shrink()
    assert first.violation is not None
    assert smallest.violation is not None
    assert smallest.violation.kind == first.violation.kind
    assert smallest.fired == (), "the fault needs no other"
    assert smallest.requests <= first.requests


def test_the_command_says_what_was_broken_and_draws_it(tmp_path: Path) -> None:
    page, seeds = tmp_path / "simulation.md", tmp_path / "seeds.jsonl"
    page.write_text("<!-- simulation -->\n<!-- /simulation -->\n")
    given = ["run", "--seeds", "1", "--planted", "loses-an-event", "--no-shrink", "--keep", str(seeds)]
    ran = CliRunner().invoke(command.app, given)
    assert ran.exit_code == 1
    assert "seed 0" in ran.stdout
    assert CliRunner().invoke(command.app, ["draw", str(seeds), str(tmp_path)]).exit_code == 0
    row = page.read_text().splitlines()[5].split(" | ")
    assert (row[1], row[-1]) == ("1", "1 |")
    assert CliRunner().invoke(command.app, ["run", "--planted", "none-of-them"]).exit_code == 2


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_an_undisturbed_run_agrees_with_the_twin(name: str) -> None:
    """Where there is one; `expected_of` compares them."""
    found = expected_of(name, 0)
    assert len(found.panes) == len(case_of(name, 0).batches) + 1
    assert sum(found.drained.values()) + sum(sum(rows.values()) for rows in found.panes) > 0


def test_its_storage_is_fit_for_a_root(tmp_path_factory: pytest.TempPathFactory) -> None:
    world = World(0, Options(), tmp_path_factory.mktemp("copies"))
    SimulatedFileSystem.world, before = world, SimulatedFileSystem.world
    try:
        probe(fsspec.filesystem("sim"), "root", "sim", UNTRIED)
    finally:
        SimulatedFileSystem.world = before
    assert world.store.objects == {}


def test_actors_take_turns_in_virtual_time() -> None:
    scheduler, order = Scheduler(World(0, Options(), ROOT).chance), list[str]()
    event, process = Event(scheduler), Process("one")

    def waits() -> None:
        order.append(f"set: {event.wait(5)} at {scheduler.now}")
        order.append(f"late: {Event(scheduler).wait(2)} at {scheduler.now}")

    def sets() -> None:
        scheduler.sleep(1_000_000)
        order.append("sets")
        event.set()

    scheduler.spawn(process, "waits", waits, daemon=True)
    scheduler.spawn(process, "sets", sets, daemon=True)
    scheduler.run()
    assert order == ["sets", "set: True at 1000000", "late: False at 3000000"]


def test_a_killed_process_does_nothing_more() -> None:
    scheduler, done = Scheduler(World(0, Options(), ROOT).chance), list[str]()
    process = Process("one")

    def works() -> None:
        try:
            scheduler.sleep(10)
            done.append("no")
        except Exception:
            done.append("caught")

    scheduler.spawn(process, "works", works)
    scheduler.at(5, lambda: scheduler.kill(process, "killed"))
    scheduler.run()
    assert done == []
    assert process.dead
