"""The verbs rewind and repair: they print their plan, and execute it with ``--confirm``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, Confirm, Force, RootPath, verbs
from tidestate.recovery.cli.completion import checkpoint_ids
from tidestate.recovery.cli.options import in_options
from tidestate.recovery.cli.plans import print_plan
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.cli.verify import findings_table
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.reset_plan import ResetPlan
from tidestate.statestore.errors import UsageError


class RepairTarget(StrEnum):
    """The checkpoint that a repair goes back to."""

    newest_good = "newest-good"


@verbs.command("rewind", epilog="Example: tidestate rewind /data/flights --to 2026-01-31T12:00 --confirm")
def rewind_root(
    root: RootPath,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ID/TIME",
            help="A checkpoint, or the newest one at a time.",
            autocompletion=checkpoint_ids,
        ),
    ],
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Go back to an older checkpoint: state, watermark and input position. The next start replays the input after it.

    Appends a checkpoint with the content of the older one; those in between are kept but no longer count. Spark's own
    checkpoint is rewritten to match, and the old one is kept in spark-replaced.
    """
    with in_options(force="--force"):
        with bar() as progress:
            plan = ResetPlan.of_rewind(Checkpoint.open(root, progress), to, force=force)
            plan = plan.execute() if confirm else plan
        print_plan(plan, as_json)


@verbs.command("repair", epilog="Example: tidestate repair /data/flights --to newest-good --confirm")
def repair_root(
    root: RootPath,
    to: Annotated[RepairTarget | None, typer.Option("--to", help="Go back to the newest intact checkpoint.")] = None,
    resync_spark: Annotated[
        bool,
        typer.Option("--resync-spark", help="Rewrite Spark's own checkpoint to match the newest one of this root."),
    ] = False,
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a damaged root usable again: go back to the newest intact checkpoint, or rewrite Spark's own checkpoint.

    Nothing is deleted: damaged checkpoints are kept but no longer count, and the old spark folder is moved to
    spark-replaced. To find an intact checkpoint, every byte that it needs is read.
    """
    if (to is None) == (not resync_spark):
        raise UsageError("choose either --to newest-good or --resync-spark", code="repair-what")
    with in_options(force="--force"):
        with bar() as progress:
            plan = ResetPlan.of_repair(Checkpoint.open(root, progress), resync_spark=resync_spark, force=force)
            plan = plan.execute() if confirm else plan
        print_plan(plan, as_json, findings_table(plan.findings or ()), Text(""))
