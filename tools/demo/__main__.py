"""``make demo``: run the flights job, kill it twice with SIGKILL, let it finish, and check its output."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools.demo.check import check
from tools.demo.flights import departed_flights, disorder, write_files
from tools.demo.job import STORES

FILES = 73
Event = dict[str, Any]
console = Console()


class Child:
    """The job in a process group of its own, so that SIGKILL takes Python, the JVM and the workers alike."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        self._log = log

    def events(self) -> list[Event]:
        """The next events: blocks for one line; empty when the child has gone."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return []
        try:
            return [json.loads(line)]
        except ValueError:
            return [{"event": "noise"}]

    def kill(self) -> None:
        """SIGKILL, the whole group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> None:
        """Wait for the end; on failure show what the child had to say."""
        if self._process.wait() != 0:
            console.print(self._log.read_text()[-4000:], markup=False)
            sys.exit(f"the job failed; its log is {self._log}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--store", choices=STORES, default="parquet")
    parser.add_argument("--folder", type=Path, help="where things are kept (default: a new temporary folder)")
    parser.add_argument("--seed", type=int, help="of the random moments of the kills")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="tidemark-demo-"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()

    console.rule("the input")
    flights = departed_flights()
    facts = disorder(flights)
    write_files(flights, folder / "input", FILES)
    console.print(
        f"{facts['events']:,} flights in {FILES} files, in the order they departed.\nEvent time = scheduled departure. "
        f"Out of order: {facts['behind_a_later_one']:,} arrive behind a later one, "
        f"{facts['behind_by_over_an_hour']:,} by over an hour, {facts['behind_by_over_six_hours']} by over six, "
        f"the worst by {facts['worst_minutes']:,} minutes."
    )
    console.rule(f"the job, on Spark, state in {arguments.store}")
    run_and_kill(folder, arguments.store, chance)
    console.rule("the checkpoints")
    for command in (["list", "--last", "6"], ["show"]):
        console.print(f"$ tidemark {command[0]} {folder / 'checkpoint'} {' '.join(command[1:])}", style="bold")
        sys.stdout.flush()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "recovery.cli",
                command[0],
                folder / "checkpoint",
                *command[1:],
            ],
            check=True,
        )
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


def run_and_kill(folder: Path, store: str, chance: random.Random) -> None:
    """Three runs of the job: killed inside a commit, killed at a random moment, left to finish and drain."""
    checkpoint, log = folder / "checkpoint", folder / "job.log"
    command = [sys.executable, "-m", "tools.demo.job", "--input", str(folder / "input")]
    command += ["--checkpoint", str(checkpoint), "--store", store]
    # Manifest 1 is the fence of the first run, so checkpoint n holds file n - 1 until the next fence.
    first = chance.randint(10, 25)
    second = chance.randint(first + 10, 60)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting Spark", total=FILES)
        child = Child([*command, "--pause-before", str(first)], log)
        follow(child, progress, bar, "run 1", until=lambda event: event["event"] == "paused")
        child.kill()
        progress.console.print(
            f"SIGKILL between segments and manifest: checkpoint {first} had its files written, was not published"
        )
        child = Child(command, log)
        progress.update(bar, description="starting Spark again")
        follow(child, progress, bar, "run 2", until=lambda event: event.get("checkpoint") == second)
        time.sleep(chance.uniform(0.0, 0.8))
        child.kill()
        progress.console.print(f"SIGKILL at a random moment, soon after checkpoint {second}")
        child = Child([*command, "--drain"], log)
        progress.update(bar, description="starting Spark again")
        follow(child, progress, bar, "run 3", until=lambda event: event["event"] == "done")
        child.finish()
        progress.update(bar, completed=FILES, description="drained: every window fired")


def follow(child: Child, progress: Progress, bar: TaskID, name: str, until: Callable[[Event], bool]) -> None:
    """Move the progress bar along until the awaited event."""
    while events := child.events():
        for event in events:
            if event["event"] == "started":
                progress.update(bar, description=f"{name}: streaming")
            if event["event"] == "checkpoint":
                progress.advance(bar)
            if until(event):
                return
    child.finish()
    sys.exit("the job ended before it was meant to")


if __name__ == "__main__":
    main()
