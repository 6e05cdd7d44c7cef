"""The verb reprocess.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Confirm, RootPath
from tidestate.recovery.cli.completion import operator_names
from tidestate.recovery.cli.options import in_options
from tidestate.recovery.cli.progress_bar import bar

reprocess_command = typer.Typer(add_completion=False)


@reprocess_command.command(
    "reprocess",
    short_help="Put back late events of the ledger.",
    epilog="Example: tidestate reprocess /data/flights flights:job --confirm",
)
def reprocess(
    root: RootPath,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:JOB]",
            help="The job, or a function that returns it, for a root where none runs; FILE.py:JOB works too.",
            show_default=False,
        ),
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option("--operator", help="The operator. By default all of them.", autocompletion=operator_names),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", help="Their reason in the ledger. By default each that can be put back."),
    ] = None,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Put back late events of the ledger into windows that are retained, each event once: print how many of which
    operator, and with --confirm do it.

    A job that runs is asked by a file in its root, and does it between two batches. Where none runs, this process
    does it, with the job that is given, and the next start goes on from there and delivers the panes.
    """
    from tidestate.operators.local.bootstrap import load_job
    from tidestate.operators.root.reprocessing import ReprocessPlan
    from tidestate.recovery.cli.plans import print_plan
    from tidestate.recovery.log.checkpoint import Checkpoint

    description = None if job is None else load_job(job).graph.description
    with in_options(operator="--operator", reason="--reason"), bar() as progress:
        plan = ReprocessPlan.of(Checkpoint.open(root, progress), description, operator, reason)
        plan = plan.execute() if confirm else plan
    print_plan(plan, as_json)
