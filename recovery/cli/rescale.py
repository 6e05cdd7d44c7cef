"""The verb that divides the state of a job anew."""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import DRY, AsJson, Confirm, Force, Root, verbs
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.rescale import Rescaled, execute_rescale, plan_rescale

RESCALE_FIELDS = ("id", "before", "partitions", "operators", "files", "shared")


@verbs.command("rescale", epilog="Example: tidestate rescale /data/flights --partitions 16 --confirm")
def rescale_root(
    root: Root,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", help="State partitions of each operator.", show_default=False)
    ],
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Give a job another number of state partitions, from its next start on. No data is read or written.

    One checkpoint is appended, in which each partition takes over the files that hold keys of its range of hashes.
    They are read through the new ranges until ordinary folding has made new ones.
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
    table.add_row("rescaled" if done else "would rescale", f"{planned.before:,} to {planned.partitions:,} partitions")
    table.add_row("operators", ", ".join(planned.operators))
    table.add_row("checkpoint", str(planned.id))
    table.add_row("files", f"{planned.files:,}, {planned.shared:,} of them shared until they are folded")
    print_out(table, *([] if done else [DRY]))
