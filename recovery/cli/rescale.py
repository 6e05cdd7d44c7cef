"""The verb rescale."""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import DRY, AsJson, Confirm, Force, RootPath, verbs
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.rescale import Rescaled, execute_rescale, plan_rescale

RESCALE_FIELDS = ("id", "before", "partitions", "operators", "files", "shared")


@verbs.command("rescale", epilog="Example: tidestate rescale /data/flights --partitions 16 --confirm")
def rescale_root(
    root: RootPath,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", help="The new number, for each operator.", show_default=False)
    ],
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Change the number of state partitions of a job, from its next start on. No data is read or written.

    A checkpoint is appended in which each partition takes over the files with keys in its range of hashes. Several
    partitions share such a file until folding has replaced it.
    """
    checkpoint = Checkpoint.open(root)
    planned = plan_rescale(checkpoint, partitions)
    if confirm:
        execute_rescale(checkpoint, planned, force=force)
    if as_json:
        print_json({"done": confirm, **{name: getattr(planned, name) for name in RESCALE_FIELDS}})
    else:
        _print(planned, done=confirm)


def _print(planned: Rescaled, *, done: bool) -> None:
    table = key_value_table()
    table.add_row("rescaled" if done else "to rescale", f"{planned.before:,} to {planned.partitions:,} partitions")
    table.add_row("operators", ", ".join(planned.operators))
    table.add_row("checkpoint", str(planned.id))
    table.add_row("files", f"{planned.files:,}, of which {planned.shared:,} are shared until they are folded")
    print_out(table, *([] if done else [DRY]))
