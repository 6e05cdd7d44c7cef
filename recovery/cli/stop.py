"""The verb stop: ends a job that runs elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Confirm, RootPath, verbs
from tidestate.recovery.cli.plans import print_plan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.stop import StopPlan
from tidestate.statestore.durations import span_us


@verbs.command("stop", epilog="Example: tidestate stop /data/flights --drain --confirm")
def stop_run(
    root: RootPath,
    drain: Annotated[
        bool, typer.Option("--drain", help="Let every window fire first. The root then accepts no more input.")
    ] = False,
    timeout: Annotated[
        str, typer.Option(metavar="SPAN", help="How long to wait until it has stopped, and its sinks have all.")
    ] = "1 minute",
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """End a job that runs elsewhere, between two batches: print who runs it and since when, and with --confirm ask it
    to stop and wait until it has.

    The job is asked by a file in its root, and answers with another one, so both need to reach the root and nothing
    else. It looks every half second, on remote storage every two.
    """
    plan = StopPlan.of(Checkpoint.open(root), drain=drain, timeout_us=span_us(timeout))
    print_plan(plan.execute() if confirm else plan, as_json)
