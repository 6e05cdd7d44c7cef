"""Verbs that say what is kept: forks, pins, retention."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, Confirm, Root, verbs
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.recovery.moves.fork import fork
from tidestate.recovery.retention.collection import Collected, execute_collection, plan_collection
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.durations import span_us


@verbs.command("fork", epilog="Example: tidestate fork /data/flights /data/flights-try --at 42")
def fork_checkpoint(
    root: Root,
    destination: Annotated[str, typer.Argument(help="An empty folder, or one that is not there.")],
    at: Annotated[int | None, typer.Option(metavar="ID", help="Which checkpoint; the newest by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """A new job that goes on from a checkpoint of this one, which may be running. No state is copied: the new job
    reads the files where they are, and a pin keeps them.
    """
    with bar() as seen:
        made = fork(root, destination, at, seen)
    if as_json:
        print_json(asdict(made))
        return
    table = key_value_table()
    table.add_row("forked", f"checkpoint {made.checkpoint_id} into {made.root}")
    table.add_row("job", made.job_id)
    table.add_row("reads", f"{pluralize(made.files, 'file')}, {size_text(made.bytes)}, where they are")
    table.add_row("pin", f"{made.pin}, in {root}")
    print_out(table)


@verbs.command("pin", epilog='Example: tidestate pin /data/flights 42 --name release --note "before the upgrade"')
def pin_checkpoint(
    root: Root,
    checkpoint_id: Annotated[int, typer.Argument(metavar="ID", help="Which checkpoint.", show_default=False)],
    name: Annotated[str, typer.Option("--name", help="By which to unpin it; made up by default.")] = "",
    note: Annotated[str, typer.Option("--note", help="Why.")] = "",
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint, whatever is collected, until it is unpinned."""
    made = pin(Checkpoint.open(root), checkpoint_id, name, note=note)
    if as_json:
        print_json({"name": made.name, "checkpoint": made.checkpoint, "note": made.note})
        return
    print_out(Text(f"pinned checkpoint {made.checkpoint} as {made.name}"))


@verbs.command("unpin", epilog="Example: tidestate unpin /data/flights release")
def unpin_checkpoint(
    root: Root,
    name: Annotated[str, typer.Argument(help="The pin, as list shows it.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Though a forked job needs it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint no longer than others of its age."""
    taken = unpin(Checkpoint.open(root), name, force=force)
    if as_json:
        print_json({"name": taken.name, "checkpoint": taken.checkpoint, "fork": taken.fork or None})
        return
    print_out(Text(f"checkpoint {taken.checkpoint} is not pinned as {taken.name} any more"))


@verbs.command("gc", epilog='Example: tidestate gc /data/flights --keep 100 --age "7 days" --confirm')
def collect_checkpoints(
    root: Root,
    keep: Annotated[int | None, typer.Option(metavar="COUNT", help="Keep the newest so many checkpoints.")] = None,
    age: Annotated[str | None, typer.Option(metavar="SPAN", help="Keep what is younger.")] = None,
    grace: Annotated[str, typer.Option(metavar="SPAN", help="Keep what was the newest so lately.")] = "1 hour",
    output_age: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Delete panes and ledgers that are older; kept for ever by default."),
    ] = None,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints and the files that no other one needs. The job may be running.

    What --keep or --age keeps is kept, and pinned checkpoints are. Panes and ledgers of checkpoints that go stay.
    """
    retention = _retention(keep, age, grace, output_age)
    with bar() as seen:
        checkpoint = Checkpoint.open(root, seen)
        planned = plan_collection(checkpoint, retention)
        found = execute_collection(checkpoint, planned) if confirm else planned.shown
    _print(found, as_json, done=confirm)


def _retention(keep: int | None, age: str | None, grace: str, output_age: str | None) -> CheckpointRetention:
    return CheckpointRetention(
        keep=keep,
        age_us=span_us(age) if age is not None else None,
        grace_us=span_us(grace),
        output_age_us=span_us(output_age) if output_age is not None else None,
    )


def _print(found: Collected, as_json: bool, *, done: bool) -> None:
    if as_json:
        print_json({**asdict(found), "done": done})
        return
    table = key_value_table()
    count = len(found.checkpoints)
    table.add_row(
        "deleted" if done else "to delete",
        f"{pluralize(count, 'checkpoint')}, up to {found.boundary}" if count else "no checkpoint",
    )
    table.add_row("", f"{pluralize(len(found.files), 'file')}, {size_text(found.bytes)}")
    table.add_row("kept" if done else "to keep", pluralize(found.kept, "checkpoint") + _pinned(found))
    for what, gone in (("panes", found.panes_gone), ("ledgers", found.late_gone)):
        if gone:
            table.add_row("", f"no {what} of checkpoints up to {gone}")
    if found.unacknowledged:
        table.add_row("", f"{found.unacknowledged:,} old pane files, for no sink has acknowledged them")
    for root in found.freed:
        table.add_row("released" if done else "to release", f"the pin in {root}: no file of it is needed any more")
    print_out(table, *([] if done else [Text("nothing was changed: --confirm deletes", style="dim")]))


def _pinned(found: Collected) -> str:
    ids = ", ".join(map(str, found.pinned))
    return f", and as pinned: {ids}" if ids else ""
