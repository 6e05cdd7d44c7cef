"""``python -m tests.conformance [--store NAME] [--only ID] PATH...``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tests.conformance.bench import Bench
from tests.conformance.case import Case, CaseError, load
from tests.conformance.harness import STORES, folder
from tests.conformance.report import lines_of, skipped, summary
from tests.conformance.run import Result, run

EXIT_FAILED, EXIT_USAGE = 1, 2
StoreName = Enum("StoreName", {name: name for name in STORES}, type=str)  # type: ignore[misc]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m tests.conformance --store rocksdb tests/conformance/cases")
def main(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders of cases.", exists=True)],
    store: Annotated[StoreName, typer.Option(help="The store to keep windows in.")] = StoreName("memory"),  # noqa: B008  immutable
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this case; may be repeated.")] = None,
) -> None:
    """Run conformance cases: each failure, the features skipped, and how many passed, failed and were skipped."""
    warnings.simplefilter("ignore", UserWarning)  # a case knows what it asks
    try:
        cases = [case for _, found in load(paths) for case in found]
        cases = _chosen(cases, only or [])
        results = list(run_all(cases, store.value))
    except CaseError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE) from None
    for line in skipped(results):
        print(line)
    print(summary(results))
    if any(result.status == "failed" for result in results):
        raise typer.Exit(EXIT_FAILED)


def _chosen(cases: list[Case], only: list[str]) -> list[Case]:
    missing = sorted(set(only) - {case.id for case in cases})
    if missing:
        raise CaseError(f"no case is called {', '.join(missing)}")
    return [case for case in cases if not only or case.id in only]


def run_all(cases: list[Case], store: str) -> Iterable[Result]:
    """Every case on a store of its own; failures are printed as they come."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for case in progress.track(cases, description=f"on {store}"):
            with folder() as room:
                result = run(case, Bench(STORES[store](), room))
            for failure in result.failures:
                for line in lines_of(failure):
                    print(line)
            yield result


if __name__ == "__main__":
    app(prog_name="python -m tests.conformance")
