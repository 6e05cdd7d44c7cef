"""``python -m tests.faults.simulation run|draw|planted``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.faults import kept
from tests.faults.simulation.chance import FAULTS, Options
from tests.faults.simulation.planted import PLANTED
from tests.faults.simulation.run import Outcome, simulate, simulate_each
from tests.faults.simulation.shrink import Shrinker
from tools.bench.table import Row, commit, insert, markdown

PAGE = "simulation.md"
SHRUNK = 3
"""So many failing seeds are made smaller and printed."""
app = typer.Typer(help="Whole jobs, their storage, time and faults, each run from one seed.", no_args_is_help=True)
err = Console(stderr=True)


@dataclass
class Totals:
    """Of many seeds."""

    seeds: int = 0
    commits: int = 0
    requests: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, one: Outcome) -> None:
        """One more."""
        self.seeds += 1
        self.commits += one.commits
        self.requests += one.requests
        self.virtual_s += one.seconds
        self.faults += one.faults
        if one.violation is not None:
            self.failed.append(one)

    def row(self) -> Row:
        """The figures."""
        return {
            "seeds": self.seeds,
            "commits checked": self.commits,
            "requests": self.requests,
            "virtual hours": round(self.virtual_s / 3600, 1),
            "faults": sum(self.faults.values()),
            "broken promises": len(self.failed),
        }


@app.command()
def run(
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 100,
    first: Annotated[int, typer.Option("--from", help="The first one.")] = 0,
    seed: Annotated[int | None, typer.Option(help="This one alone.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print all that happens, of a single seed.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Begin no more seeds after so long.")] = None,
    processes: Annotated[int, typer.Option(help="How many run at a time.")] = 1,
    planted: Annotated[str, typer.Option(help="A fault of our own that is to be found; `planted` lists them.")] = "",
    keep: Annotated[Path | None, typer.Option(help="A file to which each seed is added, as a line of JSON.")] = None,
    shrink: Annotated[bool, typer.Option(help="Make failing seeds smaller.")] = True,
) -> None:
    """Run seeds. Ends with 1 if a promise was broken."""
    if planted and planted not in PLANTED:
        raise typer.BadParameter(f"no such fault: {planted}; {', '.join(PLANTED)}")
    options, totals, begun = Options(planted=planted), Totals(), time.monotonic()
    if seed is not None:
        outcome = simulate(seed, options, traced=trace)
        print("\n".join(outcome.lines))
        totals.add(outcome)
    else:
        _many(range(first, first + seeds), minutes, processes, options, totals, keep)
    row = totals.row() | {"seconds": round(time.monotonic() - begun)}
    print(", ".join(f"{value:,} {name}" for name, value in row.items()))
    for one in totals.failed[: SHRUNK if shrink else 0]:
        _print_smaller(one, options)
    for one in totals.failed:
        print(f"seed {one.seed} ({one.case}): {one.violation}")
    if totals.failed:
        sys.exit(1)


@app.command()
def draw(seeds: Path, docs: Path) -> None:
    """Put what a file keeps into the page on reliability in this folder."""
    insert(docs / PAGE, "simulation", section(kept.read(seeds)))


@app.command("planted")
def list_planted() -> None:
    """The faults that the simulation must find."""
    for name, one in PLANTED.items():
        print(f"{name:<20} {one.does} -> {', '.join(one.found_as)}")


def _until(seeds: range, minutes: float | None) -> Iterator[int]:
    begun = time.monotonic()
    return takewhile(lambda _: minutes is None or time.monotonic() - begun < 60 * minutes, seeds)


def _many(
    seeds: range, minutes: float | None, processes: int, options: Options, totals: Totals, keep: Path | None
) -> None:
    at = commit()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=err) as progress:
        bar = progress.add_task("seeds", total=len(seeds))
        for one in simulate_each(_until(seeds, minutes), processes, options):
            totals.add(one)
            progress.update(bar, advance=1, description=f"seeds, {len(totals.failed)} failed")
            if one.violation is not None:
                progress.console.print(
                    f"seed {one.seed} ({one.case}): {one.violation}", markup=False, highlight=False
                )
            kept.add(keep, {**_row(one), "commit": at})


def _row(one: Outcome) -> Row:
    return {
        "seed": one.seed,
        "case": one.case,
        "broken": str(one.violation) if one.violation else None,
        "commits": one.commits,
        "requests": one.requests,
        "virtual_s": round(one.seconds, 3),
        "faults": dict(sorted(one.faults.items())),
        "digest": one.digest,
    }


def _print_smaller(one: Outcome, options: Options) -> None:
    """The shortest run that breaks the same promise, with all that happens in it."""
    shrinker = Shrinker(one, options)
    smallest = shrinker.shrink()
    traced = simulate(one.seed, shrinker.options, traced=True)
    left = [what for place, what in enumerate(smallest.plan) if place not in shrinker.options.dropped]
    print(f"\nseed {one.seed} ({one.case}), made smaller by {shrinker.runs} runs: {smallest.violation}")
    print(f"  kinds of faults: {', '.join(kind for kind in FAULTS if kind not in shrinker.options.off) or 'none'}")
    print(f"  who: {'; '.join(left)}; {shrinker.options.batches or 'all'} batches")
    print(f"  faults: {', '.join(smallest.fired) or 'none'}")
    print("\n".join(f"  {line}" for line in traced.lines))


def section(seeds: list[dict[str, Any]]) -> str:
    """The section of a page: a row for each commit, and the faults of all."""
    rows: list[Row] = []
    for at in dict.fromkeys(one["commit"] for one in seeds):
        own = [one for one in seeds if one["commit"] == at]
        sums: Row = {name: sum(one[name] for one in own) for name in ("commits", "requests")}
        about: Row = {"virtual hours": round(sum(one["virtual_s"] for one in own) / 3600, 1)}
        faults = sum(sum(one["faults"].values()) for one in own)
        broken = sum(one["broken"] is not None for one in own)
        rows.append({"at": at, "seeds": len(own), **sums, **about, "faults": faults, "broken promises": broken})
    counts = sum((Counter(one["faults"]) for one in seeds), Counter[str]())
    kinds = ", ".join(f"{kind} {counts[kind]:,}" for kind in FAULTS if counts[kind])
    return f"{len(seeds):,} seeds:\n\n{markdown(rows)}\nFaults by kind: {kinds}.\n"


if __name__ == "__main__":
    app()
