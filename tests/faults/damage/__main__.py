"""``python -m tests.faults.damage run``: each file of each root damaged in each way."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.faults.damage.harm import FAULTS
from tests.faults.damage.matrix import FILES, ROOTS, Answers, Case, Chosen, isolated, wrong
from tests.faults.damage.page import NAME, drawn, golden
from tests.faults.damage.subjects import STORES, Store
from tools.bench.table import as_json, commit, insert

PAGE, FIGURES = "damage.md", "damaged-files.md"
app = typer.Typer(help="Damage to every durable file: detected, or without effect.", no_args_is_help=True)


@app.callback()
def _group() -> None: ...


@app.command()
def run(
    root: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(ROOTS)}; may be repeated.")] = None,
    store: Annotated[list[str] | None, typer.Option(help="A store of the starts; by default all.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(FAULTS)}; may be repeated.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="A kind of file, as in the table; may be repeated.")] = None,
    files: Annotated[int, typer.Option(min=0, help="How many files of each kind; 0 for all.")] = FILES,
    first: Annotated[bool, typer.Option("--first", help="One file and form of each kind and fault.")] = False,
    rest: Annotated[int, typer.Option(min=1, help="After it ask one in so many verbs a case, in turn.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a case.")] = False,
    draw: Annotated[
        Path | None, typer.Option(help=f"Put the table into {PAGE} and the figure into {FIGURES} of this folder.")
    ] = None,
) -> None:
    """Damage them, and ask every verb and start. Ends with 1 unless each answer is right or says what is wrong."""
    chosen = Chosen(_known(fault, FAULTS), _known(store, STORES), files, first, 1, rest, tuple(kind or ()))
    roots, at = _known(root, tuple(ROOTS)), commit()
    if draw is not None and (root or store or fault or kind or first):
        raise typer.BadParameter("a page has the result of all cases")
    found: list[tuple[Case, Answers]] = []
    for case, answers in _each(roots, chosen):
        found.append((case, answers))
        if json:
            print(as_json({**case.__dict__, "answers": answers, "commit": at}), flush=True)
        elif failed := wrong(answers):
            print(f"{case}: {failed}", flush=True)
    if draw is not None:
        _draw(draw, at, found)
    if not json:
        _print(found)
    if any(wrong(answers) for _, answers in found):
        sys.exit(1)


@app.command()
def draw(
    docs: Annotated[Path, typer.Argument(help="The folder of the pages.")],
    results: Annotated[list[Path], typer.Argument(help="What `run --json` printed, for each root.")],
) -> None:
    """Put results into the pages, as ``run --draw`` does."""
    lines = [msgspec.json.decode(line) for path in results for line in path.read_bytes().splitlines()]
    found = [(Case(**{field.name: one[field.name] for field in fields(Case)}), one["answers"]) for one in lines]
    _draw(docs, ", ".join(sorted({one["commit"] for one in lines})), found)


def _draw(docs: Path, at: str, found: list[tuple[Case, Answers]]) -> None:
    insert(docs / PAGE, NAME, drawn(golden(found)))
    insert(docs / FIGURES, NAME, _figures(at, found))


def _known(given: list[str] | None, names: tuple[Store, ...] | tuple[str, ...]) -> tuple:  # type: ignore[type-arg]
    if unknown := sorted(set(given or ()) - set(names)):
        raise typer.BadParameter(f"no such name: {', '.join(unknown)}; there are {', '.join(names)}")
    return tuple(one for one in names if not given or one in given)


def _each(roots: tuple[str, ...], chosen: Chosen):  # type: ignore[no-untyped-def]
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in roots:
            bar = progress.add_task(name, total=None)
            for one in isolated(name, chosen):
                if isinstance(one, int):
                    progress.update(bar, total=one)
                else:
                    progress.advance(bar)
                    yield one


def _rows(found: list[tuple[Case, Answers]]) -> list[tuple[str, int, int, int, int]]:
    """By root: cases, answers, errors among them, and wrong ones."""
    cases = Counter(case.root for case, _ in found)
    given: dict[str, Counter[str]] = {name: Counter() for name in cases}
    for case, answers in found:
        given[case.root]["all"] += len(answers)
        given[case.root]["same"] += sum(word == "=" for word in answers.values())
        given[case.root]["wrong"] += len(wrong(answers))
    return [
        (name, cases[name], counts["all"], counts["all"] - counts["same"], counts["wrong"])
        for name, counts in given.items()
    ]


HEADINGS = ("root", "damaged", "answers", "not as before", "silent")


def _print(found: list[tuple[Case, Answers]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "root" else "right")
    for row in _rows(found):
        table.add_row(*(f"{one:,}" if isinstance(one, int) else one for one in row))
    Console().print(table)


def _figures(at: str, found: list[tuple[Case, Answers]]) -> str:
    rows = _rows(found)
    total = ("all", *(sum(row[place] for row in rows) for place in range(1, len(HEADINGS))))  # type: ignore[misc]
    lines = [f"Commit {at}: `python -m tests.faults.damage run --draw docs/internals/reports`.", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", f"|---|{'---:|' * (len(HEADINGS) - 1)}"]
    for name, *counts in [*rows, total]:
        lines.append(f"| {name} | {' | '.join(f'{one:,}' for one in counts)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app()
