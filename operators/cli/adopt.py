"""The verb adopt.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Confirm
from tidestate.recovery.cli.options import NewRoot, PartitionsOption, in_options
from tidestate.statestore.errors import UsageError

adopt_command = typer.Typer(add_completion=False)


@adopt_command.command(
    "adopt",
    short_help="Take over the state of a Spark query.",
    epilog="Example: tidestate adopt /data/old-checkpoint /data/flights jobs:flights --confirm",
)
def adopt_query(
    spark_checkpoint: Annotated[
        str, typer.Argument(metavar="SPARK_CHECKPOINT", help="The checkpointLocation of the stopped query.")
    ],
    root: NewRoot,
    job: Annotated[str, typer.Argument(metavar="MODULE:JOB", help="The job, or a function that returns it.")],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help='The columns of the stream, such as "t timestamp, k string". By default those of the last file.',
        ),
    ] = None,
    buffers: Annotated[
        list[str] | None,
        typer.Option(
            "--buffer", metavar="NAME=NUMBER", help="The first column in Spark's state of this aggregate. Repeatable."
        ),
    ] = None,
    partitions: PartitionsOption = None,
    no_deliver: Annotated[
        bool, typer.Option("--no-deliver", help="Record early panes without delivering them to sinks.")
    ] = False,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Create a new root with the state, watermark and offsets of a Spark query, so that a job continues exactly where
    the query ended.

    The query must be stopped. Its checkpoint is read through Spark (4.0 or later, in a local session) and never
    changed. If something cannot be taken over, this ends with an error before anything is written.
    """
    from tidestate.operators.local.bootstrap import load_job
    from tidestate.operators.root.adoption import AdoptionPlan
    from tidestate.recovery.cli.plans import print_plan

    description, columns = load_job(job).graph.description, dict(map(_buffer, buffers or []))
    with in_options(schema="--schema", buffers="--buffer NAME=NUMBER"):
        plan = AdoptionPlan.of(
            spark_checkpoint, root, description, schema, columns, partitions, deliver=not no_deliver
        )
        plan = plan.execute() if confirm else plan
    print_plan(plan, as_json)


def _buffer(option: str) -> tuple[str, int]:
    name, sign, column = option.partition("=")
    if not sign or not column.isdecimal():
        raise UsageError("a buffer must be given as NAME=NUMBER", code="read-value", found=option)
    return name, int(column)
