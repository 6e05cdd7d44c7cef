"""The command ``tidemark``: look into checkpoints, from any machine, without Java or Spark."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from recovery.checkpoint import Checkpoint
from recovery.fork import fork
from recovery.manifest import Manifest, OperatorState
from recovery.summary import brief, full, partitions, progress, size_text, time_text
from statestore.errors import DataError, NotFoundError, TidemarkError

app = typer.Typer(
    help="Durable window state for PySpark: look into checkpoints, and fork them. Nothing here changes them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

EXIT_DATA, EXIT_NOT_FOUND, EXIT_OTHER = 3, 4, 5

Root = Annotated[str, typer.Argument(help="The folder that the job was given as checkpoint=.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.callback()
def _commands() -> None:
    """Keep the verbs verbs, however few there are."""


@app.command("list", epilog="Example: tidemark list /data/flights --last 10")
def list_checkpoints(
    root: Root,
    last: Annotated[int, typer.Option(min=1, help="Only the newest so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The newest checkpoints, oldest first: watermark, events, panes, rejected events, size of the state."""
    checkpoint = Checkpoint.open(root)
    ids = checkpoint.ids()
    rows = [brief(checkpoint.read(number).manifest) for number in ids[-last:]]
    if as_json:
        _print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("id", "kind", "batch"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    table.add_column("watermark (UTC)")
    for heading in ("events", "panes", "rejected", "state"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["id"]),
            row["kind"],
            _text(row["spark_batch"]),
            _text(row["watermark"]).split(".")[0],
            f"{row['events']:,}",
            f"{row['panes']:,}",
            f"{row['rejected']:,}",
            size_text(row["state_bytes"]),
        )
    older = len(ids) - len(rows)
    _emit(table, *([f"[dim]{older} older ones; --last {len(ids)} shows all[/dim]"] if older else []))


@app.command(epilog="Example: tidemark show /data/flights 42 --json")
def show(
    root: Root,
    checkpoint_id: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", help="Which checkpoint; the newest by default.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """One checkpoint: position in the input, watermark, operators, state partitions, files, counters."""
    checkpoint = Checkpoint.open(root)
    if checkpoint_id is None:
        head = checkpoint.head()
        if head is None:
            raise NotFoundError(
                "this root has no checkpoint yet: start the job", code="no-such-checkpoint", root=root
            )
    else:
        head = checkpoint.read(checkpoint_id)
    if as_json:
        _print_json(full(head.manifest))
        return
    parts: list[RenderableType] = [_facts(head.manifest)]
    if head.manifest.progress:
        parts += ["\n[bold]sources[/bold]", _sources(head.manifest)]
    for name, operator in head.manifest.operators.items():
        parts += [f"\n[bold]operator {name}[/bold]", _configuration(operator), _partitions(operator)]
    if head.manifest.totals:
        parts += ["\n[bold]counters[/bold]", _counters(head.manifest)]
    _emit(*parts)


@app.command("fork", epilog="Example: tidemark fork /data/flights /data/flights-try --at 42")
def fork_checkpoint(
    root: Root,
    destination: Annotated[str, typer.Argument(help="An empty folder, or one that is not there.")],
    at: Annotated[int | None, typer.Option(metavar="ID", help="Which checkpoint; the newest by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """A new job that goes on from a checkpoint of this one, which may be running and is not changed."""
    made = fork(root, destination, at)
    if as_json:
        _print_json(asdict(made))
        return
    table = _pairs()
    table.add_row("forked", f"checkpoint {made.checkpoint_id} into {made.root}")
    table.add_row("job", made.job_id)
    table.add_row("copied", f"{made.files:,} files, {size_text(made.bytes)}")
    _emit(table)


def _facts(manifest: Manifest) -> Table:
    table = _pairs()
    kind = "drained (takes no new input)" if manifest.drained else manifest.kind
    table.add_row("checkpoint", f"{manifest.id}  ({kind}, writer epoch {manifest.epoch})")
    table.add_row("created", f"{time_text(manifest.created_us)} UTC")
    before, after = time_text(manifest.watermark_before_us), time_text(manifest.watermark_us)
    table.add_row("watermark", f"{_text(after)}  (before: {_text(before)})")
    table.add_row("processing time", _text(time_text(manifest.processing_us)))
    if manifest.spark:
        table.add_row("spark batch", str(manifest.spark.batch_id))
        for source, offset in enumerate(manifest.spark.end):
            table.add_row(f"source {source} read to", offset)
    if manifest.input:
        table.add_row("input", f"{manifest.input.batches} batches")
    table.add_row("delivered up to", f"checkpoint {manifest.delivered}")
    table.add_row("job", manifest.job_id)
    for label, refs in (("panes", manifest.panes), ("late ledger", manifest.late)):
        for ref in refs:
            table.add_row(label, f"{ref.path} ({ref.rows:,} rows)")
    return table


def _sources(manifest: Manifest) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("source", "watermark (UTC)", "lag", "standing", "rows"):
        table.add_column(heading, justify="right" if heading in ("lag", "rows") else "left")
    for row in progress(manifest):
        lag = row["lag_seconds"]
        table.add_row(
            row["source"],
            _text(row["watermark"]),
            "-" if lag is None else f"{lag:,.3f} s",
            row["standing"],
            f"{row['rows']:,}",
        )
    return table


def _configuration(operator: OperatorState) -> Table:
    table = _pairs()
    for name, value in operator.configuration.items():
        table.add_row(name.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
    return table


def _partitions(operator: OperatorState) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("partition", "files", "rows", "bytes", "last change", "lineage"):
        table.add_column(heading, justify="right")
    for row in partitions(operator):
        changed = str(row["sequence"]) if row["sequence"] else "-"
        table.add_row(
            str(row["partition"]),
            str(row["files"]),
            f"{row['rows']:,}",
            size_text(row["bytes"]),
            changed,
            _text(row["lineage"]),
        )
    return table


def _counters(manifest: Manifest) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("in this one", justify="right")
    table.add_column("since the start", justify="right")
    for name, total in manifest.totals.items():
        table.add_row(name.replace("_", " "), f"{manifest.counters.get(name, 0):,}", f"{total:,}")
    return table


def _pairs() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _print_json(value: Any) -> None:
    _emit(Text(json.dumps(value, indent=2)))


def _emit(*parts: RenderableType) -> None:
    console = _Console(highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


class _Console(Console):
    """A console whose reader may go away, as `head` does: no error."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0)


def main() -> None:
    """Entry point: run the command and turn errors into one line and an exit code."""
    try:
        app()
    except TidemarkError as error:
        Console(stderr=True, soft_wrap=True).print(f"tidemark: {error}", markup=False, highlight=False)
        sys.exit(_exit_code(error))


def _exit_code(error: TidemarkError) -> int:
    if isinstance(error, DataError):
        return EXIT_DATA
    return EXIT_NOT_FOUND if isinstance(error, NotFoundError) else EXIT_OTHER


if __name__ == "__main__":
    main()
