"""The verb withdraw.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidestate.recovery.cli.app import AsJson, Confirm, RootPath
from tidestate.recovery.cli.progress_bar import bar

withdraw_command = typer.Typer(add_completion=False)


@withdraw_command.command(
    "withdraw",
    short_help="Remove what a target has of abandoned checkpoints.",
    epilog="Example: tidestate withdraw /data/flights flights:sink --confirm",
)
def withdraw(
    root: RootPath,
    sink: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:SINK", help="A sink as the job has it, or a function that makes it; or FILE.py:SINK."
        ),
    ],
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Remove what the target of a sink has of checkpoints that a rewind or a repair has abandoned.

    In a folder of Parquet files those of abandoned checkpoints go. In tables of Delta, Iceberg and PostgreSQL, with
    append or changelog, their rows go in one transaction: the sink needs delivery_column=. An upsert and messages of
    Kafka are refused, with what to do instead. The job must not run.
    """
    from tidestate.operators.sinks.withdrawal import WithdrawalPlan
    from tidestate.recovery.cli.plans import print_plan
    from tidestate.recovery.log.checkpoint import Checkpoint

    target = _sink(sink)
    with bar() as progress:
        plan = WithdrawalPlan.of(Checkpoint.open(root, progress), target)
        plan = plan.execute() if confirm else plan
    print_plan(plan, as_json)


def _sink(name: str) -> Any:
    """The sink of this name, or what a function of this name makes."""
    from tidestate.operators.local.bootstrap import load_object
    from tidestate.operators.sinks.included import IncludedSink
    from tidestate.statestore.errors import UsageError

    given = load_object(name)
    if isinstance(given, IncludedSink) or not callable(given):
        return given
    try:
        return given()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"this makes no sink ({type(error).__name__}: {error}): give a sink, or a function without arguments",
            code="withdraw-sink",
            found=name,
        ) from None
