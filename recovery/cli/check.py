"""The verb check: the health of a job against limits."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, RootPath, verbs
from tidestate.recovery.cli.printing import data_table, exit_quietly, print_error, print_json, print_out
from tidestate.recovery.inspect.health import health_of_root
from tidestate.recovery.inspect.limits import Health, limits_of
from tidestate.statestore.errors import UsageError

EXIT_UNHEALTHY, EXIT_OPTION = 1, 2


RunningOption = Annotated[bool, typer.Option("--running", help="Require that a driver is running.")]
MaxLagOption = Annotated[
    str | None, typer.Option(metavar="SPAN", help="How far the watermark of a source may be behind the clock.")
]
MaxAgeOption = Annotated[str | None, typer.Option(metavar="SPAN", help="How old the newest checkpoint may be.")]
MaxRejectedOption = Annotated[
    str | None,
    typer.Option(metavar="ROWS", help="How many rows may be rejected: a number, or a share of all rows, such as 1%."),
]
WithinOption = Annotated[
    str, typer.Option(metavar="SPAN", help="The time before now that --max-rejected applies to.")
]
MaxUndeliveredOption = Annotated[
    str | None, typer.Option(metavar="COUNT", help="How many checkpoints a sink may be behind.")
]
MaxWaitingOption = Annotated[str | None, typer.Option(metavar="SPAN", help="For how long a sink may refuse rows.")]
CountIdleOption = Annotated[bool, typer.Option("--count-idle", help="Check the lag of idle sources too.")]
StartingOkOption = Annotated[
    bool, typer.Option("--starting-ok", help="Accept a root that does not exist yet, or has no checkpoint yet.")
]


@verbs.command(
    "check",
    epilog="Example: tidestate check /data/flights --running --max-lag '10 minutes' --max-rejected 1%",
)
def check_health(
    root: RootPath,
    running: RunningOption = False,
    max_lag: MaxLagOption = None,
    max_age: MaxAgeOption = None,
    max_rejected: MaxRejectedOption = None,
    within: WithinOption = "1 hour",
    max_undelivered: MaxUndeliveredOption = None,
    max_waiting: MaxWaitingOption = None,
    count_idle: CountIdleOption = False,
    starting_ok: StartingOkOption = False,
    as_json: AsJson = False,
) -> None:
    """Check the health of a job against limits, for orchestrators: lag, age, rejected rows, sinks that are behind.
    Nothing is changed.

    A limit that is not given is not checked. A drained job is always healthy, and so is an idle source unless
    --count-idle is set. A job without input makes no checkpoints unless it has tick=. While a job runs, what sinks
    have of the newest checkpoint is recorded in the next one, so a sink that keeps up may appear to be one checkpoint
    behind.

    Exit codes: 0 every limit holds; 1 a limit does not hold (one line for each on standard error); 2 an invalid
    option; 3 a checkpoint that counts is damaged or missing; 4 there is no root or no checkpoint yet.
    """
    texts = {
        "running": "" if running else None,
        "max-lag": max_lag,
        "max-age": max_age,
        "max-rejected": max_rejected,
        "within": within,
        "max-undelivered": max_undelivered,
        "max-waiting": max_waiting,
        "count-idle": "" if count_idle else None,
    }
    try:
        limits = limits_of(texts)
    except UsageError as error:
        print_error(error)
        raise typer.Exit(EXIT_OPTION) from None
    job_health = health_of_root(root, limits, starting_ok=starting_ok)
    for check in job_health.checks:
        if not check.holds:
            print_error(check)
    try:
        print_json(job_health.plain()) if as_json else _print(job_health)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # nobody reads it; what was found stands
        with suppress(SystemExit):
            exit_quietly()
    if not job_health.holds:
        raise typer.Exit(EXIT_UNHEALTHY)


def _print(job_health: Health) -> None:
    if job_health.checkpoint is None:
        print_out(Text(f"{job_health.root}: no checkpoint yet"))
        return
    table = data_table(("check", "found", "limit", "holds"))
    for line in job_health.checks:
        holds = "-" if line.limit is None else "yes" if line.holds else "no"
        table.add_row(line.name, Text(line.found), line.limit or "-", holds)
    print_out(table)
