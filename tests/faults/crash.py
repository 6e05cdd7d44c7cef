"""``python -m tests.faults.crash run``: die at every call of whole jobs, recover, compare."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.faults.places import PLACES
from tests.faults.scenarios import SCENARIOS
from tests.faults.trial import Every, Tried, Unit, tried, units
from tests.faults.world import STORES
from tools.bench.table import Row, as_json, commit, insert, markdown, show

PAGE = "RELIABILITY.md"
app = typer.Typer(help="Deaths at every call of whole jobs, and the recovery from each.", no_args_is_help=True)


@app.command("list")
def list_scenarios() -> None:
    """The scenarios."""
    print("\n".join(SCENARIOS))


@app.command()
def run(
    scenario: Annotated[list[str] | None, typer.Option(help="One scenario; may be repeated.")] = None,
    store: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(STORES)}; may be repeated.")] = None,
    place: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PLACES)}; may be repeated.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Of each kind of call every so many, with one image each.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="How many run at a time.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for each run as it ends.")] = False,
    draw: Annotated[Path | None, typer.Option(help=f"Put the result into {PAGE} of this folder.")] = None,
) -> None:
    """Run them, and recover from each death. Ends with 1 if an answer is wrong."""
    for given, known in ((scenario, SCENARIOS), (store, STORES), (place, PLACES)):
        if unknown := sorted(set(given or ()) - set(known)):
            raise typer.BadParameter(f"not known: {', '.join(unknown)}; there are {', '.join(known)}")
    at, found = commit(), list[Tried]()
    for one in try_each(units(scenario or (), store or (), place or ()), every, processes):
        found.append(one)
        if json:
            print(as_json({**asdict(one.unit), **_figures([one]), "every": every, "commit": at}), flush=True)
    rows = table(found)
    if draw is not None:
        insert(draw / PAGE, "crash", section(at, every, rows))
    if not json:
        show(rows)
    wrong = [line for one in found for line in one.wrong]
    for line in wrong:
        print(line[:2000], file=sys.stderr)
    if wrong:
        sys.exit(1)


def try_each(wanted: Sequence[Unit], every: int, processes: int) -> Iterator[Tried]:
    """What came of each, as they end."""
    columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("scenarios, stores and places", total=len(wanted))
        if processes == 1:
            for unit in wanted:
                inner = progress.add_task(str(unit), total=None)
                advance = lambda done, of, task=inner: progress.update(task, completed=done, total=of)  # noqa: E731
                yield tried(unit, Every(every, str(unit)), advance)
                progress.remove_task(inner)
                progress.advance(bar)
            return
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            for done in as_completed([pool.submit(tried, unit, Every(every, str(unit))) for unit in wanted]):
                progress.update(bar, advance=1, description=str(done.result().unit))
                yield done.result()


def table(found: Sequence[Tried]) -> list[Row]:
    """A row for each scenario, over all stores and places, and one for all."""
    rows: list[Row] = []
    for name in (*(name for name in SCENARIOS if any(one.unit.scenario == name for one in found)), "all"):
        own = [one for one in found if name in ("all", one.unit.scenario)]
        rows.append({"name": name, "runs": len(own), **_figures(own)})
    return rows


def _figures(found: Sequence[Tried]) -> Row:
    return {
        "calls": sum(one.calls for one in found),
        "crash points": sum(one.points for one in found),
        "recovered": sum(one.recovered for one in found),
        "twice": sum(one.twice for one in found),
        "wrong": sum(len(one.wrong) for one in found),
    }


def section(at: str, every: int, rows: Sequence[Row]) -> str:
    """The section of a page."""
    *_, whole = rows
    which = "each call" if every == 1 else f"every {every}th call of each kind"
    return (
        f"Commit {at}: {whole['crash points']:,} crash points, {which}; {whole['recovered']:,} different images "
        f"recovered, {whole['twice']:,} of them twice; {whole['wrong']} wrong answers.\n\n{markdown(rows)}"
    )


if __name__ == "__main__":
    app()
