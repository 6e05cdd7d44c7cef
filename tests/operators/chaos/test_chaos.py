"""Chaos finds the fault that is planted in each of the example jobs, and none in the right one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.command import tidestate
from tests.helpers.forked import Forked
from tests.helpers.process import LONG, WIDE
from tests.helpers.report_page import charts, text_of
from tests.helpers.worked_example import STREAM
from tests.servers.spark_cluster import until
from tidestate.operators.chaos.faults import ALONE, QUIET, RECUT, Injected, RoundPlan, chosen_kinds, plan_round
from tidestate.operators.chaos.inputs import copied_input
from tidestate.operators.chaos.rounds import ChaosRounds
from tidestate.operators.chaos.start import JobInput, UserJob
from tidestate.operators.local.bootstrap import load_job
from tidestate.statestore.errors import UsageError

pytestmark = [pytest.mark.kill, pytest.mark.slow]

EXAMPLE = ROOT / "examples" / "chaos_job.py"
PLANTED = {
    "sink_that_repeats": Injected("sink-kill", 0.5, "after"),
    "sink_that_is_hasty": Injected("sink-kill", 0.5, "after"),
    "sink_that_counts": Injected("rescale", 0.5, number=4),
    "clicks_by_the_clock": Injected("again", 0.5),
    "clicks_by_hash": Injected("again", 0.5),
    "clicks_that_remember": Injected("restart", 0.5),
    "clicks_not_associative": Injected("recut", 0.5, number=3),
}
PARTS = {
    "sink_that_repeats": "sink's target",
    "sink_that_is_hasty": "sink's target",
    "sink_that_counts": "sink's target",
    "clicks_not_associative": "net of the panes",
}
"""What differs first, if not the panes."""

FOUND_ELSEWHERE = (
    "sink_that_repeats",
    "clicks_by_the_clock",
    "sink_that_is_hasty",
    "sink_that_counts",
    "clicks_that_remember",
)
"""Of the long form. In every run `test_the_verb_says_what_was_found_and_how_to_repeat_it` finds the first, which is
found by the same fault as the third, and the second is found as ``clicks_by_hash`` is, by a job that only runs again.
"""


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input of the example, in fewer files."""
    folder = tmp_path_factory.mktemp("chaos") / "clicks"
    spec = importlib.util.spec_from_file_location("chaos_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_input(folder, 5, 25)
    return folder


@pytest.fixture(scope="module")
def given(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> JobInput:
    streams = load_job(f"{EXAMPLE}:clicks").graph.streams
    return copied_input(streams, {"input": [str(clicks)]}, None, tmp_path_factory.mktemp("copies") / "input")


def rounds(given: JobInput, folder: Path, job: str = "clicks", sink: str = "sink") -> ChaosRounds:
    user = UserJob(f"{EXAMPLE}:{job}", given, f"{EXAMPLE}:{sink}", f"{EXAMPLE}:sink_rows")
    # A seed whose faults are not among the last calls of a run: these are some more or fewer from run to run.
    return ChaosRounds(user, folder, seed=16, kinds=[*ALONE, *RECUT])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in FOUND_ELSEWHERE else []) for name in PLANTED]
)
def test_what_is_planted_is_found(given: JobInput, tmp_path: Path, name: str) -> None:
    of_sink = name.startswith("sink")
    run = rounds(given, tmp_path, sink=name) if of_sink else rounds(given, tmp_path, job=name)
    found = run.run(RoundPlan(1, "parquet", (PLANTED[name],)))
    assert found.verdict == "differs", found
    assert found.differences[0].part == PARTS.get(name, "panes")
    assert found.differences[0].missing or found.differences[0].extra
    assert [put.reached for put in found.faults] == [True]
    assert (tmp_path / "round-1").exists()


def in_pairs(run: ChaosRounds) -> list[RoundPlan]:
    """Each class once, two of them to a round; that a job only runs again is a part of each. What lets another driver
    run to the end comes last, as no fault reaches anything after it.
    """
    first = [plan_round(run.seed, number, run.kinds, run.stores).faults[0] for number in range(2, len(run.kinds) + 1)]
    loud = sorted((one for one in first if one.kind not in QUIET), key=lambda one: one.kind in ("freeze", "race"))
    half = (len(loud) + 1) // 2
    pairs = [loud[at : half + at + 1 : half] for at in range(half)]
    pairs += [[one] for one in first if one.kind in QUIET]
    return [RoundPlan(number, run.stores[0], tuple(pair)) for number, pair in enumerate(pairs, 1)]


def test_the_right_job_is_the_same_under_every_class(given: JobInput, tmp_path: Path) -> None:
    run = rounds(given, tmp_path)
    results = list(run.each(lambda: True)) if LONG else [run.run(plan) for plan in in_pairs(run)[:: 1 if WIDE else 3]]
    kinds = [kind for result in results for kind in result.plan.kinds]
    if LONG or WIDE:
        assert sorted(kinds) == sorted(run.kinds if LONG else run.kinds[1:])
    assert [
        (result.plan.kinds, result.error, result.differences) for result in results if result.verdict != "same"
    ] == []
    assert {fault.kind for result in results for fault in result.faults if fault.reached} == {*kinds}
    assert [path.name for path in tmp_path.iterdir()] == ["undisturbed-0"]


def test_the_same_seed_draws_the_same_rounds() -> None:
    kinds = chosen_kinds("standalone")
    drawn = [plan_round(7, number, kinds, ("parquet", "rocksdb")) for number in range(1, 60)]
    assert drawn == [plan_round(7, number, kinds, ("parquet", "rocksdb")) for number in range(1, 60)]
    assert drawn[20:] != [plan_round(8, number, kinds, ("parquet", "rocksdb")) for number in range(21, 60)]
    assert {kind for one in drawn for kind in one.kinds} == set(kinds)
    assert {one.store for one in drawn} == {"parquet", "rocksdb"}


def test_what_cannot_be_run_is_refused(given: JobInput, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chaos-fault"):
        chosen_kinds("standalone", ["kil"])
    with pytest.raises(UsageError, match="chaos-fault"):
        chosen_kinds("standalone", ["driver"])
    with pytest.raises(UsageError, match="--recut"):
        chosen_kinds("standalone", ["recut"])
    wrong = ChaosRounds(UserJob(f"{EXAMPLE}:clicks", given, f"{EXAMPLE}:clicks"), tmp_path, 1, ["kill"])
    with pytest.raises(UsageError, match="chaos-undisturbed"):
        _ = wrong.usual


@pytest.mark.long
def test_a_join_of_two_folders_of_which_one_has_fewer_files(tmp_path: Path) -> None:
    options = "on='k', within=('-5 seconds', '5 seconds'), how='left', allowed_lateness='1 minute'"
    job = f"stream(event_time='t').join(stream(event_time='t'), {options})"
    (tmp_path / "pairs.py").write_text(f"from tidestate import stream\npairs = {job}\n")
    for side, tables in (("left", STREAM[:5]), ("right", STREAM[:3])):
        (tmp_path / side).mkdir()
        for number, table in enumerate(tables):
            pq.write_table(table.slice(0, 2), tmp_path / side / f"{number}.parquet")
    name = f"{tmp_path / 'pairs.py'}:pairs"
    sides = {side: [str(tmp_path / side)] for side in ("left", "right")}
    copied = copied_input(load_job(name).graph.streams, sides, None, tmp_path / "input")
    run = ChaosRounds(UserJob(name, copied), tmp_path / "rounds", 1, ["kill"])
    assert run.usual.batches == 5
    found = run.run(RoundPlan(1, "rocksdb", (Injected("kill", 0.3), Injected("power", 0.5))))
    assert (found.verdict, found.starts) == ("same", 3), found


def test_the_verb_says_what_was_found_and_how_to_repeat_it(clicks: Path, tmp_path: Path) -> None:
    names = ["--sink", f"{EXAMPLE}:sink_that_repeats", "--sink-rows", f"{EXAMPLE}:sink_rows"]
    where = ["--input", clicks, *names, "--only", "sink-kill", "--for", "1 millisecond", "--seed", 3]
    report = tmp_path / "chaos.html"
    done = tidestate("chaos", f"{EXAMPLE}:clicks", *where, "--report", report, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    first = found["rounds"][0]
    assert first["verdict"] == "differs"
    assert first["repeat"].endswith("--only sink-kill --seed 3 --round 1")
    assert [one["kind"] for one in found["classes"]] == ["sink-kill"]
    text = text_of(report)
    assert "left something else than the undisturbed run" in text
    assert first["differences"][0]["extra"][0][:60] in text
    assert set(charts(report)) == {"rounds-0"}


# In every run: the same seed draws the same rounds.
@pytest.mark.long
def test_a_round_that_is_repeated_finds_the_same(clicks: Path) -> None:
    names = ["--sink", f"{EXAMPLE}:sink_that_repeats", "--sink-rows", f"{EXAMPLE}:sink_rows"]
    where = ["--input", clicks, *names, "--only", "sink-kill", "--for", "1 millisecond", "--seed", 3]
    again = tidestate("chaos", f"{EXAMPLE}:clicks", *where, "--round", 1, columns=80)
    assert again.returncode == 1
    assert "round 1: differs" in again.stdout
    assert max(map(len, again.stdout.splitlines())) <= 80


def test_what_is_no_description_is_refused(clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import pyarrow as pa\njob = pa.table({})\n")
    done = tidestate("chaos", f"{tmp_path / 'wrong.py'}:job", "--input", clicks)
    assert done.returncode == 5
    assert "[bootstrap-job]" in done.stderr


def test_a_module_that_ends_the_process_is_refused(clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(7)\n")
    done = tidestate("chaos", f"{tmp_path / 'ends.py'}:job", "--input", clicks)
    assert done.returncode == 5
    assert "(SystemExit: 7)" in done.stderr


@pytest.mark.long
def test_what_is_ended_early_prints_the_rounds_until_then(clicks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rounds"
    options = [
        "--input",
        str(clicks),
        "--only",
        "restart,sudden",
        "--for",
        "1 hour",
        "--folder",
        str(folder),
        "--json",
    ]
    log = tmp_path / "log"
    log.touch()
    running = Forked("tidestate.recovery.cli.main", "chaos", f"{EXAMPLE}:clicks", *options, log=log)
    until((folder / "round-2").exists, "a round")
    os.kill(running.pid, signal.SIGTERM)
    output, _ = running.communicate()
    assert (running.returncode, log.read_text()) == (130, "interrupted: these are the rounds until then\n")
    assert [one["verdict"] for one in json.loads(output)["rounds"]][:1] == ["same"]
    assert not folder.exists()


OUTPUTS = """
import tidestate as ts
from examples.chaos_job import clicks
from tidestate import agg


def job():
    per_user = clicks()
    totals = per_user.group_by().window(ts.tumbling("1 hour")).aggregate(n=agg.count()).accumulation("retracting")
    return ts.job(per_user.named("per_user"), totals.allowed_lateness("1 hour").named("totals"))


def sink(folder):
    return {"totals": ts.sinks.ParquetSink(folder / "totals")}
"""


def test_a_job_of_several_outputs_comes_through(given: JobInput, tmp_path: Path) -> None:
    """A sink that is killed, and other batches: both outputs are compared."""
    module = tmp_path / "outputs_job.py"
    module.write_text(OUTPUTS)
    user = UserJob(f"{module}:job", given, f"{module}:sink")
    run = ChaosRounds(user, tmp_path / "rounds", seed=16, kinds=[*ALONE, *RECUT])
    faults = [Injected("sink-kill", 0.5, "after"), Injected("recut", 0.5, number=3)]
    for number, fault in enumerate(faults, 1):
        found = run.run(RoundPlan(number, "parquet", (fault,)))
        assert (found.verdict, found.differences) == ("same", ())
        assert [put.reached for put in found.faults] == [True]
