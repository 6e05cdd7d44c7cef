"""The verb bootstrap.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Confirm
from tidestate.recovery.cli.options import ColumnsOfFiles, NewRoot, PartitionsOption, StreamFiles, in_options
from tidestate.recovery.cli.progress_bar import Bar, bar

bootstrap_command = typer.Typer(add_completion=False)


@bootstrap_command.command(
    "bootstrap",
    short_help="Create a root from files of past events.",
    epilog="Example: tidestate bootstrap flights:job /data/flights --input history/ --confirm",
)
def bootstrap_root(
    job: Annotated[str, typer.Argument(metavar="MODULE:JOB", help="The job, or a function that returns it.")],
    root: NewRoot,
    files: Annotated[
        list[str] | None, typer.Option("--input", metavar="FILES", help="A file, folder or pattern. Repeatable.")
    ] = None,
    stream_files: StreamFiles = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The offsets from which Spark continues; of several streams, by name."),
    ] = None,
    schema: ColumnsOfFiles = None,
    partitions: PartitionsOption = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Create the root for the standalone runner, not for Spark.")
    ] = False,
    no_deliver: Annotated[
        bool, typer.Option("--no-deliver", help="Record the panes without delivering them to sinks.")
    ] = False,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Create a new root with the state that results from files of past events.

    The files are Parquet, CSV, JSON or Arrow files on this host, and are read in one process, without Spark. The
    Spark query then reads all other files, or continues from the given offsets.
    """
    from tidestate.operators.local.bootstrap import load_job, named_files
    from tidestate.operators.root.past_files import BootstrapPlan
    from tidestate.recovery.cli.plans import print_done, print_plan

    graph = load_job(job).graph
    streams = graph.stored(named_files(graph.streams, files or [], stream_files or []))
    with in_options(schema="--schema"):
        with bar() as progress:
            plan = BootstrapPlan.of(
                graph.description,
                root,
                streams,
                offsets,
                schema,
                partitions,
                standalone=standalone,
                deliver=not no_deliver,
                on_rows=_counted(progress, None),
            )
        if not confirm:
            print_plan(plan, as_json)
            return
        with bar() as progress:
            plan = plan.execute(_counted(progress, plan.rows))
    print_done(plan, as_json)


def _counted(progress: Bar, total: int | None) -> Callable[[int], None]:
    """A callback that adds numbers of rows to a bar."""
    count = 0

    def read(rows: int) -> None:
        nonlocal count
        count += rows
        progress("rows", count, total)

    return read
