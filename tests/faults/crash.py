"""``python -m tests.faults.crash run``: die at every call of whole jobs, recover, compare."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.faults import kept
from tests.faults.places import IMAGES, PLACES
from tests.faults.scenarios import SCENARIOS
from tests.faults.trial import Every, Tried, Unit, tried, units
from tests.faults.world import STORES
from tools.bench.table import Row, commit, insert, markdown, show

PAGE = "crashes.md"
COLUMNS = ("calls", "crash points", "recovered", "twice", "wrong")
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
    image: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(IMAGES)}; may be repeated.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Of each kind of call every so many, with one image each.")] = 1,
    twice: Annotated[int, typer.Option(min=1, help="Of deaths every so many is followed by a power cut.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="How many run at a time.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="A file of lines of JSON: adds what is not there yet.")] = None,
) -> None:
    """Run them, and recover from each death. Ends with 1 if an answer is wrong."""
    for given, known in ((scenario, SCENARIOS), (store, STORES), (place, PLACES), (image, IMAGES)):
        if unknown := sorted(set(given or ()) - set(known)):
            raise typer.BadParameter(f"not known: {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = {"every": every, "images": image or list(IMAGES)}
    had = [{name: one[name] for name in ("scenario", "store", "place", *chosen)} for one in kept.read(keep)]
    wanted = [one for one in units(scenario or (), store or (), place or ()) if {**asdict(one), **chosen} not in had]
    at, found = commit(), list[Row]()
    for one in try_each(wanted, every, tuple(image or IMAGES), twice, processes):
        found.append({**asdict(one.unit), **chosen, **_figures(one), "commit": at})
        kept.add(keep, found[-1])
        for line in one.wrong:
            print(line[:2000], file=sys.stderr)
    show(table(found))
    if any(one["wrong"] for one in found):
        sys.exit(1)


@app.command()
def draw(tried_units: Path, docs: Path) -> None:
    """Put what a file keeps into the page on reliability in this folder."""
    insert(docs / PAGE, "crash", section(kept.read(tried_units)))


def try_each(
    wanted: Sequence[Unit], every: int, images: Sequence[str], twice: int, processes: int
) -> Iterator[Tried]:
    """What came of each, as they end."""
    columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("scenarios, stores and places", total=len(wanted))
        if processes == 1:
            for unit in wanted:
                inner = progress.add_task(str(unit), total=None)
                advance = lambda done, of, task=inner: progress.update(task, completed=done, total=of)  # noqa: E731
                yield tried(unit, Every(every, str(unit), images), advance, twice)
                progress.remove_task(inner)
                progress.advance(bar)
            return
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # each has a core; Arrow reads it at import
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            begun = [pool.submit(tried, unit, Every(every, str(unit), images), twice=twice) for unit in wanted]
            for done in as_completed(begun):
                progress.update(bar, advance=1, description=str(done.result().unit))
                yield done.result()


def _figures(one: Tried) -> Row:
    about = {"calls": one.calls, "crash points": one.points, "recovered": one.recovered, "twice": one.twice}
    return {**about, "wrong": len(one.wrong)}


def table(found: Sequence[Row]) -> list[Row]:
    """A row for each scenario, over all stores and places, and one for all."""
    rows: list[Row] = []
    for name in (*(name for name in SCENARIOS if any(one["scenario"] == name for one in found)), "all"):
        own = [one for one in found if name in ("all", one["scenario"])]
        sums = {column: sum(int(str(one[column])) for one in own) for column in COLUMNS}
        rows.append({"name": name, "runs": len(own), **sums})
    return rows


def section(found: list[dict[str, Any]]) -> str:
    """The section of a page: which calls and images of which stores were tried, and what came of it."""
    *_, whole = rows = table(found)
    parts = Counter[tuple[str, str]]()
    for one in found:
        which = "each call" if one["every"] == 1 else f"every {one['every']}th call of each kind"
        images = "all images" if one["images"] == list(IMAGES) else ", ".join(one["images"])
        parts[f"{one['store']}, {one['place']}", f"{which}, {images}"] += 1
    of_all = len(SCENARIOS)
    tried_of = "".join(
        f"- {where}: {count} of {of_all} scenarios, {what}\n" for (where, what), count in parts.items()
    )
    recovered = f"{whole['recovered']:,} different images recovered, {whole['twice']:,} of them twice"
    sums = f"{whole['crash points']:,} crash points; {recovered}; {whole['wrong']} wrong answers"
    return f"Commit {kept.commits(found)}: {sums}.\n\n{tried_of}\n{markdown(rows)}"


if __name__ == "__main__":
    app()
