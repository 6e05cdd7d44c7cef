"""The verb report: a page of HTML about a root."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, Import, RootPath
from tidestate.recovery.cli.options import ReadData, ReadPercent
from tidestate.recovery.cli.printing import print_json, print_out
from tidestate.recovery.cli.progress_bar import bar

report = typer.Typer(add_completion=False)


@report.command(
    "report",
    cls=ReadData,
    short_help="Write an HTML report about a root.",
    epilog="Example: tidestate report /data/flights --output flights.html --last 200",
)
def write(
    root: RootPath,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    last: Annotated[int, typer.Option("--last", min=1, help="How many of the newest checkpoints to include.")] = 500,
    read_data: ReadPercent = 0.0,
    open_it: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report about a root: damage, progress, watermarks, late events, state, windows.

    The report is a single file that needs no network. It replaces an earlier report, but no other file. Needs the
    extra `report`.
    """
    from tidestate.operators.inspect.report.document import write_report

    with bar() as progress:
        document = write_report(root, output, last=last, read_percent=read_data, on_progress=progress)
    if as_json:
        print_json(asdict(document))
    else:
        print_out(Text(str(document)))
    if open_it:
        webbrowser.open(output.resolve().as_uri())
