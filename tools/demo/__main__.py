"""``make demo``: run the flights job, kill it twice with SIGKILL, let it finish, and check its output."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidestate.statestore.errors import UsageError
from tools.demo.check import check
from tools.demo.child import Child, ChildFailedError, Event
from tools.demo.flights import departed_flights, disorder, write_files
from tools.demo.job import STORES
from tools.java import java_home

FILES = 73
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--store", choices=STORES, default="parquet")
    parser.add_argument("--folder", type=Path, help="where things are kept (default: a new temporary folder)")
    parser.add_argument("--seed", type=int, help="of the random moments of the kills")
    arguments = parser.parse_args()
    try:
        java_home()
    except UsageError as error:
        sys.exit(f"tidestate: {error}")
    chance = random.Random(arguments.seed)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="tidestate-demo-"))
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    console.rule("the input")
    flights = departed_flights()
    facts = disorder(flights)
    write_files(flights, folder / "input", FILES)
    console.print(
        f"{facts['events']:,} flights in {FILES} files, in the order they departed.\n"
        "Event time is the scheduled departure. "
        f"Out of order: {facts['behind_a_later_one']:,} arrive behind a later one, "
        f"{facts['behind_by_over_an_hour']:,} by over an hour, {facts['behind_by_over_six_hours']} by over six, "
        f"the worst by {facts['worst_minutes']:,} minutes."
    )
    console.rule(f"the job, on Spark, state in {arguments.store}")
    try:
        run_and_kill(folder, arguments.store, chance)
    except ChildFailedError as error:
        console.print(str(error), markup=False)
        sys.exit(f"the job failed; its log is {folder / 'job.log'}")
    console.rule("the checkpoints")
    for verb, *options in (["list", "--last", "6"], ["show"]):
        look(verb, str(folder / "checkpoint"), *options)
    console.rule("the proof")
    findings = check(folder / "checkpoint", folder / "input")
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        table.add_row("[green]ok[/green]" if finding.right else "[red]WRONG[/red]", finding.what, finding.found)
    console.print(table)
    console.print(
        f"\n{time.monotonic() - began:.0f} s. Everything is in {folder}:\n"
        "  input/             the flights, as Parquet\n"
        "  checkpoint/panes/  what the job put out, as Parquet\n"
        "  checkpoint/late/   the rejected flights with the reason\n"
        "  checkpoint/        manifests, state, Spark's own checkpoint; job.log is Spark's log"
    )
    if not all(finding.right for finding in findings):
        sys.exit("the output is not what it should be")


def look(*words: str) -> None:
    """Run ``tidestate`` as a user would, the command line first."""
    console.print("$ tidestate " + " ".join(words), style="bold")
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "tidestate.recovery.cli.main", *words], check=True)


def run_and_kill(folder: Path, store: str, chance: random.Random) -> None:
    """Three runs of the job: killed inside a commit, killed at a random moment, left to finish and drain."""
    log = folder / "job.log"
    command = [sys.executable, "-m", "tools.demo.job", "--input", str(folder / "input")]
    command += ["--checkpoint", str(folder / "checkpoint"), "--store", store]
    # Manifest 1 is the fence of the first run, so checkpoint n holds file n - 1 until the next fence.
    first = chance.randint(10, 25)
    second = chance.randint(first + 10, 60)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("run 1: starting Spark", total=FILES)
        child = Child([*command, "--pause", f"before-manifest:{first}"], log)
        child.wait_for(lambda event: event["event"] == "paused", mover(progress, bar, "run 1"))
        child.kill()
        progress.console.print(f"SIGKILL in a commit: the files of checkpoint {first} were written, its manifest not")
        progress.update(bar, description="run 2: starting Spark")
        child = Child(command, log)
        child.wait_for(lambda event: event.get("checkpoint") == second, mover(progress, bar, "run 2"))
        time.sleep(chance.uniform(0.0, 0.8))
        child.kill()
        progress.console.print(f"SIGKILL at a random moment, soon after checkpoint {second}")
        progress.update(bar, description="run 3: starting Spark")
        child = Child([*command, "--drain"], log)
        child.wait_for(lambda event: event["event"] == "done", mover(progress, bar, "run 3"))
        child.finish()
        progress.update(bar, completed=FILES, description="drained: every window fired")


def mover(progress: Progress, bar: TaskID, name: str) -> Callable[[Event], None]:
    """Moves the progress bar along with the child's events."""

    def move(event: Event) -> None:
        if event["event"] == "started":
            progress.update(bar, description=f"{name}: streaming")
        if event["event"] == "checkpoint" and event["kind"] == "batch":
            progress.update(bar, completed=event["batch"] + 1)

    return move


if __name__ == "__main__":
    main()
