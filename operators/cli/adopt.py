"""The verb adopt.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Confirm
from tidestate.recovery.cli.options import in_options
from tidestate.statestore.errors import UsageError

adopt_command = typer.Typer(add_completion=False)


@adopt_command.command(
    "adopt",
    short_help="Go on with the state of a Spark query.",
    epilog="Example: tidestate adopt /data/old-checkpoint /data/flights jobs:flights --confirm",
)
def adopt_query(
    spark_checkpoint: Annotated[
        str, typer.Argument(metavar="SPARK_CHECKPOINT", help="The checkpointLocation of the stopped query.")
    ],
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The new folder, the checkpoint= of the job.")],
    job: Annotated[str, typer.Argument(metavar="MODULE:JOB", help="A job, or a function that returns one.")],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help='The columns of the stream: "t timestamp, k string"; default: of the last file.'
        ),
    ] = None,
    buffers: Annotated[
        list[str] | None,
        typer.Option("--buffer", metavar="NAME=NUMBER", help="The first column of an aggregate in Spark's state."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="State partitions; by default one for each core.")
    ] = None,
    undelivered: Annotated[
        bool, typer.Option("--no-deliver", help="Record early panes without delivering them.")
    ] = False,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Make a new root with the state, watermark and offsets of a Spark query. The job goes on exactly there.

    The query is stopped or was killed; its checkpoint is read through Spark (4.0 or later, in a local session), and
    never changed. What cannot be taken over is refused before anything is written.
    """
    from tidestate.operators.local.bootstrap import load_job
    from tidestate.operators.root.adoption import AdoptionPlan
    from tidestate.recovery.cli.plans import print_plan

    description, places = load_job(job).graph.description, dict(map(_buffer, buffers or []))
    with in_options(schema="--schema", buffers="--buffer NAME=NUMBER"):
        plan = AdoptionPlan.of(
            spark_checkpoint, root, description, schema, places, partitions, deliver=not undelivered
        )
        plan = plan.execute() if confirm else plan
    print_plan(plan, as_json)


def _buffer(given: str) -> tuple[str, int]:
    name, sign, place = given.partition("=")
    if not sign or not place.isdecimal():
        raise UsageError("a buffer is NAME=NUMBER", code="read-value", found=given)
    return name, int(place)
