"""The verb plan. The list of verbs loads this module, so slow imports are inside functions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

import typer
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, RootPath
from tidestate.recovery.cli.options import JobName, in_options
from tidestate.recovery.cli.printing import print_json, print_out

plan_command = typer.Typer(add_completion=False)
EXIT_REFUSED = 1


class DroppedChoice(Enum):
    """The choices of `Policy.dropped`, as an option has them."""

    ask = "ask"
    refuse = "refuse"
    accept = "accept"


@plan_command.command(
    "plan",
    short_help="Print what a start of a job would change, and whether it would start.",
    epilog="Example: tidestate plan /data/flights flights:job",
)
def plan_job(
    root: RootPath,
    job: JobName,
    files: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="FILES", help="Files that have the columns of the input. Repeatable."),
    ] = None,
    stream_files: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME=FILES", help="Such files of this stream, if there are several."),
    ] = None,
    dropped: Annotated[
        DroppedChoice, typer.Option(help="What a start does with values that it would lose, as Policy(dropped=…).")
    ] = DroppedChoice.ask,
    time_zone: Annotated[
        str | None,
        typer.Option("--time-zone", metavar="NAME", help="The time zone of times in files that have none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a start of the job would change in the root, what it would drop, and why it would fail. Nothing is
    changed, and the job may be running.

    The input is assumed to have the types that it had at the newest checkpoint; if the job reads more columns than it
    did then, name files that have them with --input or --stream. Exit codes: 1 if the job would not start, 5 if it
    does not fit its input, 3 if the root cannot be read.
    """
    from tidestate.operators.local.bootstrap import load_job
    from tidestate.recovery.start.policy import Policy

    stream = load_job(job)
    schemas = _schemas(stream.graph.streams, files or [], stream_files or [])
    with in_options(schema="--input or --stream", time_zone="--time-zone"):
        plan = stream.plan(root, schema=schemas, policy=Policy(dropped=dropped.value), time_zone=time_zone)
    if as_json:
        print_json(plan.as_dict())
    else:
        print_out(*map(Text, plan.lines()))
    if not plan.starts:
        raise typer.Exit(EXIT_REFUSED)


def _schemas(streams: Sequence[str], files: list[str], stream_files: list[str]) -> Any:
    """The columns of the files, by stream where there are several; None without files."""
    if not files and not stream_files:
        return None
    from tidestate.operators.local.bootstrap import named_files
    from tidestate.operators.local.history_files import HistoryFiles

    return {
        name: HistoryFiles.find(paths).schema for name, paths in named_files(streams, files, stream_files).items()
    }
