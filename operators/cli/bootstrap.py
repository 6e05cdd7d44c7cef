"""The verb bootstrap.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidestate.recovery.cli.app import DRY, AsJson, Confirm
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out, text
from tidestate.recovery.cli.progress_bar import Bar, bar
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from tidestate.operators.local.bootstrap import Archive, Survey
    from tidestate.recovery.log.manifest import Manifest

bootstrap_command = typer.Typer(add_completion=False)


@bootstrap_command.command(
    "bootstrap",
    short_help="Make a root from files of past events.",
    epilog="Example: tidestate bootstrap flights:job /data/flights --input history/ --confirm",
)
def bootstrap_root(
    job: Annotated[str, typer.Argument(metavar="MODULE:JOB", help="A job, or a function that returns one.")],
    root: Annotated[str, typer.Argument(help="The new folder, the checkpoint= of the job.")],
    files: Annotated[
        list[str] | None, typer.Option("--input", metavar="FILES", help="A file, folder or pattern; repeatable.")
    ] = None,
    named: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME=FILES", help="The files of one of several streams.")
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The offsets from which Spark goes on; for several streams, by name."),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help='Their columns, for Spark: "t timestamp, k string".')
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="State partitions; by default one for each core.")
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="For the standalone runner, not for Spark.")
    ] = False,
    undelivered: Annotated[
        bool, typer.Option("--no-deliver", help="Record the panes without delivering them.")
    ] = False,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Make a new root with the state that results from files of past events.

    The files are Parquet, CSV, JSON or Arrow on this host, and are read in one process, without Spark. Spark's query
    then reads all other files, or goes on from the given offsets.
    """
    from tidestate.operators.local.bootstrap import load_description

    archive = _archive(load_description(job), files or [], named or [], schema)
    chosen = _offsets(offsets, list(archive.streams))
    with bar() as progress:
        found = archive.survey(_counted(progress, None))
    total = sum(one.rows for one in found.values())
    if not confirm:
        _print_plan(root, found, chosen, standalone, as_json)
        return
    with bar() as progress:
        manifest = archive.bootstrap(
            root,
            offsets=chosen,
            standalone=standalone,
            partitions=partitions or os.cpu_count() or 1,
            deliver=not undelivered,
            on_rows=_counted(progress, total),
        )
    _print_done(root, manifest, as_json)


def _counted(drawn: Bar, total: int | None) -> Callable[[int], None]:
    """A callback that adds numbers of rows to a bar."""
    done = 0

    def read(rows: int) -> None:
        nonlocal done
        done += rows
        drawn("rows", done, total)

    return read


def _archive(description: Any, files: list[str], named: list[str], schema: str | None) -> Archive:
    from tidestate.operators.local.bootstrap import Archive, named_files
    from tidestate.operators.local.history_files import HistoryFiles, schema_of

    given = named_files(description, files, named)
    columns = schema_of(schema) if schema else None
    return Archive.of(description, {name: HistoryFiles.find(paths, columns) for name, paths in given.items()})


def _offsets(given: str | None, streams: list[str]) -> dict[str, Any] | None:
    """The given offsets, by stream."""
    if given is None or len(streams) == 1:
        return None if given is None else {streams[0]: given}
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("offsets of several streams are JSON by their names", code="bootstrap-offsets", found=given)
    return found


def _print_plan(
    root: str, found: dict[str, Survey], offsets: dict[str, Any] | None, standalone: bool, as_json: bool
) -> None:
    if as_json:
        print_json({"root": root, "streams": {name: asdict(one) for name, one in found.items()}, "done": False})
        return
    from tidestate.recovery.log.summary import pluralize, time_text

    table = key_value_table()
    table.add_row("to create", root)
    for name, one in found.items():
        table.add_row(f"stream {name}", f"{pluralize(one.files, 'file')}, {pluralize(one.rows, 'row')}")
        if one.first_us is not None:
            table.add_row("event times", f"{time_text(one.first_us)} to {time_text(one.last_us)}")
        table.add_row("columns", ", ".join(one.columns))
        if not standalone:
            after = (offsets or {}).get(name)
            table.add_row("spark goes on", "from all other files" if after is None else f"from {after}")
    print_out(table, DRY)


def _print_done(root: str, manifest: Manifest, as_json: bool) -> None:
    from tidestate.recovery.log.summary import brief, size_text

    row = brief(manifest)
    if as_json:
        print_json({"root": root, "done": True, **row})
        return
    table = key_value_table()
    table.add_row("bootstrapped", f"{root}, checkpoint {manifest.id}")
    table.add_row("events", f"{row['events']:,}, of which {row['rejected']:,} were rejected")
    table.add_row("panes", f"{row['panes']:,}")
    table.add_row("watermark", text(row["watermark"]))
    table.add_row("state", size_text(row["state_bytes"]))
    print_out(table)
