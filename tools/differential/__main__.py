"""``python -m tools.differential OLD_TREE NEW_TREE``: see the package."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from tidestate.recovery.cli.progress_bar import bar
from tidestate.statestore.durations import span_us
from tools.differential.jobs import Job, draw

JOBS = 200
"""About a second of processor time each, in each tree."""
REFUSALS = ("refused", "crashed")


class Tree:
    """A work tree, and the process that runs jobs with its code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        own = self.folder / ".venv" / "bin" / "python"
        python = str(own) if own.exists() else sys.executable
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        self._process = subprocess.Popen(
            [python, "-m", "tools.differential.child"],
            cwd=self.folder,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        package = self.read()["package"][0]
        if not Path(package).resolve().is_relative_to(self.folder):
            sys.exit(f"{self.folder} imports the package of {package}: give it a .venv of its own, or none")

    def ask(self, job: Job, printed: str = "") -> None:
        """Let it run a job; `read` waits for the answer."""
        assert self._process.stdin is not None
        line = {"job": msgspec.to_builtins(job), "printed": printed}
        print(json.dumps(line), file=self._process.stdin, flush=True)

    def read(self) -> dict[str, Any]:
        """The next answer. Ends the program where the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the process of {self.folder} has ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process that runs jobs with this tree."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Pair:
    """Both trees, and what they have found equal."""

    old: Tree
    new: Tree
    equal: Counter[str] = field(default_factory=Counter)

    def difference(self, job: Job) -> str | None:
        """The first difference of a job, in words; None if there is none."""
        old, new = self._findings(job)
        for before, after in zip_longest(old, new, fillvalue=("nothing more", "")):
            if before[0] != after[0]:
                return f"what they do\n  old: {': '.join(before)}\n  new: {': '.join(after)}"
            if before != after:
                return f"{before[0]}\n{self._line(job, before[0])}"
        self.equal.update(_kind(name) for name, _ in old)
        return None

    def _findings(self, job: Job) -> tuple[list[list[str]], list[list[str]]]:
        self.old.ask(job)
        self.new.ask(job)
        return self.old.read()["found"], self.new.read()["found"]

    def _line(self, job: Job, name: str) -> str:
        """The first line in which a finding differs."""
        self.old.ask(job, name)
        self.new.ask(job, name)
        texts = [self.old.read()["text"].splitlines(), self.new.read()["text"].splitlines()]
        for number, (before, after) in enumerate(zip_longest(*texts), 1):
            if before != after:
                return f"  line {number}\n  old: {before}\n  new: {after}"
        return "  which did not come again: one of the trees is not deterministic"


def _kind(name: str) -> str:
    """What kind of thing a finding is, for the summary."""
    return next((kind for kind in REFUSALS if name.endswith(f" {kind}")), name.partition(": ")[2].split(" ")[0])


def compare(old: Path, new: Path, seed: int, jobs: int | None, seconds: float = math.inf) -> int:
    """0 if so many drawn ``jobs``, or as many as ``seconds`` suffice for, gave the same; else 1."""
    until, done = time.monotonic() + seconds, 0
    with closing(Tree(old)) as old_tree, closing(Tree(new)) as new_tree, bar() as progress:
        pair = Pair(old_tree, new_tree)
        while done != jobs and time.monotonic() < until:
            progress("jobs", done, jobs)
            job = draw(seed + done)
            done += 1
            if (difference := pair.difference(job)) is not None:
                progress.clear()
                print(f"{job}\n\nthe trees differ in {difference}\n\njob {done}, again:")
                print(f"  python -m tools.differential {old} {new} --jobs 1 --seed {job.seed}")
                return 1
    compared = ", ".join(f"{number} {kind}" for kind, number in pair.equal.most_common())
    print(f"{done} jobs gave the same: {compared}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.differential", description="the same jobs in two work trees"
    )
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument("--jobs", type=int, help=f"how many; by default {JOBS}, or as many as there is time for")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the next ones count on from it")
    parser.add_argument("--for", dest="span", help="how long, such as '10 minutes'")
    given = parser.parse_args(arguments)
    seconds = math.inf if given.span is None else span_us(given.span) / 1_000_000
    jobs = JOBS if given.jobs is None and given.span is None else given.jobs
    return compare(given.old, given.new, given.seed, jobs, seconds)


if __name__ == "__main__":
    sys.exit(main())
