"""Mutants, listed or tried by the tests: ``python -m tools.mutants list|run``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools.bench.table import Row, as_json, commit, insert
from tools.mutants.mutant import Mutant, every, layers
from tools.mutants.trial import Trial, Tried

LIMIT_S = 120
PAGE = "mutants.md"
app = typer.Typer(help="Faults in a copy of the sources, each of which one test must notice.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@app.command("list")
def list_mutants(json: Json = False) -> None:
    """All mutants: what each breaks, and the test that must notice it."""
    rows = [_row(one) for one in every()]
    if json:
        print("\n".join(map(as_json, rows)))
    else:
        _show(rows, ("name", "breaks", "catcher"))


@app.command()
def run(
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="One mutant; may be repeated.")] = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="SECONDS", help="How long one test may take.")] = LIMIT_S,
    draw: Annotated[Path | None, typer.Option(help=f"Put the result into {PAGE} of this folder.")] = None,
) -> None:
    """Try them, one after the other. Ends with 1 unless each was caught."""
    known = {one.name: one for one in every()}
    if unknown := sorted(set(only or ()) - known.keys()):
        raise typer.BadParameter(f"no such mutant: {', '.join(unknown)}; list names them")
    if draw is not None and only:
        raise typer.BadParameter("a page has the result of all mutants")
    at, found = commit(), try_each([known[name] for name in only or known], limit)
    rows = [{**_row(one.mutant), "verdict": one.verdict, "seconds": round(one.seconds, 1)} for one in found]
    caught = sum(one.verdict == "caught" for one in found)
    if draw is not None:
        insert(draw / PAGE, "mutants", _section(at, caught, {one.mutant.name: one for one in found}))
    if json:
        print("\n".join(as_json({**row, "commit": at}) for row in rows))
    else:
        _show(rows, ("name", "verdict", "seconds", "catcher"))
        print(f"{caught} of {len(found)} caught")
    if caught < len(found):
        sys.exit(1)


def try_each(mutants: Sequence[Mutant], limit_s: int) -> list[Tried]:
    """What becomes of each, in order."""
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="tidestate-mutants-") as folder,
        Trial(Path(folder), limit_s) as trial,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("all catchers, without a mutant", total=len(mutants))
        found = {one.mutant.name: one for one in trial.unchanged(mutants)}
        for one in mutants:
            progress.update(bar, description=one.name)
            if one.name not in found:
                found[one.name] = trial.tried(one)
            progress.advance(bar)
    return [found[one.name] for one in mutants]


def _row(one: Mutant) -> Row:
    return {"name": one.name, "breaks": one.breaks, "file": one.file, "catcher": one.catcher}


def _show(rows: Sequence[Row], headings: Sequence[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(row[heading]) for heading in headings))
    Console(width=None if Console().is_terminal else 200).print(table, markup=False)


def _section(at: str, caught: int, found: dict[str, Tried]) -> str:
    """The section of a page: the figure, and each mutant with its catcher."""
    lines = [f"Commit {at}: {caught} of {len(found)} caught.", ""]
    lines += ["| mutant | what it breaks | caught by |", "|---|---|---|"]
    for layer, mutants in layers().items():
        heading = layer.partition("-")[2].replace("-", " ")
        lines.append(f"| **{heading}** | | |")
        for one in mutants:
            verdict = found[one.name].verdict
            caught_by = f"`{one.test}`" if verdict == "caught" else f"**{verdict}**"
            lines.append(f"| {one.name} | {one.breaks} | {caught_by} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app()
