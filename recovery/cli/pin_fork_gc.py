"""The verbs fork, pin, unpin and gc."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from tidestate.recovery.cli.app import DRY, AsJson, Confirm, RootPath, verbs
from tidestate.recovery.cli.completion import checkpoint_ids, pin_names
from tidestate.recovery.cli.options import AtOption
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.recovery.moves.fork import fork
from tidestate.recovery.retention.collection import Collected, execute_collection, plan_collection
from tidestate.recovery.retention.rules import retain
from tidestate.statestore.durations import text_of


@verbs.command("fork", epilog="Example: tidestate fork /data/flights /data/flights-try --at 42")
def fork_checkpoint(
    root: RootPath,
    destination: Annotated[str, typer.Argument(help="A new or empty folder.")],
    at: AtOption = None,
    as_json: AsJson = False,
) -> None:
    """Make a new job that goes on from a checkpoint of this one, which may be running. No state is copied: the new
    job reads the files where they are, and a pin keeps them.
    """
    with bar() as progress:
        made = fork(root, destination, at, progress)
    if as_json:
        print_json(asdict(made))
        return
    table = key_value_table()
    table.add_row("forked", f"checkpoint {made.checkpoint_id} into {made.root}")
    table.add_row("job", made.job_id)
    table.add_row("shares", f"{pluralize(made.files, 'file')}, {size_text(made.bytes)}")
    table.add_row("pin", f"{made.pin}, in {root}")
    print_out(table)


@verbs.command("pin", epilog='Example: tidestate pin /data/flights 42 --name release --note "before the upgrade"')
def pin_checkpoint(
    root: RootPath,
    checkpoint_id: Annotated[
        int,
        typer.Argument(metavar="ID", help="The checkpoint.", show_default=False, autocompletion=checkpoint_ids),
    ],
    name: Annotated[str, typer.Option("--name", help="The name of the pin; by default a random one.")] = "",
    note: Annotated[str, typer.Option("--note", help="Why it is kept.")] = "",
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint until it is unpinned, whatever gc deletes."""
    made = pin(Checkpoint.open(root), checkpoint_id, name, note=note)
    if as_json:
        print_json({"name": made.name, "checkpoint": made.checkpoint, "note": made.note})
        return
    print_out(Text(f"pinned checkpoint {made.checkpoint} as {made.name}"))


@verbs.command("unpin", epilog="Example: tidestate unpin /data/flights release")
def unpin_checkpoint(
    root: RootPath,
    name: Annotated[
        str,
        typer.Argument(help="The name of the pin, from list.", show_default=False, autocompletion=pin_names),
    ],
    force: Annotated[bool, typer.Option("--force", help="Do it although a forked job needs it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a pin: gc may delete the checkpoint again."""
    removed = unpin(Checkpoint.open(root), name, force=force)
    if as_json:
        print_json({"name": removed.name, "checkpoint": removed.checkpoint, "fork": removed.fork or None})
        return
    print_out(Text(f"removed pin {removed.name} of checkpoint {removed.checkpoint}"))


@verbs.command("gc", epilog='Example: tidestate gc /data/flights --keep 100 --age "7 days" --confirm')
def collect_checkpoints(
    root: RootPath,
    keep: Annotated[int | None, typer.Option(metavar="COUNT", help="Keep this many of the newest.")] = None,
    age: Annotated[str | None, typer.Option(metavar="SPAN", help="Keep those younger than this.")] = None,
    grace: Annotated[
        str, typer.Option(metavar="SPAN", help="Keep those that were the newest in this span.")
    ] = "1 hour",
    output_age: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Delete older panes and ledgers; by default they stay.")
    ] = None,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints and the files that no other checkpoint needs. The job may be running.

    A checkpoint stays if --keep or --age covers it or it is pinned. Panes and ledgers stay unless --output-age is
    set.
    """
    retention = retain(keep, age, panes=output_age, grace=grace)
    with bar() as progress:
        checkpoint = Checkpoint.open(root, progress)
        planned = plan_collection(checkpoint, retention)
        found = execute_collection(checkpoint, planned) if confirm else planned.result
    _print(found, as_json, done=confirm, grace=text_of(retention.grace_us))


def _print(found: Collected, as_json: bool, *, done: bool, grace: str) -> None:
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
    if found.within_grace:
        young = pluralize(found.within_grace, "checkpoint")
        table.add_row("", f"{young} only because of --grace: the newest within {grace} stay for who reads them")
    for what, gone in (("panes", found.panes_gone), ("ledgers", found.late_gone)):
        if gone:
            table.add_row("", f"{what} of checkpoints above {gone} only")
    if found.unacknowledged:
        table.add_row("", f"{found.unacknowledged:,} old files of panes and late rows that no sink has acknowledged")
    for root in found.freed:
        table.add_row("unpinned" if done else "to unpin", f"{root}: none of its files is needed any more")
    print_out(table, *([] if done else [DRY]))


def _pinned(found: Collected) -> str:
    ids = ", ".join(map(str, found.pinned))
    return f", pinned: {ids}" if ids else ""
