"""The verbs fork, pin, unpin and gc."""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Confirm, RootPath, verbs
from tidestate.recovery.cli.completion import checkpoint_ids, pin_names
from tidestate.recovery.cli.options import AtOption, in_options
from tidestate.recovery.cli.plans import print_done, print_plan
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.plans import CollectionPlan, ForkPlan, PinPlan, UnpinPlan
from tidestate.recovery.retention.rules import CheckpointRetention


@verbs.command("fork", epilog="Example: tidestate fork /data/flights /data/flights-try --at 42")
def fork_checkpoint(
    root: RootPath,
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The new root: a new or empty folder.")],
    at: AtOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a new root, whose job continues from a checkpoint of this one. The original job may be running. No state
    is copied: the new job reads the files where they are, and a pin protects them from being deleted.
    """
    with bar() as progress:
        plan = ForkPlan.of(root, destination, at, progress).execute()
    print_done(plan, as_json)


@verbs.command("pin", epilog='Example: tidestate pin /data/flights 42 --name release --note "before the upgrade"')
def pin_checkpoint(
    root: RootPath,
    checkpoint_id: Annotated[
        int,
        typer.Argument(
            metavar="ID", help="The id of the checkpoint.", show_default=False, autocompletion=checkpoint_ids
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="The name of the pin. By default a random one.")] = "",
    note: Annotated[str, typer.Option("--note", help="Why the checkpoint is kept.")] = "",
    as_json: AsJson = False,
) -> None:
    """Protect a checkpoint from gc until it is unpinned."""
    print_done(PinPlan.of(Checkpoint.open(root), checkpoint_id, name, note).execute(), as_json)


@verbs.command("unpin", epilog="Example: tidestate unpin /data/flights release")
def unpin_checkpoint(
    root: RootPath,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The name of the pin, as `tidestate list` prints it.",
            show_default=False,
            autocompletion=pin_names,
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Remove it even if a forked job needs the checkpoint.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a pin, so that gc may delete the checkpoint."""
    with in_options(force="--force"):
        plan = UnpinPlan.of(Checkpoint.open(root), name, force=force)
    print_done(plan.execute(), as_json)


@verbs.command("gc", epilog='Example: tidestate gc /data/flights --newest 100 --age "7 days" --confirm')
def collect_checkpoints(
    root: RootPath,
    newest: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Keep this many of the newest checkpoints.")
    ] = None,
    age: Annotated[str | None, typer.Option(metavar="SPAN", help="Keep checkpoints younger than this.")] = None,
    panes: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Delete panes and late ledgers older than this. By default none."),
    ] = None,
    grace: Annotated[
        str,
        typer.Option(
            metavar="SPAN", help="Keep checkpoints that were the newest within this time, for their readers."
        ),
    ] = "1 hour",
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints, and the files that no other checkpoint needs. The job may be running.

    A checkpoint is kept if --newest or --age covers it, or if it is pinned. Panes and late ledgers are kept unless
    --panes is set.
    """
    retention = CheckpointRetention(newest=newest, age=age, panes=panes, grace=grace)
    with bar() as progress:
        plan = CollectionPlan.of(Checkpoint.open(root, progress), retention)
        plan = plan.execute() if confirm else plan
    print_plan(plan, as_json, grace="--grace")
