"""The verb rescale: another number of state partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Confirm, Force, RootPath, verbs
from tidestate.recovery.cli.options import in_options
from tidestate.recovery.cli.plans import print_plan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.plans import RescalePlan


@verbs.command("rescale", epilog="Example: tidestate rescale /data/flights --partitions 16 --confirm")
def rescale_root(
    root: RootPath,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", metavar="N", help="The new number of partitions of each operator.", show_default=False
        ),
    ],
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Change the number of state partitions of a job, from its next start on. No data is read or written.

    Appends a checkpoint in which each new partition refers to the files with keys in its range of hashes. Partitions
    share such a file until folding replaces it.
    """
    with in_options(force="--force"):
        plan = RescalePlan.of(Checkpoint.open(root), partitions, force=force)
        print_plan(plan.execute() if confirm else plan, as_json)
