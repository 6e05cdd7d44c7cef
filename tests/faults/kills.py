"""Real Spark jobs whose processes are killed and stopped at random: ``python -m tests.faults.kills run --kills 100``.

A round is a job over real flights on a new root. It is disturbed a few times, then left alone until its input ends,
and its output must be that of a run that was not disturbed (`tests.helpers.killed_jobs`). Job, store, disturbances
and moments follow from the seed of the round; what happens at such a moment does not, as the processes are real.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.children.spark_job import JOBS, STORES
from tests.faults import kept
from tests.helpers.checkout import ROOT
from tests.helpers.killed_jobs import begun, fill, is_exact
from tests.helpers.process import SCRATCH
from tests.servers.spark_cluster import below, commands
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.bench.table import as_json, commit, insert, markdown

PAGE = "kills.md"
WHOLE, JAVA, PYTHON = "all processes", "driver, its Java", "driver, its Python"
WORKER, EXECUTOR = "a Python worker", "an executor"
STOPPED, SECOND, COLLECTED = "stopped, and goes on later", "a second driver", "a collection meanwhile"
KINDS = (WHOLE, JAVA, PYTHON, WORKER, EXECUTOR, STOPPED, SECOND, COLLECTED)
"""What happens to a run. All but the last end with a SIGKILL."""
VICTIMS = {
    JAVA: "org.apache.spark.deploy.SparkSubmit",
    PYTHON: "tests.children.spark_job",
    WORKER: "pyspark.worker",
    EXECUTOR: "CoarseGrainedExecutorBackend",
}
"""What the command line of a process has in it."""
REPLACED = {WORKER: 0.7, EXECUTOR: 2.0}
"""Spark starts another one and goes on, so that many of a run are killed, with pauses of up to so many seconds."""
DISTURBANCES, FILES = 6, 24
"""Of a round. Each file is a batch, of half a second."""
AT_MOST_S = 240
"""A run that is left alone ends within this time."""


@dataclass(frozen=True)
class Disturbance:
    """``wait_s`` after the query has started, or with ``early`` after the process has."""

    kind: str
    early: bool
    wait_s: float
    then_s: float
    """Of two drivers: how long both run."""
    times: int = 1
    """How many processes are killed, one after the other."""


@dataclass(frozen=True)
class Plan:
    """A round."""

    seed: str
    job: str
    store: str
    in_driver: bool
    disturbances: tuple[Disturbance, ...]
    files: int = FILES


def planned(seed: str) -> Plan:
    """The round of a seed."""
    chance = random.Random(seed)
    chosen = chance.sample(KINDS, DISTURBANCES)
    return Plan(
        seed,
        chance.choice(sorted(JOBS)),
        chance.choice(sorted(STORES)),
        chance.random() < 0.3,
        tuple(_disturbance(chance, kind) for kind in chosen),
    )


def _disturbance(chance: random.Random, kind: str) -> Disturbance:
    early = kind in (WHOLE, JAVA, PYTHON) and chance.random() < 0.2
    wait_s = chance.uniform(0.5, 4.0) if early else chance.uniform(0.0, 2.5)
    times = chance.randint(4, 12) if kind in REPLACED else 1
    return Disturbance(kind, early, wait_s, chance.uniform(0, REPLACED.get(kind, 3)), times)


class Run:
    """One run of the job in processes of its own, listened to."""

    def __init__(self, folder: Path, plan: Plan, *options: str) -> None:
        self._child = begun(folder, plan.job, plan.store, *options)
        self._log = folder / "job.log"
        self.started, self.ended, self.done = threading.Event(), threading.Event(), False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for event in self._child.events():
            self.done = self.done or event["event"] == "done"
            self.started.set()
        self.ended.set()
        self.started.set()

    def wait(self, one: Disturbance) -> bool:
        """Whether it still runs at the moment of a disturbance."""
        if not one.early:
            self.started.wait(AT_MOST_S)
        return not self.ended.wait(one.wait_s)

    def processes(self, what: str) -> list[int]:
        """Those of ours whose command line has ``what`` in it, now."""
        everything = commands()
        return [pid for pid in below(self._child.pid) if what in everything.get(pid, (0, ""))[1]]

    def signal(self, number: signal.Signals, pids: Sequence[int]) -> bool:
        """Send it to each; whether one was there."""
        there = False
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                there = True
        return there

    def everything(self, number: signal.Signals) -> bool:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)
            return True
        return False

    def kill(self) -> None:
        """All that is left of it."""
        self.everything(signal.SIGKILL)
        assert self.ended.wait(AT_MOST_S), "a killed process holds on to its output"
        self._child.wait()

    def to_the_end(self) -> None:
        """It is left alone."""
        assert self.ended.wait(AT_MOST_S), f"it has not ended in {AT_MOST_S} s: {self.end_of_log()}"
        assert self.done, self.end_of_log()
        self._child.wait()

    def end_of_log(self) -> str:
        return self._log.read_text()[-3000:]


def disturb(run: Run, one: Disturbance, folder: Path, plan: Plan) -> Iterator[str]:
    """Do it, and end the run. Yields what was done: nothing, if the process to be killed had ended."""
    if one.kind == COLLECTED:
        collect(folder / "checkpoint")
        yield one.kind
        run.ended.wait(one.then_s)
    elif one.kind in (STOPPED, SECOND):
        if one.kind == STOPPED:
            run.everything(signal.SIGSTOP)
        other = Run(folder, plan)
        other.started.wait(AT_MOST_S)
        other.ended.wait(one.wait_s)
        if one.kind == STOPPED:
            run.everything(signal.SIGCONT)
        yield one.kind
        other.ended.wait(one.then_s)
        other.kill()
    elif one.kind == WHOLE:
        if run.everything(signal.SIGKILL):
            yield one.kind
    else:
        yield from _killed(run, one)
    run.kill()


def _killed(run: Run, one: Disturbance) -> Iterator[str]:
    """Kill one process of a kind, or one after the other."""
    for _ in range(one.times):
        found = run.processes(VICTIMS[one.kind])
        while one.kind in REPLACED and not found and not run.ended.wait(0.05):
            found = run.processes(VICTIMS[one.kind])  # the first task starts it
        # Of the workers the last one: the first is their parent.
        if run.signal(signal.SIGKILL, found[-1:] if one.kind in REPLACED else found[:1]):
            yield one.kind
        if run.ended.wait(one.then_s):
            return


def collect(root: Path) -> None:
    """``tidestate gc`` in a process of its own."""
    command = [sys.executable, "-m", "tidestate.recovery.cli.main", "gc", str(root), "--newest", "3", "--confirm"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def play(plan: Plan, folder: Path, did: list[str]) -> None:
    """Run it, and add to ``did`` what was done to it. Raises `AssertionError` for an output that is not exact."""
    fill(folder, plan.files)
    for one in plan.disturbances:
        run = Run(folder, plan, *_options(plan, one))
        if not run.wait(one):
            assert run.done, run.end_of_log()
            break
        did += disturb(run, one, folder, plan)
    Run(folder, plan, "--drain").to_the_end()
    is_exact(folder, plan.job)
    assert verify(Checkpoint.open(folder / "checkpoint"), read_percent=100, spark=True).worst is None


def _options(plan: Plan, one: Disturbance) -> Sequence[str]:
    if one.kind in REPLACED:
        return ["--executors"] if one.kind == EXECUTOR else []
    return ["--in-driver"] if plan.in_driver else []


app = typer.Typer(help="Real Spark jobs, killed and stopped at random.", no_args_is_help=True)


@app.command()
def run(
    kills: Annotated[int, typer.Option(help="How many SIGKILLs at least.")] = 20,
    seed: Annotated[str, typer.Option(help="Of the first round; those that follow add a number.")] = "0",
    keep: Annotated[Path | None, typer.Option(help="A file to which each round is added, as a line of JSON.")] = None,
) -> None:
    """Rounds until so many processes were killed. Ends with 1 if an output was not exact; its folder stays."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: list[dict[str, Any]] = []
    at = commit()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("kills", total=kills)
        while (killed := sum(one["kills"] for one in found)) < kills:
            plan = planned(f"{seed}.{len(found)}")
            progress.update(bar, completed=killed, description=f"{plan.job}, {plan.store}")
            found.append({**_row(plan), "commit": at})
            kept.add(keep, found[-1])
            print(as_json(found[-1]), flush=True)
    if any(one["wrong"] for one in found):
        sys.exit(1)


def _row(plan: Plan) -> dict[str, Any]:
    folder, began, wrong = Path(tempfile.mkdtemp(prefix="tidestate-kills-", dir=SCRATCH)), time.monotonic(), ""
    did: list[str] = []
    try:
        play(plan, folder, did)
        shutil.rmtree(folder)
    except AssertionError as error:
        wrong = f"{folder}: {str(error)[:2000]}"
    kills = sum(one != COLLECTED for one in did)
    about = {"seed": plan.seed, "job": plan.job, "store": plan.store, "in_driver": plan.in_driver}
    return {**about, "did": did, "kills": kills, "wrong": wrong, "seconds": round(time.monotonic() - began, 1)}


@app.command()
def draw(rounds: Path, docs: Path) -> None:
    """Put the rounds of a file into the page on reliability in this folder."""
    insert(docs / PAGE, "kills", section(kept.read(rounds)))


def section(rounds: list[dict[str, Any]]) -> str:
    """The figures: how often each was done, over how many rounds, and the outputs that were not exact."""
    counted = Counter(kind for one in rounds for kind in one["did"])
    wrong = sum(bool(one["wrong"]) for one in rounds)
    killed = sum(one["kills"] for one in rounds)
    rows = [{"what happened": kind, "times": counted[kind]} for kind in KINDS]
    sums = f"{killed:,} kills in {len(rounds)} rounds, {wrong} wrong"
    return f"Commit {kept.commits(rounds)}: {sums}.\n\n{markdown(rows)}"


if __name__ == "__main__":
    app()
